"""OpenEnv's environments over the network, on the `openenv` package's own server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import BaseModel, Field
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response

from envs.adapters.openenv_text import ActionForm, observation_text
from envs.adapters.seeds import seeded_item
from envs.errors import ConfigError, EnvCrashed
from envs.registry import get_env
from envs.types import Item, StepResult
from tests.support.openings import read_opening
from tests.support.waiting import wait_until

SERVER = Path(__file__).parents[1] / "support" / "openenv_server.py"
START_S = 100.0
WORDS = ("lamp", "river", "stone", "cloud", "violin", "harbour", "pepper", "window")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(tmp_path_factory.mktemp("echo")), *WORDS],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        address = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        wait_until(lambda: _answers(address), timeout_s=START_S)
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/riddle/health").status_code == 200
    except httpx.HTTPError:
        return False


def _item(address: str, index: int = 0) -> Item:
    return seeded_item(f"openenv:{address}", index)


async def _play(address: str, actions: list[str], *, index: int = 0) -> tuple[str, list[StepResult]]:
    env = get_env(f"openenv:{address}").make()
    try:
        return await read_opening(env, _item(address, index)), [await env.step(action) for action in actions]
    finally:
        await env.close()
        await env.close()


@pytest.mark.heavy
async def test_a_text_is_an_action_and_the_seed_chooses_the_problem(address: str) -> None:
    async def first_letters() -> list[str]:
        return [(await _play(f"{address}/riddle", [], index=i))[0] for i in range(12)]

    openings = await first_letters()
    assert openings == await first_letters()
    assert len(set(openings)) > 1
    assert openings[0].endswith("\nForm of an action: message, string: the word")
    word = next(word for word in WORDS if openings[0].startswith(f"It begins with {word[0]}."))
    _, results = await _play(f"{address}/riddle", ["moon", word])
    assert results == [StepResult("No."), StepResult("Yes.", reward=1.0, terminated=True, success=True)]


@pytest.mark.heavy
async def test_two_sessions_at_once_do_not_disturb_each_other(address: str) -> None:
    spec = get_env(f"openenv:{address}/riddle")
    first, second = spec.make(), spec.make()
    letters = [
        (await read_opening(env, _item(address, i)))[len("It begins with ")]
        for env, i in ((first, 0), (second, 1))
    ]
    words = [next(word for word in WORDS if word[0] == letter) for letter in letters]
    results = await asyncio.gather(first.step(words[0]), second.step(words[1]))
    assert [result.success for result in results] == [True, True]
    again = await read_opening(first, _item(address, 1))
    assert again[len("It begins with ")] == letters[1]
    await asyncio.gather(first.close(), second.close())
    assert len(set(letters)) == 2


@pytest.mark.heavy
async def test_several_fields_are_a_json_object_and_the_servers_own_word_on_success_counts(
    address: str,
) -> None:
    opening, results = await _play(f"{address}/grid", ['{"row": 0, "column": 0}'])
    assert opening == '["..", ".."]\nForm of an action: a JSON object with row (integer), column (integer)'
    assert results == [StepResult('["x.", ".."]', reward=0.5, terminated=True, success=True)]


@pytest.mark.heavy
async def test_a_malformed_action_is_play_by_its_form_and_by_the_servers_word(address: str) -> None:
    actions = ["north", '{"row": "up", "column": 0}', '{"row": 1}', '{"row": 0, "column": 0}']
    _, results = await _play(f"{address}/grid", actions)
    assert [result.terminated for result in results] == [False, False, False, True]
    assert results[0].observation.startswith("'north' is no action.")
    assert "row: Input should be a valid integer" in results[1].observation
    assert "column: Field required" in results[2].observation


@pytest.mark.heavy
async def test_an_end_from_outside_is_truncated_and_no_success(address: str) -> None:
    _, results = await _play(f"{address}/grid", ['{"row": 1, "column": 1}'] * 3)
    assert [(r.terminated, r.truncated, r.success, r.reward) for r in results] == [
        (False, False, False, -0.25),
        (False, False, False, -0.25),
        (False, True, False, -0.25),
    ]
    assert results[0].observation == 'rows: ["..", ".."]\nlast: missed'


@pytest.mark.heavy
async def test_faults_of_server_and_environment_are_no_rewards(address: str) -> None:
    with pytest.raises(EnvCrashed, match="EXECUTION_ERROR: the board broke"):
        await _play(f"{address}/grid", ['{"row": 9, "column": 0}'])
    with pytest.raises(EnvCrashed, match="schema"):
        await _play(f"{address}/nothing", [])
    with pytest.raises(EnvCrashed, match="ConnectError"):
        await _play("http://127.0.0.1:9", [])

    async def one_too_many() -> None:
        spec = get_env(f"openenv:{address}/grid")
        holder, waiting = spec.make(), spec.make()
        try:
            await holder.reset(_item(address))
            with pytest.raises(EnvCrashed, match="CAPACITY_REACHED"):
                await waiting.reset(_item(address))
        finally:
            await holder.close()
            await waiting.close()

    await one_too_many()


async def test_a_server_that_has_hung_up_is_called_again_by_the_next_episode() -> None:
    calls = []

    def schema(connection: ServerConnection, request: Request) -> Response | None:
        if request.path != "/schema":
            return None
        return connection.respond(200, '{"action": {"properties": {"move": {"type": "string"}}}}')

    async def one_answer(connection: ServerConnection) -> None:
        calls.append(json.loads(await connection.recv()))
        await connection.send('{"type": "observation", "data": {"observation": {"text": "hello"}}}')

    async with serve(one_answer, "127.0.0.1", 0, process_request=schema) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        env = get_env(f"openenv:{address}").make()
        assert await env.reset(_item(address, 1)) == "hello\nForm of an action: move, string"
        with pytest.raises(EnvCrashed, match="step: ConnectionClosed"):
            await env.step("on")
        assert (await read_opening(env, _item(address, 2))).startswith("hello")
        await env.close()
    assert calls == [{"type": "reset", "data": {"seed": seed}} for seed in (1, 2)]


@pytest.mark.heavy
async def test_the_shipped_environment_answers_as_to_the_packages_own_client(address: str) -> None:
    from openenv.core.generic_client import GenericEnvClient

    actions = ["Hello", "a longer message"]

    async def by_client() -> list[tuple[str, float]]:
        async with GenericEnvClient(base_url=f"{address}/echo") as client:
            await client.reset(seed=0)
            results = [await client.step({"message": text}) for text in actions]
        return [(result.observation["echoed_message"], result.reward) for result in results]

    opening, results = await _play(f"{address}/echo", actions)
    assert opening.startswith("echoed_message: Echo environment ready!\nmessage_length: 0\n")
    message = [
        (f"echoed_message: {text}\nmessage_length: {len(text)}", reward) for text, reward in await by_client()
    ]
    assert [(result.observation, result.reward) for result in results] == message
    assert not any(result.terminated or result.success for result in results)


def test_an_address_is_checked_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="give the server's address"):
        get_env("openenv:localhost:8000")
    split = get_env("openenv:http://127.0.0.1:9").split(0)
    assert split.train[0].index == split.train[0].seed
    assert not {item.seed for item in split.train} & {item.seed for item in split.test}


def test_forms_of_actions() -> None:
    choice = ActionForm({"properties": {"move": {"enum": ["up", "down"]}, "metadata": {}}})
    assert (choice.description, choice.read(" up ")) == ('move, "up" or "down"', {"move": "up"})
    number = ActionForm({"properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "integer"}}})
    assert (number.description, number.read("3"), number.read("x")) == ("n, integer", {"n": 3}, None)

    class Message(BaseModel):
        message: str | None = Field(None, description="what to say")

    optional = ActionForm(Message.model_json_schema())
    assert (optional.description, optional.read("hi 5")) == (
        "message, string: what to say",
        {"message": "hi 5"},
    )
    one_needed = {
        "properties": {"code": {"type": "string"}, "limit": {"type": "number"}},
        "required": ["code"],
    }
    assert ActionForm(one_needed).read("print(1)") == {"code": "print(1)"}
    assert observation_text({"done": True, "metadata": {"a": 1}, "text": " hi ", "legal": []}) == "hi"
