"""The gateway, by the real `openai` client on a real port: completions, tools, streams, limits."""

import json
from typing import Any

import openai
import pytest

from agents.rollout.packing import pack
from agents.types import FinishReason, StopReason
from tests.support.gateway_toy import (
    ITEM,
    QUESTION,
    SEARCH,
    ask,
    client_of,
    find_trained,
    make_gateway,
    make_sampler,
    to_history,
    tokenizer_with,
)
from tests.support.toy import encode, toy_tokenizer

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "iron", "top_k": 2}}\n</tool_call>'
END = toy_tokenizer().eos_token_id


async def test_a_conversation_is_one_segment_of_the_sampled_tokens() -> None:
    says = ["Action: add 1", "Action: add 2"]
    gateway = make_gateway(make_sampler(says))
    async with gateway.listening(), gateway.session(ITEM, sample_index=4, metadata={"kind": "a"}) as session:
        async with client_of(session.base_url) as client:
            first = await ask(client, [QUESTION])
            assert first.content == says[0]
            more = {"role": "user", "content": [{"type": "text", "text": "The total is 1."}]}
            messages: list[Any] = [QUESTION, to_history(first), more]
            answer = await client.chat.completions.create(model="policy", messages=messages)
        trajectory = session.trajectory(reward=1.0, success=True)
    assert answer.choices[0].finish_reason == "stop"
    (segment,) = pack(trajectory)
    assert list(segment.prompt_ids) == encode(
        "<|im_start|>user\nGoal: reach 3.<|im_end|>\n<|im_start|>assistant\n"
    )
    reply_ids = encode("\n<|im_start|>user\nThe total is 1.<|im_end|>\n<|im_start|>assistant\n")
    sampled_ids = [[*encode(text), END] for text in says]
    assert list(segment.response_ids) == sampled_ids[0] + reply_ids + sampled_ids[1]
    assert list(segment.response_mask) == [1] * len(sampled_ids[0]) + [0] * len(reply_ids) + [1] * len(
        sampled_ids[1]
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(sampled_ids[1])
    assert answer.usage.prompt_tokens == len(segment.prompt_ids) + len(sampled_ids[0]) + len(reply_ids)
    assert (trajectory.item, trajectory.sample_index, trajectory.reward, trajectory.success) == (
        ITEM,
        4,
        1.0,
        True,
    )
    assert [turn.observation for turn in trajectory.turns] == ["The total is 1.", ""]
    assert [turn.reward for turn in trajectory.turns] == [0.0, 1.0]
    assert trajectory.metrics == {"parse_failures": 0, "segments": 1, "other_sampling": 0}
    assert trajectory.labels == {"kind": "a"}


async def test_a_history_that_was_changed_begins_a_segment() -> None:
    gateway = make_gateway(make_sampler(lambda name, turn: f"Thought: {name[-1]} {turn}"))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            first = to_history(await ask(client, [QUESTION]))
            more = {"role": "user", "content": "The total is 1."}
            second = to_history(await ask(client, [QUESTION, first, more]))
            system = {"role": "system", "content": "A summary."}
            await ask(client, [system, QUESTION, first, more, second, more])
            changed_message = {**first, "content": "Thought: another"}
            await ask(client, [QUESTION, changed_message, more])
        trajectory = session.trajectory(reward=1.0)
    assert [turn.text for turn in trajectory.turns] == [
        "Thought: 0 0",
        "Thought: 0 1",
        "Thought: 1 0",
        "Thought: 2 0",
    ]
    assert [turn.prompt_ids is None for turn in trajectory.turns] == [True, True, False, False]
    assert [turn.reward for turn in trajectory.turns] == [0, 0, 0, 1.0]
    assert trajectory.metrics["segments"] == len(pack(trajectory)) == 3


async def test_interleaved_conversations_are_a_segment_each_and_turns_are_in_the_order_of_the_answers() -> (
    None
):
    gateway = make_gateway(make_sampler(lambda name, turn: f"Action: {name[-1]} {turn}"))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            talks: list[list[Any]] = [[QUESTION], [{"role": "user", "content": "You find things out."}]]
            for talk in (0, 1, 0, 1, 0):
                answer = await ask(client, talks[talk])
                talks[talk] += [to_history(answer), {"role": "user", "content": "Go on."}]
        trajectory = session.trajectory(turn_rewards=[0.1, 0.2, 0.3, 0.4, 0.5])
    assert [turn.text[-3:] for turn in trajectory.turns] == ["0 0", "1 0", "0 1", "1 1", "0 2"]
    assert [turn.reward for turn in trajectory.turns] == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert [turn.previous_turn for turn in trajectory.turns] == [None, None, 0, 1, 2]
    assert [turn.observation for turn in trajectory.turns] == ["Go on.", "Go on.", "Go on.", "", ""]
    assert len(pack(trajectory)) == trajectory.metrics["segments"] == 2


@pytest.mark.parametrize("text", ["", "Yes.", CALL, f"I look.\n{CALL}\n{CALL}"])
async def test_a_stream_says_what_one_piece_would(text: str) -> None:
    """The client's own helper puts the chunks together."""
    gateway = make_gateway(make_sampler([text, text]))
    options: Any = {"model": "policy", "messages": [QUESTION], "tools": [SEARCH]}
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        whole = await client.chat.completions.create(**options)
        async with client.chat.completions.stream(
            **options, stream_options={"include_usage": True}
        ) as stream:
            streamed = await stream.get_final_completion()

    def comparable(completion: Any) -> Any:
        choice = completion.choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        return choice.message.content, calls, choice.finish_reason, completion.usage

    assert comparable(streamed) == comparable(whole)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_calls_of_tools_come_back_and_the_tokens_go_on(is_streamed: bool) -> None:
    async def streamed_call(client: Any) -> dict[str, Any]:
        stream = await client.chat.completions.create(
            model="policy",
            messages=[QUESTION],
            tools=[SEARCH],
            stream=True,
            stream_options={"include_usage": True},
        )
        content, calls, reasons, usage = "", list[Any](), list[Any](), None
        async for chunk in stream:
            usage = chunk.usage
            for choice in chunk.choices:
                content += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
                reasons.append(choice.finish_reason)
        assert content == "Thought: look."
        assert [reason for reason in reasons if reason] == ["tool_calls"]
        assert usage is not None
        assert usage.completion_tokens == len(encode(f"Thought: look.\n{CALL}")) + 1
        return {"id": calls[0].id, "type": "function", "function": calls[0].function.model_dump()}

    gateway = make_gateway(make_sampler([f"Thought: look.\n{CALL}", "It is 5."]))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            if is_streamed:
                call = await streamed_call(client)
            else:
                message = await ask(client, [QUESTION], tools=[SEARCH])
                assert message.content == "Thought: look."
                [call] = [to_history(call) for call in message.tool_calls]
            says = {"role": "assistant", "content": "Thought: look.", "tool_calls": [call]}
            assert call["function"]["name"] == "search"
            arguments = json.loads(call["function"]["arguments"])
            assert arguments == {"query": "iron", "top_k": 2}
            call["function"]["arguments"] = json.dumps(dict(reversed(arguments.items())), indent=1)
            tool_output = {"role": "tool", "tool_call_id": call["id"], "content": "Iron: 5."}
            last = await ask(client, [QUESTION, says, tool_output], tools=[SEARCH])
        trajectory = session.trajectory(reward=1.0)
    assert (last.content, last.tool_calls) == ("It is 5.", None)
    (segment,) = pack(trajectory)
    text = toy_tokenizer().decode(segment.prompt_ids + segment.response_ids)
    assert '"description": "Finds passages."' in text
    assert f"{CALL}<|im_end|>\n<|im_start|>tool\nIron: 5.<|im_end|>" in text
    assert trajectory.turns[0].action == 'search({"query": "iron", "top_k": 2})'


@pytest.mark.parametrize("format", ["hermes", "qwen3", "llama3"])
async def test_calls_that_are_not_ours_are_rendered_as_the_template_writes_them(format: str) -> None:
    gateway = make_gateway(make_sampler(["Done."]), tokenizer_with(format))
    call = {"name": "search", "arguments": '{"query": "iron"}'}
    calls = [{"id": "call_1", "type": "function", "function": call}]
    says = {"role": "assistant", "content": None, "tool_calls": calls}
    tool_output = {"role": "tool", "tool_call_id": "call_1", "content": "Iron: 5."}
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            await ask(client, [QUESTION, says, tool_output], tools=[SEARCH])
        trajectory = session.trajectory()
    read_calls = [{"function": {"name": "search", "arguments": {"query": "iron"}}}]
    call_message = {"role": "assistant", "content": "", "tool_calls": read_calls}
    whole = tokenizer_with(format).apply_chat_template(
        [QUESTION, call_message, tool_output], tools=[SEARCH], tokenize=False, add_generation_prompt=True
    )
    assert toy_tokenizer().decode(trajectory.prompt_ids) == whole


async def test_calls_that_cannot_be_read_are_text_and_counted() -> None:
    malformed_text = '<tool_call>{"name": "search", </tool_call>'
    gateway = make_gateway(make_sampler([malformed_text]))
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        message = await ask(client, [QUESTION], tools=[SEARCH])
    assert (message.content, message.tool_calls) == (malformed_text, None)
    assert session.trajectory().metrics["parse_failures"] == 1


async def test_completions_respect_their_limits() -> None:
    gateway = make_gateway(make_sampler(["Action: add 1"] * 9), context_length=60)
    async with (
        gateway.listening(),
        gateway.session(ITEM, max_turns=2) as session,
        client_of(session.base_url) as client,
    ):
        answer = await client.chat.completions.create(
            model="policy", messages=[QUESTION], max_tokens=2, temperature=0.5
        )
        assert answer.choices[0].finish_reason == "length"
        for count in (30, 300_000):  # the latter has 4 MB, which are not encoded
            long = {"role": "user", "content": "The total is " * count}
            with pytest.raises(openai.BadRequestError) as full:
                await ask(client, [long])
            assert (full.value.code, full.value.param) == ("context_length_exceeded", "messages")
            assert ("more than 60 tokens" in full.value.message) == (count > 30)
            assert session.stop_reason is StopReason.MAX_CONTEXT
        await ask(client, [QUESTION])
        with pytest.raises(openai.BadRequestError) as rejection:
            await ask(client, [QUESTION])
        assert rejection.value.code == "max_turns_reached"
    trajectory = session.trajectory()
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert trajectory.turns[0].completion.finish_reason is FinishReason.LENGTH
    assert trajectory.metrics["other_sampling"] == 1
    assert [len(sampled_ids) for _, sampled_ids in find_trained(trajectory)] == [
        2,
        len(encode("Action: add 1")) + 1,
    ]
