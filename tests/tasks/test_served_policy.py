"""The policy that is being trained, served: addresses, and the door that is shut while weights change."""

import asyncio
import socket
from pathlib import Path

import openai
import pytest

from agents.types import SamplingParams
from envs.errors import ConfigError
from tasks.rollout.served_policy import PausableSampler, ServedAt, ServedPolicy
from tests.support.gateway_toy import QUESTION, GatedSampler, ask, client_of, tokenizer_with
from tests.support.sockets import free_port
from tests.support.verl_toy import toy_pipeline


@pytest.mark.parametrize(("text", "host", "port"), [("8001", "127.0.0.1", 8001), ("0.0.0.0:9", "0.0.0.0", 9)])
def test_an_address_is_a_port_or_a_host_and_a_port(
    text: str, host: str, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGSPAN_TOKEN", "secret")
    assert ServedAt.read(text) == ServedAt(host=host, port=port, token="secret")


def test_a_token_that_is_empty_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_TOKEN", "")
    with pytest.raises(ConfigError, match=r"^WINGSPAN_TOKEN is empty, .* give a token, or unset it$"):
        ServedAt.read("8001")


@pytest.mark.parametrize("text", ["", "0", "65536", "eight", "http://127.0.0.1:8001/v1/", "-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not PORT or HOST:PORT"):
        ServedAt.read(text)


def test_a_port_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken_port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{taken_port}: .*choose another"):
            ServedAt.read(str(taken_port)).check()
    ServedAt.read(str(taken_port)).check()


async def test_who_comes_while_the_weights_change_waits_and_who_is_inside_is_waited_for() -> None:
    sampler = GatedSampler(["One.", "Two."])
    address = ServedAt(host="127.0.0.1", port=free_port(), token="secret")
    server_of_policy = ServedPolicy(
        toy_pipeline(Path("none"), rollout__max_tokens_per_turn=50),
        sampler=sampler,
        tokenizer=tokenizer_with(),
        address=address,
    )
    await server_of_policy.start()
    async with client_of(address.url, api_key="secret") as client, client_of(address.url) as nobody:
        with pytest.raises(openai.AuthenticationError):
            await ask(nobody, [QUESTION])
        first = asyncio.create_task(ask(client, [QUESTION]))
        await sampler.request_event.wait()
        sampler.request_event.clear()
        pausing = asyncio.create_task(server_of_policy.pause())
        second = asyncio.create_task(ask(client, [QUESTION]))
        for _ in range(3):  # the server has read the second request when it answers those that came later
            with pytest.raises(openai.AuthenticationError):
                await ask(nobody, [QUESTION])
        assert not pausing.done()
        sampler.release.set()
        await pausing
        assert (await first).content == "One."
        assert not second.done()
        assert not sampler.request_event.is_set()
        await server_of_policy.resume()
        assert (await second).content == "One."  # a separate conversation
    await server_of_policy.close()


async def test_a_pause_waits_for_a_request_whose_client_has_left() -> None:
    sampler = GatedSampler(["One."])
    pausable = PausableSampler(sampler)
    params = SamplingParams(max_tokens=9)
    request = asyncio.create_task(pausable.sample([1], params=params, episode_id="e"))
    await sampler.request_event.wait()
    request.cancel()
    pausing = asyncio.create_task(pausable.pause())
    await asyncio.wait({request})
    await asyncio.sleep(0)  # a task that was done would have reported it
    assert request.cancelled()
    assert not pausing.done()  # the sampler is at work still
    sampler.release.set()
    await pausing
