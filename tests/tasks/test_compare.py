"""The comparison of runs against a table done by hand."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from envs.errors import ConfigError
from flows.cli.app import app
from tasks.reporting.compare import compare, read_run
from tasks.stages.report import report
from tests.support.html_page import Page
from tests.support.report_toy import toy_pipeline, write_rounds, write_training, write_workspace

BEFORE = [(0, 1), (1, 0), (0, 0), (0, 0)]  # 2 of 8
SEEDS = {
    "step-seed0": [(1, 1), (0, 1), (1, 0), (0, 0)],  # 4 of 8; depth 1: 3 of 4, depth 2: 1 of 4
    "step-seed1": [(1, 1), (1, 1), (1, 1), (1, 0)],  # 7 of 8; 4 of 4, 3 of 4
    "step-seed2": [(1, 1), (1, 1), (1, 0), (0, 0)],  # 5 of 8; 4 of 4, 1 of 4
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    for index, (name, after) in enumerate(SEEDS.items()):
        write_workspace(tmp_path / name, seconds=26.0 + index, successes={"before": BEFORE, "after": after})
    write_workspace(tmp_path / "fixed-9")
    write_training(tmp_path / "fixed-9", turns=[6, 6, 7, 7], horizons=[9, 9, 9, 9])
    return [tmp_path / name for name in (*SEEDS, "fixed-9")]


def test_table_by_hand(runs: list[Path], tmp_path: Path) -> None:
    page = Page(compare(runs, tmp_path / "out").page)
    times = "\N{MULTIPLICATION SIGN}"
    stepwise, constant = f"5 {times} 2, 9 {times} 2", f"9 {times} 4"
    depths, median = ("depth 1", "depth 2"), "median of 3"
    table = [
        ["run", f"turns {times} steps", "env steps", "time", "before", "after", "points", "greedy", *depths],
        ["step-seed0", stepwise, "28", "30.0 s", "25.0%", "50.0%", "+25.0", "75.0%", "75.0%", "25.0%"],
        ["step-seed1", stepwise, "28", "31.0 s", "25.0%", "87.5%", "+62.5", "75.0%", "100.0%", "75.0%"],
        ["step-seed2", stepwise, "28", "32.0 s", "25.0%", "62.5%", "+37.5", "75.0%", "100.0%", "25.0%"],
        [f"step, {median}", stepwise, "28", "31.0 s", "25.0%", "62.5%", "+37.5", "75.0%", "100.0%", "25.0%"],
        ["fixed-9", constant, "52", "30.0 s", "25.0%", "50.0%", "+25.0", "75.0%", "75.0%", "25.0%"],
    ]  # fmt: skip
    assert page.tables == [table]
    rows = (tmp_path / "out" / "compare.md").read_text().partition("\n\n")[0].splitlines()
    read = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows]
    assert [read[0], *read[2:]] == table
    assert (tmp_path / "out" / "compare.png").exists()
    assert (tmp_path / "out" / "compare.svg").exists()


def test_a_curve_has_the_evaluations_at_the_steps_spent_by_then(runs: list[Path]) -> None:
    # 4, 10, 18, 28 turns by the end of each step; a round ends after the second, and the last one
    # gives way to the evaluation of the whole test split.
    assert read_run(runs[0]).curve == [(0.0, 0.25), (10.0, 0.75), (28.0, 0.5)]


def test_a_pipe_in_a_name_does_not_break_the_table(runs: list[Path], tmp_path: Path) -> None:
    folder = runs[3].rename(tmp_path / "a|<b>b")
    page = Page(compare([folder], tmp_path / "out").page)
    assert page.tables[0][1][0] == "a|<b>b"
    assert "a\\|<b>b" in (tmp_path / "out" / "compare.md").read_text()


def test_what_cannot_be_compared_is_refused(runs: list[Path], tmp_path: Path) -> None:
    half = tmp_path / "half"
    write_training(half)
    write_rounds(half)
    with pytest.raises(ConfigError, match="half holds no finished run"):
        compare([runs[0], half], tmp_path / "out")
    with pytest.raises(ConfigError, match="no workspaces"):
        compare([], tmp_path / "out")
    with pytest.raises(ConfigError, match="one name"):
        compare([runs[0], runs[0]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_to_is_refused(runs: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"^/proc cannot be written to .*; choose another --out"):
        compare(runs, Path("/proc/comparison"))


@pytest.fixture
def runs_with_report(runs: list[Path]) -> list[Path]:
    """Three of the runs with their reports; the last one plays another environment."""
    changes: list[dict[str, Any]] = [{}, {"train__lr": 0.5, "seed": 3}, {"data__parts": {"babyai": {}}}]
    for run, overrides in zip(runs, changes, strict=False):
        report(toy_pipeline(**overrides), run)
    return runs[:3]


@pytest.mark.heavy
def test_parameters_that_differ_are_named_on_the_page_and_in_the_terminal(
    runs_with_report: list[Path], tmp_path: Path
) -> None:
    comparison = compare(runs_with_report[:2], tmp_path / "out")
    table = [["seed", "0", "3"], ["train.lr", "0.0003", "0.5"]]
    assert comparison.differing == table
    assert comparison.notes == []
    names = [run.name for run in runs_with_report[:2]]
    assert Page(comparison.page).tables[1] == [["parameter", *names], *table]
    assert "| train.lr | 0.0003 | 0.5 |" in (tmp_path / "out" / "compare.md").read_text()
    result = CliRunner().invoke(
        app, ["compare", *map(str, runs_with_report[:2]), "--out", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert ["train.lr", "0.0003", "0.5"] in [line.split() for line in result.stdout.splitlines()]
    assert any(line.split()[:2] == [names[1], "5"] for line in result.stdout.splitlines())


@pytest.mark.heavy
def test_runs_of_other_environments_are_said_to_be_no_measure_of_each_other(
    runs_with_report: list[Path], tmp_path: Path
) -> None:
    comparison = compare(runs_with_report, tmp_path / "out")
    (note,) = comparison.notes
    assert note.startswith("The environments differ")
    assert "step-seed0: textcraft" in note
    assert "step-seed2: babyai" in note
    assert note in comparison.page.read_text()


@pytest.mark.heavy
def test_a_run_without_a_report_has_unknown_parameters(runs: list[Path], tmp_path: Path) -> None:
    report(toy_pipeline(), runs[0])
    comparison = compare(runs[:2], tmp_path / "out")
    assert comparison.differing == []
    assert comparison.notes == [
        "The parameters of step-seed1 were not recorded; run the stage report again to have them."
    ]
