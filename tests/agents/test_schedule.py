"""The horizon, against a table written by hand from AgentGym-RL's rule."""

import pytest

from agents.horizon import annealed, horizon

STAGES = [10, 20, 30]


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
    assert horizon(step, max_turns=STAGES, steps_per_stage=100) == turns


def test_resuming_at_100_skips_no_stage() -> None:
    # AgentGym-RL's scheduler, resumed at 100, gives stage 2 at step 101 and stage 3 at 102.
    resumed = [horizon(step, max_turns=STAGES, steps_per_stage=100) for step in range(101, 203)]
    assert resumed == [20] * 100 + [30] * 2


@pytest.mark.parametrize("step", [1, 100, 100_000])
def test_fixed_never_changes(step: int) -> None:
    assert horizon(step, max_turns=[15]) == 15


@pytest.mark.parametrize(
    ("step", "max_turns", "inter", "named"),
    [
        (0, [5], None, "step 0"),
        (-3, [5, 8], 10, "step -3"),
        (1, [], None, "empty"),
        (1, [], 10, "empty"),
        (1, [5, 8], None, "steps_per_stage"),
        (1, [5, 8], 0, "steps_per_stage 0"),
    ],
)
def test_what_is_no_schedule_is_refused(
    step: int, max_turns: list[int], inter: int | None, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        horizon(step, max_turns=max_turns, steps_per_stage=inter)


@pytest.mark.parametrize(("step", "expected"), [(1, 1.3), (2, 1.2), (3, 1.1), (4, 1.0), (5, 1.0), (100, 1.0)])
def test_annealing_is_a_straight_line_and_then_constant(step: int, expected: float) -> None:
    assert annealed(step, first=1.3, last=1.0, steps=4) == pytest.approx(expected)


def test_annealing_over_one_step_is_where_it_begins() -> None:
    assert annealed(1, first=1.3, last=1.0, steps=1) == 1.3
    with pytest.raises(ValueError, match="step 0"):
        annealed(0, first=1.0, last=1.0, steps=4)
