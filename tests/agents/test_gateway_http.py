"""The gateway as a server: refusals, sessions over HTTP, tokens, limits, ends."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from agents.rollout.packing import pack
from envs.errors import ConfigError, SamplerFailed
from tasks.data.trajectories import trajectory_from_dict
from tests.support.gateway_toy import (
    ITEM,
    LOOK,
    QUESTION,
    SEARCH,
    GatedSampler,
    ask,
    client_of,
    make_gateway,
    make_sampler,
    to_history,
)
from tests.support.toy import CHATML, NO_SYSTEM, toy_tokenizer
from tests.support.waiting import wait_until_async


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content"),
        ({"temprature": 1}, "temprature"),
        ({"n": 2}, "n"),
        ({"n": True}, "n"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": "\ufffd"}, "stop"),
        ({"stop": 3}, "stop"),
        ({"seed": 3}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 9}, "max_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": False}, "top_logprobs"),
        ({"logit_bias": {"7": -100}}, "logit_bias"),
        ({"modalities": ["text", "audio"]}, "modalities[1]"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [SEARCH, LOOK]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [SEARCH]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [SEARCH]}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": []}, "messages"),
        ({"messages": [QUESTION] * 4097}, "messages"),
        ({"messages": [{"role": "tools", "content": ""}]}, "messages[0].role"),
        ({"messages": [QUESTION, {"role": "assistant", "content": "Yes"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"tools": [SEARCH, SEARCH]}, "tools"),
    ],
)
async def test_what_is_not_supported_is_refused_by_its_field(changes: dict[str, Any], param: str) -> None:
    gateway = make_gateway(make_sampler([]))
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        body = {"model": "policy", "messages": [QUESTION], **changes}
        answer = await client.post("/v1/chat/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert error["message"]


async def test_values_that_clients_send_unasked_are_no_errors() -> None:
    gateway = make_gateway(make_sampler(["Yes."]))
    transport = httpx.ASGITransport(gateway.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        body: dict[str, Any] = {
            "n": 1,
            "stop": None,
            "seed": None,
            "presence_penalty": 0.0,
            "logprobs": False,
            "top_logprobs": 0,
            "logit_bias": {},
            "modalities": ["text"],
            "service_tier": "auto",
            "max_tokens": 50,
            "max_completion_tokens": 50,
            "stream_options": {"include_usage": None},
            "tools": [{**SEARCH, "function": {**SEARCH["function"], "strict": None}}],
            "user": "me",
            "safety_identifier": "me",
            "prompt_cache_key": "mine",
        }
        body |= {"model": "policy", "messages": [{**QUESTION, "name": "me"}], "stream": False}
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.json()["choices"][0]["message"]["content"] == "Yes."


async def test_templates_without_tools_or_roles_refuse_them() -> None:
    async def work(template: str, messages: list[Any], param: str, **options: Any) -> None:
        gateway = make_gateway(make_sampler([]), toy_tokenizer(template))
        async with gateway.listening() as url, client_of(f"{url}/v1") as client:
            with pytest.raises(openai.BadRequestError) as rejection:
                await ask(client, messages, **options)
        assert rejection.value.param == param

    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    await work(CHATML, [QUESTION], "tools", tools=[SEARCH])
    await work(CHATML, [{"role": "assistant", "tool_calls": [call]}, QUESTION], "messages")
    system = {"role": "system", "content": "Later."}
    await work(NO_SYSTEM, [system, system, QUESTION], "messages")


async def test_a_session_over_http_leaves_its_trajectory() -> None:
    gateway = make_gateway(make_sampler(["Action: add 3"] * 2), token="secret", limits={"max_sessions": 1})
    auth = {"Authorization": "Bearer secret"}
    not_numbers = [
        ({"item": {"item_id": "toy_7", "seed": True}}, "item.seed"),
        ({"item": {"item_id": "toy_7"}, "max_turns": "3"}, "max_turns"),
    ]
    async with gateway.listening() as url, httpx.AsyncClient(base_url=url) as http:
        body = {"item": {"item_id": "toy_7", "env": "toy"}, "sample_index": 2, "metadata": {"kind": "a"}}
        rejection = await http.post("/sessions", json=body)
        assert (rejection.status_code, rejection.json()["error"]["code"]) == (401, "invalid_api_key")
        for wrong, param in not_numbers:
            rejection = await http.post("/sessions", json=wrong, headers=auth)
            assert (rejection.status_code, rejection.json()["error"]["param"]) == (400, param)
        session_info = (await http.post("/sessions", json=body, headers=auth)).json()
        full = await http.post("/sessions", json=body, headers=auth)
        assert full.status_code == 429
        async with client_of(session_info["base_url"]) as client:
            says = to_history(await ask(client, [QUESTION]))
            assert [model.id async for model in client.models.list()] == ["policy"]
        async with client_of(f"{url}/v1", api_key=session_info["api_key"]) as client:
            await ask(client, [QUESTION, says, QUESTION])
        async with client_of(f"{url}/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                await ask(client, [QUESTION])
        path = f"/sessions/{session_info['id']}/end"
        assert (await http.post(path)).status_code == 401
        for raw in (b'{"reward": "much"}', b'{"success": true}', b"{}", b""):  # none ends the session
            bad = await http.post(path, content=raw, headers=auth)
            assert (bad.status_code, bad.json()["error"]["param"]) == (400, "reward")
        response = await http.post(path, json={"reward": 0.5, "success": True}, headers=auth)
        trajectory = trajectory_from_dict(response.json()["trajectory"])
        async with client_of(f"{url}/v1", api_key=session_info["api_key"]) as client:
            with pytest.raises(openai.NotFoundError) as not_found:
                await ask(client, [QUESTION])
        assert not_found.value.code == "session_not_found"
    assert (trajectory.item.item_id, trajectory.sample_index, trajectory.reward) == ("toy_7", 2, 0.5)
    assert trajectory.labels == {"kind": "a"}
    (segment,) = pack(trajectory)
    assert sum(segment.response_mask) == sum(len(turn.completion.token_ids) for turn in trajectory.turns)


async def test_what_nobody_uses_is_forgotten_but_not_what_is_in_use() -> None:
    sampler = GatedSampler(["Yes."])
    gateway = make_gateway(sampler, limits={"idle_s": 600})
    async with gateway.listening() as url, httpx.AsyncClient(base_url=url) as http:
        body = {"item": {"item_id": "toy_7"}}
        session_info = [(await http.post("/sessions", json=body)).json() for _ in range(2)]
        active, idle = (gateway.sessions.find(entry["id"]) for entry in session_info)
        async with client_of(active.base_url) as client, gateway.session(ITEM) as local_session:
            asking = asyncio.create_task(ask(client, [QUESTION]))
            await sampler.request_event.wait()
            for session in (active, idle, local_session):
                session.used_at -= 1000
            assert (await http.get("/health")).json()["sessions"] == 2
            sampler.release.set()
            assert (await asking).content == "Yes."
        rejection = await http.post(f"/sessions/{idle.session_id}/end", json={"reward": 0.0})
        assert (rejection.status_code, rejection.json()["error"]["code"]) == (404, "session_not_found")
        assert "unused for 600 s" in rejection.json()["error"]["message"]
        end = await http.post(f"/sessions/{active.session_id}/end", json={"reward": 0.0})
        assert end.status_code == 200


async def test_other_ways_in_are_closed() -> None:
    gateway = make_gateway(make_sampler([]), limits={"max_body_bytes": 1024})
    async with gateway.listening() as url, httpx.AsyncClient(base_url=url) as http:
        wrong = [
            (await http.post("/v1/chat/completions", content=b"x" * 2000), 413),
            (await http.post("/v1/chat/completions", content=b"{"), 400),
            (await http.get("/v1/models", headers={"Origin": "http://evil"}), 403),
            (await http.get("/v1/completions"), 404),
            (await http.get("/v1/chat/completions"), 405),
            (await http.post("/v1/chat/completions", json={"model": "gpt", "messages": [QUESTION]}), 404),
        ]
        for answer, status in wrong:
            assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")
        with pytest.raises(
            ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*choose another host or port"
        ):
            async with gateway.listening(port=int(url.rpartition(":")[2])):
                pass
    with pytest.raises(ConfigError, match="is not listening"):
        async with gateway.session(ITEM):
            pass


async def test_what_the_client_did_not_wait_for_is_no_turn() -> None:
    sampler = GatedSampler(["Yes."])
    gateway = make_gateway(sampler)
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        asking = asyncio.create_task(ask(client, [QUESTION]))
        await sampler.request_event.wait()
        asking.cancel()
        await wait_until_async(lambda: not session.busy)
        sampler.request_event.clear()
        asking = asyncio.create_task(ask(client, [QUESTION]))
        await sampler.request_event.wait()
        gateway.sessions.end(session)
        with pytest.raises(openai.APIStatusError) as response:
            await asking
    assert (response.value.status_code, session.turns) == (410, 0)


async def test_a_sampler_that_fails_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    gateway = make_gateway(make_sampler([]))
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        with pytest.raises(openai.InternalServerError, match="add one for turn 1"):
            await ask(client, [QUESTION])
    assert isinstance(session.fault, SamplerFailed)
    assert session.trajectory().turns == ()
    assert "/sessions/{id}/v1/chat/completions: " in caplog.text
    assert session.session_id not in caplog.text  # who has it may use the session


async def test_a_session_whose_last_answer_failed_has_no_trajectory() -> None:
    gateway = make_gateway(make_sampler(["Action: add 3"]))
    async with gateway.listening() as url, httpx.AsyncClient(base_url=url) as http:
        body = {"item": {"item_id": "toy_7", "env": "toy"}}
        session_info = (await http.post("/sessions", json=body)).json()
        async with client_of(session_info["base_url"]) as client:
            says = to_history(await ask(client, [QUESTION]))
            with pytest.raises(openai.InternalServerError, match="turn 2"):
                await ask(client, [QUESTION, says, QUESTION])
        response = await http.post(f"/sessions/{session_info['id']}/end", json={"reward": 0.0})
        assert response.status_code >= 500
        assert "turn 2" in response.json()["error"]["message"]
