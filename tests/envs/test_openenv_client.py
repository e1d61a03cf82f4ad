"""The `openenv` package's own client, unchanged, against our server."""

import asyncio
from typing import Any

import httpx
import pytest

from envs.builtin.textcraft.expert import solve
from envs.builtin.textcraft.world import make_problem
from envs.registry import ENVIRONMENTS, get_env
from envs.serve.limits import ServerLimits
from tests.support.serving import listening


async def test_an_episode_by_openenvs_client_is_the_games() -> None:
    from openenv.core.generic_client import GenericEnvClient

    async with listening(get_env("textcraft"), tokens=("secret",)) as url:
        address = url.replace("http://", "ws://any:secret@")
        async with GenericEnvClient(base_url=address) as env:
            result = await env.reset(item_id="textcraft_12", episode_id="mine")
            assert result.observation["text"] == make_problem(12).opening
            assert (result.reward, result.done) == (None, False)
            for step_count, step in enumerate(solve(make_problem(12))):
                assert not result.done
                assert (await env.state())["step_count"] == step_count
                result = await env.step({"text": step.action})
            assert (result.reward, result.done, result.observation["success"]) == (1, True, True)
            assert (await env.state())["episode_id"] == "mine"
            with pytest.raises(RuntimeError, match="has ended; reset it"):
                await env.step({"text": "inventory"})
            again = await env.reset(seed=3)
            assert again.observation == (await env.reset(seed=3, unknown="column")).observation
            with pytest.raises(RuntimeError, match="text: Field required"):
                await env.step({"message": "inventory"})


async def test_a_full_server_and_a_missing_token_are_its_errors() -> None:
    from openenv.core.generic_client import GenericEnvClient

    async with listening(
        get_env("textcraft"), limits=ServerLimits(max_sessions=1), tokens=("secret",)
    ) as url:
        address = url.replace("http://", "ws://any:secret@")
        async with GenericEnvClient(base_url=address) as env:
            await env.reset()
            async with GenericEnvClient(base_url=address) as second:
                with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                    await second.reset()
        with pytest.raises(ConnectionError, match="401"):
            await GenericEnvClient(base_url=url).connect()


@pytest.mark.parametrize("env", list(ENVIRONMENTS))
async def test_openenvs_validator_finds_nothing_missing(env: str) -> None:
    """`openenv validate --url`, on every environment that can be served here."""
    from openenv.cli._validation import validate_running_environment

    spec = get_env(env)
    if not spec.has_items or any(need.find_remedy() for need in spec.needs):
        pytest.skip(f"{env} has no items of its own, or needs something that is not installed")

    async with listening(spec) as url:
        report = await asyncio.to_thread(validate_running_environment, url, 30.0)
    assert report["summary"]["failed_criteria"] == []
    assert report["standard_profile"] == "openenv-http/1.x"


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ('{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}', {"id": 7, "result": {"tools": []}}),
        ('{"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "x"}}', -32602),
        ('{"jsonrpc": "2.0", "id": 1, "method": "initialise"}', -32601),
        ('{"id": 1, "method": "tools/list"}', -32600),
        ("[]", -32600),
        ("{", -32700),
    ],
)
async def test_a_request_for_tools_is_answered_by_json_rpc(body: str, answer: dict[str, Any] | int) -> None:
    async with (
        listening(get_env("textcraft"), tokens=("secret",)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        assert (await http.post("/mcp", content=body)).status_code == 401
        response = await http.post("/mcp", content=body, headers={"Authorization": "Bearer secret"})
    assert response.status_code == 200
    content = response.json()
    assert content.pop("jsonrpc") == "2.0"
    assert (content if isinstance(answer, dict) else content["error"]["code"]) == answer
