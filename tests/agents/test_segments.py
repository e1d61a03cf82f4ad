"""A context that grows: segments in which all that was sampled trains, once, on what was shown."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.agent import FormatAgent
from agents.rollout.conversation import SUMMARY_HEADING, SUMMARY_REQUEST, ContextPolicy, shorten_middle
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler, ScriptedSampler
from agents.types import Completion, EpisodeLimits, FinishReason, SamplingParams, StopReason, Trajectory
from envs.types import Image, StepResult
from tests.support.examples import examples
from tests.support.tool_templates import with_template
from tests.support.toy import CHATML, ToyEnv, encode, toy_tokenizer
from tests.support.toy_episode import play_toy

LIMITS = EpisodeLimits(
    max_turns=12, max_tokens_per_turn=60, context_length=330, episode_timeout_s=5, step_timeout_s=5
)


class Recorder:
    """Hands every call on, and notes what was shown and what was sampled."""

    def __init__(self, inner: Sampler) -> None:
        self.inner = inner
        self.prompts: list[list[int]] = []
        self.completions: list[tuple[int, ...]] = []

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.prompts.append(list(prompt_ids))
        completion = await self.inner.sample(prompt_ids, images=images, params=params, episode_id=episode_id)
        self.completions.append(completion.token_ids)
        return completion


class RandomWords:
    """Actions, thoughts and summaries of random length, some without an end of turn."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        rng = self._rng
        thoughts = "total " * rng.randint(0, 9)
        thoughts = f"<think>{thoughts}</think>" if rng.random() < 0.6 else thoughts
        ids = encode(f"{thoughts}\n\nAction: add 0")[: params.max_tokens - 1]
        ids += [rng.choice([params.stop_token_ids[0], encode("!")[0]])]
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(-rng.random() for _ in ids),
            finish_reason=FinishReason.STOP,
            policy_version=rng.randint(0, 3),
        )


def play_policy(
    sampler: Sampler, policy: ContextPolicy, *, limits: EpisodeLimits = LIMITS, tokenizer: Any = None
) -> Trajectory:
    agent = FormatAgent("action")
    return asyncio.run(play_toy(sampler, agent=agent, limits=limits, context=policy, tokenizer=tokenizer))


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10**6),
    when_full=st.sampled_from(["stop", "summarize", "drop"]),
    keep_thoughts=st.booleans(),
    budget=st.booleans(),
)
def test_what_was_sampled_trains_once_on_what_was_shown(
    seed: int, when_full: Literal["stop", "summarize", "drop"], keep_thoughts: bool, budget: bool
) -> None:
    policy = ContextPolicy(when_full=when_full, keep_thoughts=keep_thoughts, show_budget=budget)
    sampler = Recorder(RandomWords(seed))
    trajectory = play_policy(sampler, policy)
    segments = pack(trajectory)

    trained_ids = [
        [i for i, m in zip(segment.response_ids, segment.response_mask, strict=True) if m]
        for segment in segments
    ]
    assert [i for ids in trained_ids for i in ids] == [i for ids in sampler.completions for i in ids]
    # each completion was sampled on the whole of its segment that comes before it
    contexts = [
        [*segment.prompt_ids, *segment.response_ids[:start]]
        for segment in segments
        for start, mask in enumerate(segment.response_mask)
        if mask and (start == 0 or not segment.response_mask[start - 1])
    ]
    assert contexts == sampler.prompts
    assert all(len(s.prompt_ids) + len(s.response_ids) <= LIMITS.context_length for s in segments)
    assert trajectory.metrics["segments"] == len(segments)


def test_folding_by_hand() -> None:
    """The policy is asked for a summary, and goes on with the opening and that alone."""
    long = "Thought: the total is now, the total is now, the total is now\nAction: add 1"
    sampler = Recorder(
        ScriptedSampler(
            [long, long, "The total is 2. Add 1.", "Action: add 1"], encode=encode, policy_version=1
        )
    )
    # 25 tokens, and 50 with each turn
    limits = replace(LIMITS, context_length=600)
    trajectory = play_policy(sampler, ContextPolicy(when_full="summarize", summarize_at=0.18), limits=limits)
    assert trajectory.success
    assert [t.action for t in trajectory.turns] == ["add 1", "add 1", "", "add 1"]
    assert [t.state for t in trajectory.turns] == ["0", "1", None, "2"]
    decode = toy_tokenizer().decode
    assert decode(sampler.prompts[2]).endswith(
        f"The total is 2.\n\n{SUMMARY_REQUEST}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert decode(sampler.prompts[3]) == (
        f"<|im_start|>user\nGoal: reach 3.\n\n{SUMMARY_HEADING}\nThe total is 2. Add 1.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert len(pack(trajectory)) == 2


def test_a_thought_that_the_template_opens_is_closed_in_later_turns() -> None:
    tokenizer = with_template(CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif"))
    turn = "one more</think>Action: add 1"
    sampler = Recorder(ScriptedSampler([turn, turn, turn], encode=encode))
    trajectory = play_policy(sampler, ContextPolicy(keep_thoughts=False), tokenizer=tokenizer)
    assert trajectory.success
    last_prompt = toy_tokenizer().decode(sampler.prompts[-1])
    assert last_prompt.count("<|im_start|>assistant\n<think>\n</think>Action: add 1<|im_end|>") == 2
    assert "one more" not in last_prompt


@pytest.mark.parametrize("keep_thoughts", [True, False])
def test_a_summary_is_requested_as_a_whole_and_leaves_dropped_thoughts_out(keep_thoughts: bool) -> None:
    long = "Thought: the total is now, the total is now, the total is now\nAction: add 1"
    summary = "<think>the total is, I think, 2</think>The total is 2. Add 1."
    sampler = Recorder(ScriptedSampler([long, long, summary, "Action: add 1"], encode=encode))
    limits = replace(LIMITS, context_length=600)
    policy = ContextPolicy(
        when_full="summarize", summarize_at=0.18, max_observation=4, keep_thoughts=keep_thoughts
    )
    assert play_policy(sampler, policy, limits=limits).success
    decode = toy_tokenizer().decode
    assert f"\n\n{SUMMARY_REQUEST}<|im_end|>" in decode(sampler.prompts[2])
    assert ("I think" in decode(sampler.prompts[3])) == keep_thoughts
    assert "\nThe total is 2. Add 1.<" in decode(sampler.prompts[3]) or keep_thoughts


class Verbose(ToyEnv):
    """Answers with a text of `num_words` words."""

    def __init__(self, num_words: int) -> None:
        super().__init__()
        self._num_words = num_words

    async def step(self, action: str) -> StepResult:
        return replace(await super().step(action), observation="total " * self._num_words)


@pytest.mark.parametrize("when_full", ["stop", "drop", "summarize"])
@pytest.mark.parametrize("num_words", [400, 700_000])  # the latter has 4 MB, which are not encoded
async def test_an_observation_longer_than_the_context_ends_the_episode(
    when_full: Literal["stop", "drop", "summarize"], num_words: int
) -> None:
    trajectory = await play_toy(
        ScriptedSampler(["Action: add 1"], encode=encode),
        agent=FormatAgent("action"),
        limits=LIMITS,
        context=ContextPolicy(when_full=when_full),
        env=Verbose(num_words),
    )
    assert (trajectory.stop_reason, len(trajectory.turns)) == (StopReason.MAX_CONTEXT, 1)
    assert trajectory.turns[0].observation == "total " * num_words
    assert trajectory.turns[0].observation_ids == ()


def test_dropping_keeps_the_opening_and_the_latest_turns() -> None:
    texts = [f"Thought: turn {number} of the total\nAction: add 0" for number in range(12)]
    sampler = Recorder(ScriptedSampler(texts, encode=encode))
    trajectory = play_policy(sampler, ContextPolicy(when_full="drop"))
    assert trajectory.stop_reason is StopReason.MAX_TURNS
    assert (
        play_policy(ScriptedSampler(texts, encode=encode), ContextPolicy()).stop_reason
        is StopReason.MAX_CONTEXT
    )
    last = toy_tokenizer().decode(sampler.prompts[-1])
    assert last.startswith(
        "<|im_start|>user\nGoal: reach 3.<|im_end|>\n<|im_start|>assistant\nThought: turn "
    )
    assert "turn 10 of" in last
    assert "turn 0 of" not in last


def test_dropped_thoughts_leave_their_tail_as_it_was_sampled() -> None:
    texts = ["<think>one, so</think>\nAction: add 1", "<think>two</think>\nAction: add 2"]
    sampler = Recorder(ScriptedSampler(texts, encode=encode))
    trajectory = play_policy(sampler, ContextPolicy(keep_thoughts=False))
    first, second = sampler.prompts
    assert toy_tokenizer().decode(second[len(first) :]) == (
        "\nAction: add 1<|im_end|>\n<|im_start|>user\nThe total is 1.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [len(s.response_ids) for s in pack(trajectory)] == [len(ids) for ids in sampler.completions]


@pytest.mark.parametrize("most", [100, 101])
def test_long_replies_lose_their_middle(most: int) -> None:
    text = "a" * 80 + "b" * 80
    cut = shorten_middle(text, most)
    assert cut.startswith("a" * 50)
    assert cut.endswith("b" * (most // 2))
    assert f"{160 - most} characters left out" in cut
    assert shorten_middle(text, 160) == text


def test_the_budget_is_shown() -> None:
    sampler = Recorder(ScriptedSampler(["Action: add 1", "Action: add 2"], encode=encode))
    play_policy(sampler, ContextPolicy(show_budget=True))
    shown_text = toy_tokenizer(CHATML).decode(sampler.prompts[1])
    left = LIMITS.context_length - len(sampler.prompts[0]) - len(sampler.completions[0])
    assert f"The total is 1.\n\n[left: about {left} tokens, 11 turns]<|im_end|>" in shown_text
