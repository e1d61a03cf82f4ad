"""The `openenv` package's own client, unchanged, against our server."""

import asyncio

import pytest
from openenv.core.generic_client import GenericEnvClient

from envs.registry import get_env
from envs.serve.limits import Limits
from envs.textcraft_expert import solve
from envs.textcraft_world import game
from tests.serving import listening


def test_an_episode_by_openenvs_client_is_the_games() -> None:
    async def main() -> None:
        async with listening(get_env("textcraft"), tokens=("secret",)) as url:
            address = url.replace("http://", "ws://any:secret@")
            async with GenericEnvClient(base_url=address) as env:
                opened = await env.reset(item_id="textcraft_12", episode_id="mine")
                assert opened.observation["text"] == game(12).opening
                assert (opened.reward, opened.done) == (None, False)
                for taken, step in enumerate(solve(game(12))):
                    assert not opened.done
                    assert (await env.state())["step_count"] == taken
                    opened = await env.step({"text": step.action})
                assert (opened.reward, opened.done, opened.observation["success"]) == (1, True, True)
                assert (await env.state())["episode_id"] == "mine"
                with pytest.raises(RuntimeError, match="has ended; reset it"):
                    await env.step({"text": "inventory"})
                again = await env.reset(seed=3)
                assert again.observation == (await env.reset(seed=3, unknown="column")).observation
                with pytest.raises(RuntimeError, match="text: Field required"):
                    await env.step({"message": "inventory"})

    asyncio.run(main())


def test_a_full_server_and_a_missing_token_are_told_to_it() -> None:
    async def main() -> None:
        async with listening(get_env("textcraft"), limits=Limits(max_sessions=1), tokens=("secret",)) as url:
            address = url.replace("http://", "ws://any:secret@")
            async with GenericEnvClient(base_url=address) as env:
                await env.reset()
                async with GenericEnvClient(base_url=address) as other:
                    with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                        await other.reset()
            with pytest.raises(ConnectionError, match="401"):
                await GenericEnvClient(base_url=url).connect()

    asyncio.run(main())
