"""Stop texts: sampling ends there, the client is told the text before, each token is the policy's own."""

import asyncio
import copy
import random
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.gateway.sessions import GatewaySession
from agents.rollout.packing import pack
from agents.samplers.cpu import CpuSampler
from agents.samplers.stop_texts import StopDetector, cut_at_stop, text_before
from agents.types import Completion, FinishReason, SamplingParams
from tests.support.examples import examples
from tests.support.gateway_toy import (
    ITEM,
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
from tests.support.tiny_model import save_tiny_model
from tests.support.toy import encode, toy_tokenizer

WORDS = ["Thought", "Action: add", " the", "total is now é☃", "\n", "Observation:", "Goal", "🚀", "abcabd"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map("".join)


def decode(ids: Sequence[int]) -> str:
    """As transformers itself does, without the code under test."""
    return str(toy_tokenizer().decode(list(ids), skip_special_tokens=True))


def completion_of(ids: list[int]) -> Completion:
    return Completion(
        token_ids=tuple(ids),
        logprobs=tuple(-0.1 * i for i in range(len(ids))),
        finish_reason=FinishReason.STOP,
        policy_version=3,
    )


def first_tokens_with(ids: list[int], stop: Sequence[str]) -> int | None:
    """Counted from the left, one by one."""
    heads = (n for n in range(1, len(ids) + 1) if any(stop_text in decode(ids[:n]) for stop_text in stop))
    return next(heads, None)


@pytest.mark.heavy
@settings(max_examples=examples(300))
@given(text=texts, data=st.data())
def test_a_completion_ends_with_the_first_token_by_which_its_text_has_a_stop(
    text: str, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    inner = text[start : data.draw(st.integers(start + 1, min(len(text), start + 9)))]
    stop = [*data.draw(st.lists(st.sampled_from(WORDS), max_size=2)), inner]
    ids = [*encode(text), toy_tokenizer().eos_token_id]
    cut_completion = cut_at_stop(completion_of(ids), stop, decode=decode)
    length = first_tokens_with(ids, stop)
    assert length is not None
    assert cut_completion.token_ids == tuple(ids[:length])
    assert cut_completion.logprobs == completion_of(ids).logprobs[:length]
    assert cut_completion.finish_reason is FinishReason.CUT
    before = text_before(decode(cut_completion.token_ids), stop)
    assert decode(cut_completion.token_ids).startswith(before)
    assert not any(stop_text in before for stop_text in stop)
    assert any(decode(cut_completion.token_ids)[len(before) :].startswith(stop_text) for stop_text in stop)
    watch = StopDetector(stop, decode=decode)
    assert [watch.is_reached(ids[:n]) for n in range(1, length + 1)] == [False] * (length - 1) + [True]


def test_without_a_stop_text_nothing_is_cut() -> None:
    whole = completion_of(encode("Action: add 1"))
    assert cut_at_stop(whole, [], decode=decode) is whole
    assert cut_at_stop(whole, ["Observation"], decode=decode) is whole


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_goes_on_from_the_tokens_and_not_from_the_text(is_streamed: bool) -> None:
    says = ["Action: add 1\nObservation: 1 is now the total", "Action: add 2"]
    gateway = make_gateway(make_sampler(says))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            answer: Any = await client.chat.completions.create(
                model="policy", messages=[QUESTION], stop=["\nObservation:"], stream=is_streamed
            )
            if is_streamed:
                chunks = [chunk async for chunk in answer]
                content = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
                assert chunks[-1].choices[0].finish_reason == "stop"
            else:
                content = answer.choices[0].message.content
                assert answer.choices[0].finish_reason == "stop"
                num_sampled = first_tokens_with(encode(says[0]), ["\nObservation:"])
                assert answer.usage.completion_tokens == num_sampled
            assert content == "Action: add 1"
            first = {"role": "assistant", "content": content}
            await ask(client, [QUESTION, first, {"role": "user", "content": "Observation: 1."}])
        trajectory = session.trajectory(reward=1.0)
    (segment,) = pack(trajectory)
    length = first_tokens_with(encode(says[0]), ["\nObservation:"]) or 0
    mask = list(segment.response_mask)
    assert list(segment.response_ids[:length]) == encode(says[0])[:length]
    assert mask[: length + 1] == [1] * length + [0]  # the end of the turn was not sampled
    assert sum(mask) == length + len(encode(says[1])) + 1
    assert "Observation:<|im_end|>\n<|im_start|>user\nObservation: 1.<|im_end|>" in toy_tokenizer().decode(
        segment.response_ids
    )
    assert trajectory.turns[0].text == "Action: add 1"
    assert trajectory.turns[0].completion.finish_reason is FinishReason.CUT
    assert trajectory.metrics["other_sampling"] == 0


async def test_a_stop_text_within_a_token_leaves_that_token_whole() -> None:
    (token,) = encode(" total")
    gateway = make_gateway(make_sampler(["the total is"]))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            assert (await ask(client, [QUESTION], stop="ot")).content == "the t"
        (turn,) = session.trajectory().turns
    assert turn.completion.token_ids == (*encode("the"), token)


async def test_calls_are_read_in_what_stands_before_a_stop_text() -> None:
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "iron"}}\n'
    gateway = make_gateway(make_sampler([f"{call}</tool_call> and more", "Done."]))
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            first = await ask(client, [QUESTION], tools=[SEARCH], stop=["</tool_call>"])
            assert [call.function.name for call in first.tool_calls] == ["search"]
            cut_completion = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "Iron: 5."}
            await ask(client, [QUESTION, to_history(first), cut_completion], tools=[SEARCH])
        assert len(pack(session.trajectory())) == 1


@settings(max_examples=examples(60))
@given(seed=st.integers(0, 10_000), turns=st.integers(1, 5))
def test_whatever_stops_what_is_trained_on_is_what_was_sampled(seed: int, turns: int) -> None:
    """Stop texts out of random tokens' own texts, many of them within tokens or characters."""

    async def work() -> None:
        random_source = random.Random(seed)
        sampler = RandomSampler(seed)
        gateway = make_gateway(sampler, context_length=100_000)
        session = gateway.sessions.open(
            GatewaySession(
                policy=gateway.policy, item=ITEM, url="http://gateway", max_turns=1000, expires=False
            )
        )
        transport = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app))
        expected_samples: list[tuple[list[int], list[int]]] = []
        talk: list[Any] = [QUESTION]
        async with client_of(session.base_url, http_client=transport) as client:
            for _ in range(turns):
                ahead = copy.deepcopy(sampler)  # to know what it is about to say
                next_text = decode((await ahead.sample([], params=PARAMS, episode_id="")).token_ids)
                harmless = next_text.replace("\ufffd", "")
                start = random_source.randrange(len(harmless) + 1)
                stop = [harmless[start : start + random_source.randint(1, 3)] or "nothing of the kind"]
                answer = await ask(client, talk, stop=stop)
                prompt, ids = sampler.samples[-1]
                length = first_tokens_with(ids, stop)
                assert not any(stop_text in answer.content for stop_text in stop)
                assert answer.content == text_before(decode(ids[:length]), stop)
                expected_samples.append((prompt, ids[:length]))
                talk = [*talk, to_history(answer), QUESTION]
        trajectory = session.trajectory(reward=1.0)
        assert find_trained(trajectory) == expected_samples
        assert len(pack(trajectory)) == 1

    asyncio.run(work())


PARAMS = SamplingParams(max_tokens=200, stop_token_ids=(0,))


async def test_the_cpu_engine_ends_there_itself(tmp_path: Any) -> None:
    sampler = CpuSampler(save_tiny_model(tmp_path), context_length=256)
    try:
        params = SamplingParams(max_tokens=60, stop_token_ids=(toy_tokenizer().eos_token_id,))
        num_stopped = 0
        for number in range(12):
            name, prompt = f"{number}", encode(f"the total is {number}")
            whole = await sampler.sample(prompt, params=params, episode_id=name)
            readable = [run for run in decode(whole.token_ids).split("\ufffd") if run]
            if not readable:  # random tokens are hardly text
                continue
            num_stopped += 1
            stop = (readable[len(readable) // 2][:2],)
            stopped_sample = await sampler.sample(
                prompt,
                params=SamplingParams(max_tokens=60, stop_token_ids=params.stop_token_ids, stop=stop),
                episode_id=name,
            )
            expected_sample = cut_at_stop(whole, stop, decode=decode)
            assert stopped_sample.token_ids == expected_sample.token_ids
            assert stopped_sample.finish_reason is FinishReason.CUT
            assert len(stopped_sample.token_ids) < len(whole.token_ids)
        assert num_stopped >= 6
    finally:
        sampler.close()
