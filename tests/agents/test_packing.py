"""Packing: one reference by hand, and the properties that keep training honest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.rollout.packing import pack, sampled_runs, segment_lengths
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from tests.support.toy import toy_item


def a_turn(
    completion_ids: list[int],
    observation_ids: list[int],
    *,
    logprobs: list[float] | None = None,
    version: int = 0,
    reward: float = 0.0,
    prompt: list[int] | None = None,
    previous: int | None = None,
    spans: tuple[tuple[int, int], ...] = (),
) -> Turn:
    completion = Completion(
        token_ids=tuple(completion_ids),
        logprobs=tuple(logprobs if logprobs is not None else [-0.5] * len(completion_ids)),
        finish_reason=FinishReason.STOP,
        policy_version=version,
    )
    return Turn(
        completion=completion,
        text="",
        action="",
        observation="",
        reward=reward,
        observation_ids=tuple(observation_ids),
        observation_spans=spans,
        prompt_ids=None if prompt is None else tuple(prompt),
        previous_turn=previous,
    )


def a_trajectory(
    turns: list[Turn], *, prompt: list[int], stop: StopReason = StopReason.MAX_TURNS
) -> Trajectory:
    return Trajectory(
        item=toy_item(7),
        sample_index=2,
        prompt_ids=tuple(prompt),
        turns=tuple(turns),
        stop_reason=stop,
        reward=sum(turn.reward for turn in turns),
        success=False,
        seconds=0.0,
        error="EnvCrashed: it broke" if stop is StopReason.ERROR else None,
    )


def test_by_hand() -> None:
    turns = [
        a_turn([11, 12, 13], [21, 22, 26], logprobs=[-0.1, -0.2, -0.3], version=4, spans=((1, 2),)),
        a_turn([14], [23], logprobs=[-0.4], version=4, reward=0.25),
        # its observation trails
        a_turn([15, 16], [24, 25], logprobs=[-0.5, -0.6], version=5, reward=0.75, spans=((0, 2),)),
    ]
    [segment] = pack(a_trajectory(turns, prompt=[1, 2]))
    assert segment.prompt_ids == (1, 2)
    assert segment.response_ids == (11, 12, 13, 21, 22, 26, 14, 23, 15, 16)
    assert segment.response_mask == (1, 1, 1, 0, 0, 0, 1, 0, 1, 1)
    assert segment.observation_mask == (0, 0, 0, 0, 1, 0, 0, 0, 0, 0)
    assert segment.logprobs == (-0.1, -0.2, -0.3, 0, 0, 0, -0.4, 0, -0.5, -0.6)
    assert segment.policy_versions == (4, 4, 4, 4, 4, 4, 4, 4, 5, 5)


def test_segments_by_hand() -> None:
    turns = [
        a_turn([11, 12], [21]),
        a_turn([13], [22]),
        a_turn([14, 15], [], prompt=[1, 9], version=1),
        a_turn([16], [23], prompt=[1, 8, 7]),
        a_turn([17], [24]),
    ]
    assert segment_lengths(a_trajectory(turns, prompt=[1, 2])) == [2 + 4, 2 + 2, 3 + 3]
    first, second, third = pack(a_trajectory(turns, prompt=[1, 2]))
    assert [s.prompt_ids for s in (first, second, third)] == [(1, 2), (1, 9), (1, 8, 7)]
    assert [s.response_ids for s in (first, second, third)] == [(11, 12, 21, 13), (14, 15), (16, 23, 17)]
    assert [s.response_mask for s in (first, second, third)] == [(1, 1, 0, 1), (1, 1), (1, 0, 1)]
    assert second.policy_versions == (1, 1)


def test_interleaved_segments_by_hand() -> None:
    turns = [
        a_turn([11, 12], [21]),
        a_turn([13], [22], prompt=[1, 9]),
        a_turn([14], [23], previous=0),
        a_turn([15], []),  # continues the turn before it
        a_turn([16, 17], [], previous=1),
        a_turn([18], [], prompt=[1]),
    ]
    trajectory = a_trajectory(turns, prompt=[1, 2])
    segments = pack(trajectory)
    assert [s.prompt_ids for s in segments] == [(1, 2), (1, 9), (1,)]
    assert [s.response_ids for s in segments] == [(11, 12, 21, 14, 23, 15), (13, 22, 16, 17), (18,)]
    assert [s.response_mask for s in segments] == [(1, 1, 0, 1, 0, 1), (1, 0, 1, 1), (1,)]
    assert segment_lengths(trajectory) == [2 + 6, 2 + 4, 1 + 1]
    sampled_ids = [(11, 12, 14, 15), (13, 16, 17), (18,)]
    runs = [sampled_ids[number][run] for number, run in sampled_runs(turns)]
    assert runs == [(11, 12), (13,), (14, 15), (16, 17), (18,)]


def test_packing_leaves_the_trajectory_as_it_was() -> None:
    turns = [a_turn([11], [21]), a_turn([12], [])]
    pack(a_trajectory(turns, prompt=[1]))
    assert [t.completion.token_ids for t in turns] == [(11,), (12,)]
    assert [t.observation_ids for t in turns] == [(21,), ()]


def test_an_error_never_trains() -> None:
    failure = a_trajectory([a_turn([11], [])], prompt=[1], stop=StopReason.ERROR)
    with pytest.raises(ValueError, match=r"toy_7, sample 2.*it broke"):
        pack(failure)


@pytest.mark.parametrize("turns", [[], [a_turn([11], [21]), a_turn([], [])]])
def test_nothing_to_carry_the_reward_is_refused(turns: list[Turn]) -> None:
    with pytest.raises(ValueError, match="carry the reward"):
        pack(a_trajectory(turns, prompt=[1]))


def test_misaligned_logprobs_are_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 log-probs"):
        pack(a_trajectory([a_turn([11, 12], [], logprobs=[-0.1])], prompt=[1]))


# Who made a token can be read off its value: the policy's are negative here, all others positive.
theirs = st.lists(st.integers(min_value=0, max_value=999), max_size=6)
ours = st.lists(st.integers(min_value=-999, max_value=-1), min_size=1, max_size=6)


@given(prompt=theirs, steps=st.lists(st.tuples(ours, theirs, st.integers(0, 9)), min_size=1, max_size=8))
def test_only_sampled_tokens_train(prompt: list[int], steps: list[tuple[list[int], list[int], int]]) -> None:
    # a token's log-prob is a function of its id, so that any shift between the lists shows
    turns = [
        a_turn(completion_ids, observation_ids, logprobs=[i / 7 for i in completion_ids], version=version)
        for completion_ids, observation_ids, version in steps
    ]
    [segment] = pack(a_trajectory(turns, prompt=prompt))

    length = len(segment.response_ids)
    per_token = (segment.response_mask, segment.logprobs, segment.policy_versions)
    assert [len(values) for values in per_token] == [length] * 3
    assert segment.prompt_ids == tuple(prompt)
    assert segment.response_mask == tuple(int(i < 0) for i in segment.response_ids)
    trained_ids = [i for i, m in zip(segment.response_ids, segment.response_mask, strict=True) if m]
    assert trained_ids == [i for completion_ids, _, _ in steps for i in completion_ids]
    assert list(segment.logprobs) == [i / 7 if i < 0 else 0.0 for i in segment.response_ids]
    assert segment.response_mask[-1] == 1
    last_length = len(steps[-1][0])
    assert segment.policy_versions[-last_length:] == (steps[-1][2],) * last_length
