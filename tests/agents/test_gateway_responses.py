"""The Responses API, by the real `openai` client on a real port: recorded as chat completions are."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import FunctionToolParam, Response, ResponseStreamEvent
from pydantic import TypeAdapter

from agents.rollout.packing import pack
from tests.support.gateway_toy import (
    ITEM,
    LOOK,
    QUESTION,
    SEARCH,
    RandomSampler,
    ask,
    client_of,
    find_trained,
    make_gateway,
    make_sampler,
    to_history,
)
from tests.support.toy import encode, toy_tokenizer

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "iron"}}\n</tool_call>'
TOOL: FunctionToolParam = {
    "type": "function",
    "strict": True,
    "name": "search",
    "description": SEARCH["function"]["description"],
    "parameters": SEARCH["function"]["parameters"],
}
TOOL_2 = {"type": "function", **LOOK["function"]}
SAYS = [f"I look.\n{CALL}", "It is 5.", "It is 6."]
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def output_of(response: Any) -> dict[str, Any]:
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("search", {"query": "iron"})
    return {"type": "function_call_output", "call_id": call.call_id, "output": "Iron: 5."}


async def create(client: Any, **options: Any) -> Any:
    return await client.responses.create(**{"model": "policy", "tools": [TOOL], **options})


@pytest.mark.parametrize("continuation", ["previous_response_id", "input"])
async def test_a_conversation_with_a_tool_is_one_segment(continuation: str) -> None:
    gateway = make_gateway(make_sampler(SAYS))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            input_items: list[Any] = [QUESTION]
            response: Any = None
            for turn in range(3):
                if turn > 0:
                    new = output_of(response) if turn == 1 else {"role": "user", "content": "Sure?"}
                    before = [item.model_dump() for item in response.output]
                    input_items = [*input_items, *before, new] if continuation == "input" else [new]
                named_choice = (
                    response.id if response and continuation == "previous_response_id" else openai.omit
                )
                response = await create(
                    client, input=input_items, instructions="Be brief.", previous_response_id=named_choice
                )
        trajectory = session.trajectory(reward=1.0)
    assert response.output_text == "It is 6."
    assert response.status == "completed"
    (segment,) = pack(trajectory)
    sampled_ids = [[*encode(text), toy_tokenizer().eos_token_id] for text in SAYS]
    assert [ids for _, ids in find_trained(trajectory)] == sampled_ids
    text = toy_tokenizer().decode(segment.prompt_ids + segment.response_ids)
    assert "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGoal: reach 3.<|im_end|>" in text
    assert f"{SAYS[0]}<|im_end|>\n<|im_start|>tool\nIron: 5.<|im_end|>" in text
    assert response.usage.output_tokens == len(sampled_ids[-1])
    assert response.usage.input_tokens == len(segment.prompt_ids + segment.response_ids) - len(
        sampled_ids[-1]
    )


async def test_it_is_the_conversation_that_chat_completions_have() -> None:
    gateway = make_gateway(make_sampler(SAYS))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            first = await ask(client, [QUESTION], tools=[SEARCH])
            items = [
                QUESTION,
                {"role": "assistant", "content": first.content},
                {"type": "function_call", "call_id": "1", **first.tool_calls[0].function.model_dump()},
            ]
            call_output = {"type": "function_call_output", "call_id": "1", "output": "Iron: 5."}
            second = await create(client, input=[*items, call_output])
            messages = [
                QUESTION,
                to_history(first),
                {"role": "tool", "tool_call_id": "x", "content": "Iron: 5."},
                {"role": "assistant", "content": second.output_text},
                QUESTION,
            ]
            await ask(client, messages, tools=[SEARCH])
        assert len(pack(session.trajectory())) == 1


@pytest.mark.parametrize("says", [f"I look.\n{CALL}", CALL, "It is 5.", ""])
async def test_a_stream_tells_what_one_piece_would(says: str) -> None:
    def short_form(response: Response) -> list[Any]:
        fields = {"type", "name", "arguments", "role", "status"}
        return [
            (item.model_dump(include=fields), getattr(getattr(item, "content", [None])[0], "text", None))
            for item in response.output
        ]

    gateway = make_gateway(make_sampler([says]))
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        whole = await create(client, input="Goal: reach 3.")
        async with client.responses.stream(model="policy", input="Goal: reach 3.", tools=[TOOL]) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        events = [event async for event in await create(client, input="Goal: reach 3.", stream=True)]
    assert [
        (item.type, item.model_dump(exclude={"id", "call_id", "parsed_arguments"})) for item in final.output
    ]
    for response_form in (final, events[-1].response):
        assert short_form(response_form) == short_form(whole)
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told_text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert told_text == whole.output_text
    arguments = [e.arguments for e in events if e.type == "response.function_call_arguments.done"]
    assert arguments == [item.arguments for item in whole.output if item.type == "function_call"]


async def test_bodies_and_events_are_the_clients_own_types_to_the_letter() -> None:
    gateway = make_gateway(make_sampler([f"I look.\n{CALL}"]))
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        body = {"model": "policy", "input": "x", "tools": [TOOL], "tool_choice": "auto"}
        answer = await http.post("/v1/responses", json=body)
        Response.model_validate(answer.json(), strict=False)
        stream_response = await http.post("/v1/responses", json={**body, "stream": True})
    events = [block.split("\n") for block in stream_response.text.split("\n\n") if block]
    for name, data in events:
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert type(EVENTS.validate_python(event)).__name__ != "dict"
    assert answer.json()["system_fingerprint"] == "policy_version=0"


async def test_an_answer_that_is_cut_off_is_incomplete() -> None:
    gateway = make_gateway(make_sampler(["The total is now 7."]))
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        answer = await create(client, input="x", max_output_tokens=2)
        assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert answer.usage.output_tokens == 2
        events = [e async for e in await create(client, input="x", max_output_tokens=2, stream=True)]
        assert events[-1].type == "response.incomplete"


async def test_choices_of_tools_are_those_of_chat_completions() -> None:
    gateway = make_gateway(make_sampler([' {"query": "iron"}}\n</tool_call>']))
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        named_choice = {"type": "function", "name": "search"}
        answer = await create(client, input="x", tools=[TOOL, TOOL_2], tool_choice=named_choice)
        output_of(answer)
        answer = await create(client, input="x", tool_choice="required")
        output_of(answer)
        with pytest.raises(openai.BadRequestError, match="without a grammar"):
            await create(client, input="x", tools=[TOOL, TOOL_2], tool_choice="required")


async def test_an_answer_that_is_not_there_is_none_to_go_on_from() -> None:
    gateway = make_gateway(make_sampler(SAYS))
    async with gateway.listening() as url, gateway.session(ITEM) as session, AsyncExitStack() as clients:
        client = await clients.enter_async_context(client_of(session.base_url))
        short_form = await clients.enter_async_context(client_of(f"{url}/v1"))
        outside = await create(short_form, input="x")
        not_stored = await create(client, input="x", store=False)
        for sender, response_id, why in (
            (short_form, outside.id, "not stored outside sessions"),
            (client, outside.id, "this session has no response"),
            (client, not_stored.id, "not to be stored"),
        ):
            with pytest.raises(openai.BadRequestError, match=why) as rejection:
                await create(sender, input="y", previous_response_id=response_id)
            assert rejection.value.code == "previous_response_not_found"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [QUESTION] * 4097}, "input"),
        ({"input": 3}, "input"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"type": {}}]}, "input[0].type"),
        ({"input": [{"type": None, "role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [QUESTION, {"role": "assistant", "content": "Yes."}]}, "input[1]"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format.type"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"stop": ["x"]}, "stop"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_field(changes: dict[str, Any], param: str) -> None:
    gateway = make_gateway(make_sampler([]))
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        answer = await http.post("/v1/responses", json={"model": "policy", "input": "x", **changes})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


async def test_null_counts_as_missing_at_every_depth() -> None:
    gateway = make_gateway(make_sampler(["Yes."]))
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        answer = await create(
            client,
            input="x",
            text={"format": None, "verbosity": None},
            reasoning={"effort": None},
            extra_body={"stream_options": {"include_obfuscation": None}},
        )
    assert answer.output_text == "Yes."


async def test_branches_from_one_answer_are_trained_on_once() -> None:
    sampler = RandomSampler(3)
    gateway = make_gateway(sampler, context_length=100_000)
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            first = await create(client, input="start")
            branches = await asyncio.gather(
                *(create(client, input=f"agent {i}", previous_response_id=first.id) for i in range(4))
            )
            await asyncio.gather(
                *(create(client, input="on", previous_response_id=branch.id) for branch in branches)
            )
        trajectory = session.trajectory(reward=1.0)
    assert sorted(find_trained(trajectory)) == sorted(sampler.samples)
    assert len(pack(trajectory)) == 4
