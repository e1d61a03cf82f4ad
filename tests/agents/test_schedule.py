"""The horizon, against a table written by hand from AgentGym-RL's rule."""

from typing import Any

import pytest
from pydantic import ValidationError

from agents.horizon import Horizon, anneal

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
    ],
)
def test_invalid_schedules_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Horizon(**values)


@pytest.mark.parametrize(("step", "expected"), [(1, 1.3), (2, 1.2), (3, 1.1), (4, 1.0), (5, 1.0), (100, 1.0)])
def test_annealing_is_a_straight_line_and_then_constant(step: int, expected: float) -> None:
    assert anneal(step, first=1.3, last=1.0, steps=4) == pytest.approx(expected)


def test_annealing_over_one_step_is_where_it_begins() -> None:
    assert anneal(1, first=1.3, last=1.0, steps=1) == 1.3
    with pytest.raises(ValueError, match="step 0"):
        anneal(0, first=1.0, last=1.0, steps=4)
