"""The arithmetic of `bench/study.py`, by hand."""

import math

import pytest

from agents.horizon import Horizon
from bench.study import STUDIES, T_QUANTILES, mean_interval, rows, schedules, sign_flip_p, success_at
from flows.cli.options import parse_settings
from tasks.config.pipelines import load_pipeline
from tasks.reporting.compare import RunSummary

CURVE = [(0.0, 0.2), (100.0, 0.4), (300.0, 0.8)]


@pytest.mark.parametrize(("steps", "success"), [(0, 0.2), (50, 0.3), (100, 0.4), (250, 0.7), (300, 0.8)])
def test_success_between_two_evaluations(steps: float, success: float) -> None:
    assert success_at(CURVE, steps) == pytest.approx(success)


def test_success_after_the_last_evaluation_is_not_known() -> None:
    with pytest.raises(ValueError, match="ends at 300"):
        success_at(CURVE, 301)


def test_the_sign_flip_test_by_hand() -> None:
    assert sign_flip_p([0.1, 0.2, 0.3]) == 2 / 8  # +++ and ---
    assert sign_flip_p([0.1, 0.2, -0.3]) == 1.0
    assert sign_flip_p([0.1, -0.2, 0.4]) == 6 / 8  # sums: ±0.1, ±0.3, ±0.5, ±0.7; 0.3 is observed
    assert sign_flip_p([0.0, 0.0]) == 1.0


def test_the_interval_of_a_mean() -> None:
    low, high = mean_interval([0.5, 0.6, 0.7])
    assert (low, high) == pytest.approx((0.6 - 4.303 * 0.1 / 3**0.5, 0.6 + 4.303 * 0.1 / 3**0.5), abs=1e-4)


@pytest.mark.parametrize("degrees", range(1, 10))
def test_the_quantiles_hold_95_percent_of_student_s_t(degrees: int) -> None:
    """Its density, integrated by the midpoint rule."""
    scale = math.gamma((degrees + 1) / 2) / math.sqrt(degrees * math.pi) / math.gamma(degrees / 2)
    width = T_QUANTILES[degrees - 1] / 2000
    points = ((i + 0.5) * width for i in range(2000))
    inside = 2 * sum(scale * (1 + x * x / degrees) ** (-(degrees + 1) / 2) * width for x in points)
    assert inside == pytest.approx(0.95, abs=1e-5)


def test_all_schedules_go_from_the_first_to_the_last_value() -> None:
    horizons = {name: Horizon.model_validate(b) for name, b in schedules([10, 13, 16], steps=50).items()}
    first_last = {name: (h.max_turns_at(1), h.max_turns_at(50)) for name, h in horizons.items()}
    assert first_last == {
        "stepwise": (10, 16),
        "linear": (10, 16),
        "adaptive": (10, 10),  # without evidence
        "fixed-short": (10, 10),
        "fixed-long": (16, 16),
    }


@pytest.mark.parametrize("study", STUDIES)
def test_every_variant_is_one_that_the_pipeline_takes(study: str) -> None:
    variants = STUDIES[study](load_pipeline("textcraft-cpu"))
    pipelines = [
        load_pipeline("textcraft-cpu", overrides=parse_settings(options)) for options in variants.values()
    ]
    assert len({pipeline.model_dump_json() for pipeline in pipelines}) == len(variants)


def summary(name: str, *, steps: float, after: float) -> RunSummary:
    curve = [(0.0, 0.2), (steps, after)]
    return RunSummary(
        name=name, setting=name, seeds=1, horizon="", environment_steps=steps, seconds=0.0, before=0.2,
        after=after, gain=after - 0.2, greedy=0.0, by_depth={}, curve=curve,
    )  # fmt: skip


def test_variants_are_compared_where_the_cheapest_run_ends() -> None:
    runs = {
        "stepwise": {seed: summary("stepwise", steps=200, after=0.6 + seed / 10) for seed in (0, 1)},
        "fixed-short": {seed: summary("fixed-short", steps=100, after=0.3) for seed in (0, 1)},
    }
    reference, short = rows(runs, reference="stepwise")  # it has 0.4 and 0.45 after 100 steps
    assert reference[:3] == ["stepwise", "2", "0.200"]
    assert reference[3].startswith("0.650 [")
    assert reference[4:6] == ["+40.0", "200"]
    assert reference[6].startswith("0.425 [")
    assert reference[7:] == ["-", "-"]
    assert short[4:7] == ["+10.0", "100", "0.300 [0.300, 0.300]"]
    assert short[7].startswith("-0.125 [")
    assert short[8] == "0.500"
