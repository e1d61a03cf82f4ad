"""What counts as equal, and how differences are shown: numbers by hand."""

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tasks.reporting.reproduction import ComparisonLine, compare_reproduction
from tasks.tracking.lineage_record import LineageRecord
from tasks.tracking.references import FoundRun
from tests.support.lineage_toy import lineage_of

COUNTS = {"episodes": 4, "dropped": 0}
EVALUATION = {
    "before": {"sampled": {"success": 0.25, "turns": 3.5, **COUNTS}, "greedy": COUNTS},
    "after": {"sampled": {"success": 0.5, **COUNTS}, "greedy": COUNTS},
}
STEPS = [{"step": 1, "reward": 0.5, "kl": 0.1, "seconds": 1.0}, {"step": 2, "reward": 0.75, "kl": 0.2}]
LINEAGE = lineage_of(Path("runs/toy"))


def write_run(
    folder: Path,
    *,
    evaluation: Any = EVALUATION,
    steps: Sequence[Any] = STEPS,
    lineage: LineageRecord = LINEAGE,
) -> FoundRun:
    (folder / "train").mkdir(parents=True)
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "train" / "metrics.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    return FoundRun(reference=str(folder), lineage=lineage, folder=folder, is_workspace=True, run_id=None)


def compare(
    *, evaluation: Any = EVALUATION, steps: Sequence[Any] = STEPS, lineage: LineageRecord = LINEAGE
) -> tuple[bool, dict[str, ComparisonLine]]:
    with TemporaryDirectory() as first, TemporaryDirectory() as second:
        other = write_run(Path(second), evaluation=evaluation, steps=steps, lineage=lineage)
        comparison = compare_reproduction(write_run(Path(first)), other)
    return comparison.is_equal, {line.name.strip(): line for line in comparison.lines}


def test_equal_runs() -> None:
    is_equal, lines = compare()
    assert is_equal
    assert lines["training"].cells == ("training", "2 steps", "2 steps", "2 metrics equal")
    assert lines["evaluation"].cells == ("evaluation", "11 figures", "11 figures", "equal")
    assert lines["after sampled success"].cells[1:] == ("0.5", "0.5", "equal")
    assert "before sampled turns" not in lines


def test_clocks_and_the_load_of_the_machine_decide_nothing() -> None:
    steps = [
        {**step, "seconds": 9.0, "seconds_update": 2.0, "tokens_per_s": 7, "envs_live/toy": 3}
        for step in STEPS
    ]
    assert compare(steps=steps)[0]


def test_the_smallest_difference_is_one_and_the_first_step_of_each_metric_is_shown() -> None:
    last_bit = 0.5 + 2**-53
    steps = [{**STEPS[0], "reward": last_bit}, {**STEPS[1], "reward": 0.5, "kl": 0.3}]
    is_equal, lines = compare(steps=steps)
    assert not is_equal
    assert lines["training"].difference == "2 of 2 metrics differ"
    assert lines["reward, step 1"].difference == "+1.11022e-16"
    assert lines["kl, step 2"].cells[1:] == ("0.2", "0.3", "+0.1")
    assert list(lines)[list(lines).index("training") + 1] == "reward, step 1", "the first difference is first"
    assert "reward, step 2" not in lines


def test_not_a_number_equals_itself_alone(tmp_path: Path) -> None:
    first = write_run(tmp_path / "first", steps=[{"step": 1, "reward": float("nan")}])
    assert compare_reproduction(first, first).is_equal
    number = write_run(tmp_path / "number", steps=[{"step": 1, "reward": 0.0}])
    assert not compare_reproduction(first, number).is_equal


def test_missing_steps_metrics_and_figures_are_differences() -> None:
    is_equal, lines = compare(steps=STEPS[:1])
    assert not is_equal
    assert lines["reward, step 2"].cells[1:] == ("0.75", "missing", "other value")
    assert not compare(steps=[STEPS[0], {"step": 2, "reward": 0.75}])[0]
    is_equal, lines = compare(evaluation={**EVALUATION, "after": {"sampled": COUNTS, "greedy": COUNTS}})
    assert not is_equal
    assert lines["after sampled success"].cells[1:] == ("0.5", "missing", "other value")


def test_parameters_data_and_items_decide_and_bytes_of_a_policy_do_not() -> None:
    other_parameters = {**LINEAGE.parameters, "train": {"lr": 0.25}}
    is_equal, lines = compare(lineage=LINEAGE.model_copy(update={"parameters": other_parameters}))
    assert not is_equal
    assert lines["train.lr"].cells[1:] == ("0.5", "0.25", "other value")
    is_equal, lines = compare(lineage=LINEAGE.model_copy(update={"data": {"models/base": "6" * 32}}))
    assert not is_equal
    assert lines["data: models/base"].cells[1:] == ("4444444444", "6666666666", "other content")

    def with_stage(name: str, **changes: Any) -> LineageRecord:
        stage = LINEAGE.stages[name].model_copy(update=changes)
        return LINEAGE.model_copy(update={"stages": {**LINEAGE.stages, name: stage}})

    assert not compare(lineage=with_stage("prepare", writes={"data/test.jsonl": "6" * 32}))[0]
    is_equal, lines = compare(lineage=with_stage("train", writes={"policy": "6" * 32}))
    assert is_equal
    assert lines["policy"].difference == "other content"
    is_equal, lines = compare(lineage=with_stage("train", reads={"envs": "6" * 32}))
    assert is_equal
    assert lines["read: envs"].cells[1:] == ("2222222222", "6666666666", "other content")
    reads = [f"module_{number}" for number in range(20)]
    first, second = (with_stage("train", reads=dict.fromkeys(reads, digit * 32)) for digit in "67")
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        runs = [write_run(Path(one), lineage=first), write_run(Path(other), lineage=second)]
        names = [line.name for line in compare_reproduction(*runs).lines]
    assert [name for name in names if name.startswith("read: module")] == [f"read: {name}" for name in reads]
