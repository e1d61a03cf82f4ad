"""Requests of one session that come at once, or are left: each is recorded once, or not at all."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.gateway.gateway import Gateway
from agents.rollout.packing import pack
from agents.samplers.cpu import CpuSampler
from agents.types import Completion, SamplingParams
from envs.errors import SamplerFailed
from envs.types import Image
from tasks.rollout.served_policy import PausableSampler
from tests.support.examples import examples
from tests.support.gateway_toy import (
    ITEM,
    QUESTION,
    GatedSampler,
    RandomSampler,
    ask,
    client_of,
    find_trained,
    make_gateway,
    to_history,
    tokenizer_with,
)
from tests.support.tiny_model import save_tiny_model
from tests.support.waiting import wait_until_async


class Unsteady(RandomSampler):
    """Takes its time, fails now and then, and lets no two requests of one name in at once."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._random = random.Random(seed)
        self._inside: set[str] = set()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        assert episode_id not in self._inside
        self._inside.add(episode_id)
        prompt = list(prompt_ids)
        try:
            for _ in range(self._random.randrange(4)):
                await asyncio.sleep(0)
            if self._random.random() < 0.2:
                raise SamplerFailed("it happens")
            return await super().sample(prompt, images=images, params=params, episode_id=episode_id)
        finally:
            self._inside.discard(episode_id)


@pytest.mark.heavy
@settings(max_examples=examples(12))
@given(seed=st.integers(0, 10_000))
def test_many_at_once_that_fail_are_left_or_answered(seed: int) -> None:
    """Agents of one session that share beginnings; what they were told is what is trained on, once."""

    async def work() -> None:
        random_source = random.Random(seed)
        sampler = Unsteady(seed)
        gateway = make_gateway(sampler, context_length=100_000)
        contents: list[str] = []

        async def agent(client: Any, talk: list[Any]) -> None:
            for _ in range(4):
                asking = asyncio.create_task(ask(client, talk))
                if random_source.random() < 0.2:  # somebody else loses patience
                    await asyncio.sleep(random_source.random() / 50)
                    asking.cancel()
                try:
                    answer = to_history(await asking)
                except (openai.InternalServerError, asyncio.CancelledError):
                    continue  # and asks again
                contents.append(answer["content"])
                talk = [*talk, answer, {"role": "user", "content": f"go on {random_source.randrange(2)}"}]

        async with gateway.listening(), gateway.session(ITEM) as session:
            async with client_of(session.base_url) as client:
                await asyncio.gather(*(agent(client, [QUESTION]) for _ in range(4)))
            await wait_until_async(lambda: not session.busy)
            trajectory = session.trajectory(reward=1.0)
        segments = find_trained(trajectory)
        assert len(segments) == len(trajectory.turns)
        remaining = [(tuple(prompt), tuple(ids)) for prompt, ids in sampler.samples]
        for prompt, ids in segments:
            remaining.remove((tuple(prompt), tuple(ids)))  # each was sampled, and just so
        texts = [turn.text for turn in trajectory.turns]
        for text in contents:
            texts.remove(text)
        assert sum(turn.reward for turn in trajectory.turns) == (1.0 if texts or contents else 0)

    asyncio.run(asyncio.wait_for(work(), 300))


async def test_the_last_turn_is_had_by_one_of_those_that_want_it() -> None:
    sampler = GatedSampler(["Yes.", "Yes.", "Yes."])
    gateway = make_gateway(sampler)
    async with (
        gateway.listening(),
        gateway.session(ITEM, max_turns=1) as session,
        client_of(session.base_url) as client,
    ):
        asking = [asyncio.create_task(ask(client, [QUESTION])) for _ in range(3)]
        await sampler.request_event.wait()
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        sampler.release.set()
        results = await asyncio.gather(*asking, return_exceptions=True)
        assert session.turns == 1
    assert sorted(type(result).__name__ for result in results) == [
        "BadRequestError",
        "BadRequestError",
        "ChatCompletionMessage",
    ]


async def test_a_body_that_arrives_after_the_end_of_its_session_is_not_sampled() -> None:
    sampler = GatedSampler(["Yes."])
    sampler.release.set()
    gateway = make_gateway(sampler)
    end_event = asyncio.Event()
    body = json.dumps({"model": "policy", "messages": [QUESTION]}).encode()

    async def send_slowly() -> AsyncIterator[bytes]:
        yield body[:10]
        await end_event.wait()
        yield body[10:]

    async with gateway.listening(), httpx.AsyncClient() as http:
        async with gateway.session(ITEM) as session:
            opened_at = session.used_at
            url = f"{session.base_url}/chat/completions"
            posting = asyncio.create_task(http.post(url, content=send_slowly()))
            await wait_until_async(lambda: session.used_at > opened_at)  # the server has found the session
        end_event.set()
        response = await posting
    assert (response.status_code, response.json()["error"]["code"]) == (410, "session_not_found")
    assert (session.turns, sampler.request_event.is_set()) == (0, False)


class Endless(CpuSampler):
    """Says no end of turn, and gives no answer before it is released."""

    def __init__(self, model: Path) -> None:
        super().__init__(model, context_length=512)
        self.request_event = asyncio.Event()
        self.release = asyncio.Event()
        self.release.set()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.request_event.set()
        on = replace(params, stop_token_ids=())
        completion = await super().sample(prompt_ids, images=images, params=on, episode_id=episode_id)
        await self.release.wait()
        return completion


async def test_who_lost_patience_may_ask_again_while_the_sampler_is_still_at_work(tmp_path: Path) -> None:
    sampler = Endless(save_tiny_model(tmp_path))
    gateway = Gateway(
        PausableSampler(sampler),
        tokenizer_with(),
        sampling=SamplingParams(max_tokens=400),
        context_length=512,
    )
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        talk: list[Any] = [QUESTION, to_history(await ask(client, [QUESTION], max_tokens=2)), QUESTION]
        sampler.release.clear()
        for _ in range(3):
            sampler.request_event.clear()
            left = asyncio.create_task(ask(client, talk, temperature=0.9))
            await sampler.request_event.wait()
            assert session.busy
            left.cancel()
            await wait_until_async(lambda: not session.busy)
        sampler.release.set()
        await ask(client, talk, max_tokens=3)
    assert session.turns == 2
    assert len(pack(session.trajectory())) == 1
    sampler.close()
