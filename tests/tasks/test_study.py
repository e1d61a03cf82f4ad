"""The arithmetic of `bench/study.py`, by hand, and the runs that it plans."""

from pathlib import Path

import pytest

from agents.horizon import Horizon
from bench.study import STUDIES, StudyRun, plan_study, rows, schedules
from flows.cli.options import parse_settings
from tasks.config.pipelines import load_pipeline


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


@pytest.mark.parametrize(
    ("pipeline", "settings", "stages"),
    [
        ("textcraft-cpu", ["horizon.steps_per_stage=8"], [10, 16, 26]),
        (
            "babyai-cpu",
            ["horizon={type: scaling_inter_stepwise, max_turns: [5, 8, 10], steps_per_stage: 12}"],
            [5, 8, 10],
        ),
    ],
)
def test_a_study_of_horizons_takes_its_stages_from_the_settings(
    pipeline: str, settings: list[str], stages: list[int], tmp_path: Path
) -> None:
    plan = plan_study(
        "horizons",
        pipeline,
        folder=tmp_path,
        seeds=[0],
        only=["stepwise", "fixed-short", "fixed-long"],
        items=20,
        settings=["train.steps=24", "train.steps_per_round=8", "train.save_every=8", *settings],
        if_changed="refuse",
    )
    horizons = {run.name: run.pipeline.horizon for run in plan.runs}
    assert {name: horizon.max_turns for name, horizon in horizons.items()} == {
        "stepwise-seed0": stages,
        "fixed-short-seed0": stages[:1],
        "fixed-long-seed0": stages[-1:],
    }
    assert horizons["stepwise-seed0"].steps_per_stage == 8


def run(*, steps: float, after: float) -> StudyRun:
    return StudyRun(before=0.2, after=after, curve=[(0.0, 0.2), (steps, after)])


def test_variants_are_compared_where_the_cheapest_run_ends() -> None:
    runs = {
        "stepwise": {seed: run(steps=200, after=0.6 + seed / 10) for seed in (0, 1)},
        "fixed-short": {seed: run(steps=100, after=0.3) for seed in (0, 1)},
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
