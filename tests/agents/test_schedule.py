"""The horizon, against tables and decisions written by hand."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agents.horizon import Horizon, HorizonEvidence, RaiseRule, anneal

STAGES = Horizon(type="scaling_inter_stepwise", max_turns=[10, 20, 30], steps_per_stage=100)


@pytest.mark.parametrize(
    ("step", "turns"),
    [
        (1, 10),
        (99, 10),
        (100, 10),
        (101, 20),
        (102, 20),
        (200, 20),
        (201, 30),
        (300, 30),
        (301, 30),
        (9999, 30),
    ],
)
def test_stepwise_table(step: int, turns: int) -> None:
    assert STAGES.max_turns_at(step) == turns


def test_resuming_at_100_skips_no_stage() -> None:
    # AgentGym-RL's scheduler, resumed at 100, gives stage 2 at step 101 and stage 3 at 102.
    assert [STAGES.max_turns_at(step) for step in range(101, 203)] == [20] * 100 + [30] * 2


@pytest.mark.parametrize("step", [1, 100, 100_000])
def test_fixed_never_changes(step: int) -> None:
    assert Horizon(type="fixed", max_turns=[15]).max_turns_at(step) == 15


@given(
    horizon=st.sampled_from(
        [
            STAGES,
            Horizon(type="fixed", max_turns=[7]),
            Horizon(type="linear", max_turns=[4, 19], steps=40),
            Horizon(type="adaptive", max_turns=[5, 8, 12], raise_when=RaiseRule(window=2, min_steps=9)),
        ]
    ),
    steps=st.integers(1, 320),
)
def test_the_highest_horizon_is_that_of_episodes_which_all_ask_for_more(horizon: Horizon, steps: int) -> None:
    evidence: list[HorizonEvidence] = []
    for step in range(1, steps + 1):
        turns = horizon.max_turns_at(step, evidence)
        evidence.append(HorizonEvidence(max_turns=turns, episodes=8, capped=8, successes=0))
    assert horizon.highest_within(steps) == turns


@pytest.mark.parametrize("step", [0, -3])
def test_steps_are_counted_from_1(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step}"):
        STAGES.max_turns_at(step)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"type": "fixed", "max_turns": []}, "at least 1"),
        ({"type": "scaling_inter_stepwise", "max_turns": [], "steps_per_stage": 10}, "at least 1"),
        ({"type": "scaling_inter_stepwise", "max_turns": [5, 8]}, "needs steps_per_stage"),
        ({"type": "scaling_inter_stepwise", "max_turns": [5, 8], "steps_per_stage": 0}, "equal to 1"),
        ({"type": "scaling_inter_stepwise", "max_turns": [8, 5], "steps_per_stage": 1}, "must not fall"),
        ({"type": "fixed", "max_turns": [5, 8]}, "use type: scaling_inter_stepwise"),
        ({"type": "fixed", "max_turns": [5], "steps": 9}, "steps is for type: linear; leave it out"),
        ({"type": "fixed", "max_turns": [5], "raise_when": {}}, "raise_when is for type: adaptive"),
        ({"type": "linear", "max_turns": [5, 8]}, "linear needs steps"),
        ({"type": "linear", "max_turns": [5, 6, 8], "steps": 9}, "the first and the last value"),
        ({"type": "linear", "max_turns": [5, 8], "steps": 1}, "equal to 2"),
        ({"type": "adaptive", "max_turns": [5]}, "two or more values"),
        ({"type": "adaptive", "max_turns": [5, 5, 8]}, "each once"),
        ({"type": "adaptive", "max_turns": [5, 8], "steps_per_stage": 3}, "steps_per_stage is for"),
        ({"type": "adaptive", "max_turns": [5, 8], "raise_when": {"window": 6}}, "two windows of 6"),
        ({"type": "adaptive", "max_turns": [5, 8], "raise_when": {"max_steps": 9}}, "less than min_steps 10"),
    ],
)
def test_invalid_schedules_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Horizon(**values)


def test_linear_table() -> None:
    rising = Horizon(type="linear", max_turns=[10, 16], steps=13)  # a turn every second step
    assert [rising.max_turns_at(step) for step in range(1, 16)] == [
        *(10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15),
        *(16, 16, 16),
    ]
    steep = Horizon(type="linear", max_turns=[2, 9], steps=3)
    assert [steep.max_turns_at(step) for step in range(1, 5)] == [2, 5, 9, 9]


@given(first=st.integers(1, 40), rise=st.integers(0, 40), steps=st.integers(2, 50))
def test_linear_is_the_straight_line_rounded_down(first: int, rise: int, steps: int) -> None:
    rising = Horizon(type="linear", max_turns=[first, first + rise], steps=steps)
    turns = [rising.max_turns_at(step) for step in range(1, steps + 2)]
    assert (turns[0], turns[-2], turns[-1]) == (first, first + rise, first + rise)
    for step, value in enumerate(turns[:steps], start=1):
        assert 0 <= anneal(step, first=first, last=first + rise, steps=steps) - value < 1


SHORT = RaiseRule(window=2, min_gain=0.05, min_capped=0.25, min_steps=4, max_steps=7)
ADAPTIVE = Horizon(type="adaptive", max_turns=[5, 8, 12], raise_when=SHORT)


def evidence_of(max_turns: int, num_capped: int, successes: int, *, episodes: int = 20) -> HorizonEvidence:
    return HorizonEvidence(max_turns=max_turns, episodes=episodes, capped=num_capped, successes=successes)


def turns_after(evidence: Sequence[HorizonEvidence]) -> int:
    return ADAPTIVE.max_turns_at(len(evidence) + 1, evidence)


@pytest.mark.parametrize(
    ("evidence", "turns"),
    [
        ([evidence_of(5, 10, 5)] * 3, 5),  # min_steps 4
        ([evidence_of(5, 10, 5)] * 4, 8),  # level at 5 of 10, and half of the episodes capped
        (
            [evidence_of(5, 10, 5)] * 2 + [evidence_of(5, 10, 6)] * 2,
            5,
        ),  # 50% -> 60% is a gain of min_gain at least
        ([evidence_of(5, 10, 6)] * 2 + [evidence_of(5, 10, 5)] * 2, 8),  # a fall is no gain
        ([evidence_of(5, 4, 8)] * 4, 5),  # only 20% capped
        ([evidence_of(5, 5, 8)] * 4, 8),  # 25% capped
        ([evidence_of(5, 0, 20)] * 7, 8),  # max_steps, though none was capped
        ([evidence_of(5, 20, 0)] * 4, 8),  # nothing ends within 5 turns
        ([evidence_of(5, 20, 0)] * 2 + [evidence_of(5, 10, 5)] * 2, 5),  # some begin to
        ([evidence_of(5, 0, 0, episodes=0)] * 5, 5),  # a part without items in these steps
        ([evidence_of(5, 10, 5)] * 4 + [evidence_of(8, 10, 5)] * 4, 12),
        ([evidence_of(5, 10, 5)] * 4 + [evidence_of(8, 10, 5)] * 3, 8),  # each stage has its own steps
        (
            [evidence_of(5, 10, 5)] * 4 + [evidence_of(5, 10, 5)] + [evidence_of(8, 10, 5)] * 3,
            8,
        ),  # 5 turns: sampled too early
        (
            [evidence_of(5, 10, 5)] * 4 + [evidence_of(8, 10, 5)] * 4 + [evidence_of(12, 10, 5)] * 9,
            12,
        ),  # the last stays
    ],
)
def test_the_horizon_is_raised_when_success_is_level_and_enough_episodes_hit_it(
    evidence: list[HorizonEvidence], turns: int
) -> None:
    assert turns_after(evidence) == turns


def test_the_rule_is_written_out_where_it_is_left_out() -> None:
    left_out = Horizon(type="adaptive", max_turns=[5, 8])
    assert left_out.raise_when == RaiseRule()
    assert Horizon.model_validate(left_out.model_dump()) == left_out
    assert Horizon(type="fixed", max_turns=[5]).raise_when is None


def test_a_raise_says_when_and_why() -> None:
    evidence = [evidence_of(5, 10, 5)] * 2 + [evidence_of(5, 8, 6)] * 2 + [evidence_of(8, 0, 20)] * 7
    first, second = ADAPTIVE.list_raises(evidence)
    assert (first.step, first.max_turns) == (5, 8)
    assert first.reason == (
        "success within 5 turns has levelled off (50.0% → 50.0% over 2 steps), and the horizon ended 40.0% "
        "of the episodes"
    )
    assert (second.step, second.max_turns) == (12, 12)
    fall = [evidence_of(5, 10, 10)] * 2 + [evidence_of(5, 10, 0)] * 2
    [after_fall] = ADAPTIVE.list_raises(fall)
    assert after_fall.reason.startswith("success within 5 turns has fallen (100.0% → 0.0% over 2 steps), and")
    small_fall = [evidence_of(5, 100, 51, episodes=200)] * 2 + [evidence_of(5, 100, 50, episodes=200)] * 2
    [after_small_fall] = ADAPTIVE.list_raises(small_fall)
    assert after_small_fall.reason.startswith("success within 5 turns has levelled off (51.0% → 50.0% over")
    assert second.reason == "the stage has had 7 steps (max_steps)"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40))
def test_decisions_are_final_and_follow_from_the_record_alone(numbers: list[tuple[int, int]]) -> None:
    """As a run makes them, step by step, and as a resumed run makes them again from the record."""
    evidence: list[HorizonEvidence] = []
    for num_capped, successes in numbers:
        evidence.append(evidence_of(turns_after(evidence), num_capped, min(successes, 20 - num_capped)))
    raises = ADAPTIVE.list_raises(evidence)
    for count in range(len(evidence)):
        assert ADAPTIVE.list_raises(evidence[:count]) == [r for r in raises if r.step <= count + 1]
        assert evidence[count].max_turns == turns_after(evidence[:count])


@pytest.mark.parametrize(
    ("step", "temperature"), [(1, 1.3), (2, 1.2), (3, 1.1), (4, 1.0), (5, 1.0), (100, 1.0)]
)
def test_annealing_is_a_straight_line_and_then_constant(step: int, temperature: float) -> None:
    assert anneal(step, first=1.3, last=1.0, steps=4) == pytest.approx(temperature)


def test_annealing_over_one_step_is_where_it_begins() -> None:
    assert anneal(1, first=1.3, last=1.0, steps=1) == 1.3
    with pytest.raises(ValueError, match="step 0"):
        anneal(0, first=1.0, last=1.0, steps=4)
