"""The comparison of runs against tables done by hand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from envs.errors import ConfigError, DamagedFile
from flows.cli.command_line import app
from tasks.data.items import write_items
from tasks.evaluation.outcomes import OUTCOMES
from tasks.evaluation.paired import paired_test
from tasks.evaluation.record import format_number
from tasks.reporting.chart_style import render_plot
from tasks.reporting.charts import SettingCurves, plot_height, settings_over
from tasks.reporting.comparison.compare import Comparison, compare
from tasks.reporting.comparison.curves import (
    evaluation_plots,
    interpolate,
    interval_curve,
    mean_curve,
    training_plots,
)
from tasks.reporting.comparison.runs import FinishedRun, group_by_seed, notes_on, read_run, side_of
from tasks.reporting.comparison.scores import Difference, compare_seeds, holm, only_first_solves
from tasks.reporting.comparison.sides import ComparedItem
from tasks.reporting.comparison.tables import Table, group_tables, paired_table, summarise
from tasks.reporting.pages import DASH
from tasks.reporting.results import read_results
from tasks.stages.report import report, totals
from tests.support.html_page import Page
from tests.support.report_toy import ITEMS, toy_pipeline, write_rounds, write_training, write_workspace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox, BboxBase

BEFORE = [(0, 1), (1, 0), (0, 0), (0, 0)]  # 2 of 8
SEEDS = {
    "step-seed0": [(1, 1), (0, 1), (1, 0), (0, 0)],  # 4 of 8
    "step-seed1": [(1, 1), (1, 1), (1, 1), (1, 0)],  # 7 of 8
    "step-seed2": [(1, 1), (1, 1), (1, 0), (0, 0)],  # 5 of 8
}
"""Of six samples, the four items are solved by 6, 5, 4 and 1."""
TIMES, MINUS = "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"


def write_run(folder: Path, *, parameters: Mapping[str, Any] | None, **values: Any) -> Path:
    """A finished run; `parameters` differ from the toy's, or are not recorded."""
    write_workspace(folder, **values)
    if parameters is not None:
        (folder / "report").mkdir()
        text = json.dumps(toy_pipeline(**parameters).model_dump(mode="json"))
        (folder / "report" / "parameters.json").write_text(text)
    return folder


def write_seeds(folder: Path) -> list[Path]:
    """Three seeds of one setting, and a run of another one: (1,1), (0,1), (1,0), (0,0)."""
    runs = [
        write_run(
            folder / name,
            parameters={"seed": seed},
            seconds=26.0 + seed,
            successes={"before": BEFORE, "after": after},
        )
        for seed, (name, after) in enumerate(SEEDS.items())
    ]
    fixed_run = write_run(folder / "fixed-9", parameters={"horizon__max_turns": [9, 9]})
    write_training(fixed_run, turns=[6, 6, 7, 7], horizons=[9, 9, 9, 9])
    return [*runs, fixed_run]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return write_seeds(tmp_path)


@pytest.fixture(scope="module")
def comparison_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return compare(write_seeds(folder), folder / "out")


def table(comparison_page: tuple[Comparison, Path], title: str) -> Table:
    (found,) = [table for table in comparison_page[0].tables if table.title == title]
    return found


def cells(rendered_table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in rendered_table.rows]


# --- the tables


def test_scores_are_means_over_items_of_all_seeds(comparison_page: tuple[Comparison, Path]) -> None:
    scores = table(comparison_page, "Final scores")
    rows = cells(scores)
    assert [row[:3] for row in rows] == [["step", "4", "66.7%"], ["fixed-9", "4", "50.0%"]]
    assert [row[4] for row in rows] == ["75.0%", "75.0%"]
    assert [row[-1] for row in rows] == ["0: 50.0%, 1: 87.5%, 2: 62.5%", "0: 50.0%"]


def test_sides_are_tested_item_by_item_against_the_first(comparison_page: tuple[Comparison, Path]) -> None:
    # 1, 1/2, 1/2, 0 against 1, 5/6, 4/6, 1/6: of the signs of three differences, two of eight are as far.
    success, greedy = cells(table(comparison_page, "Against step"))
    assert success[:6] == ["fixed-9", "success", "4", "66.7%", "50.0%", f"{MINUS}16.7"]
    assert success[7] == "0.2500"
    assert greedy[1:6] == ["greedy success", "4", "75.0%", "75.0%", "0.0"]
    assert greedy[7] == "1.0000"
    assert len(success) == 8  # one seed in both is no test over seeds
    (sentence,) = comparison_page[0].results
    assert sentence.startswith(f"fixed-9 solves 50.0% and step 66.7% of 4 items: {MINUS}16.7 points")


def test_success_by_metadata(comparison_page: tuple[Comparison, Path]) -> None:
    # Depth 1 is toy_0 and toy_1, stone is toy_1 alone.
    by_depth, by_kind = (table(comparison_page, f"By {key}") for key in ("depth", "kind"))
    assert by_depth.header == ["", "1 (2)", "2 (2)"]
    assert [[cell.partition(" (")[0] for cell in row] for row in cells(by_depth)] == [
        ["step", "91.7%", "41.7%"],
        ["fixed-9", "75.0%", "25.0%"],
        [f"fixed-9 {MINUS} step", f"{MINUS}16.7", f"{MINUS}16.7"],
    ]
    assert by_kind.header == ["", "stone (1)", "wood (3)"]
    assert cells(by_kind)[2][1] == f"{MINUS}33.3"  # of one item


def test_groups_of_ten_items_have_a_paired_interval(runs: list[Path]) -> None:
    side = side_of("first", [read_run(runs[0])])
    names = [f"{depth}_{number}" for depth in (1, 2) for number in range(10)]
    items = [ComparedItem(name, {"depth": int(name[0])}) for name in names]
    first = replace(side, samples={"success": {name: [False, False] for name in names}})
    second = replace(
        side,
        name="second",
        samples={"success": {name: [name in ("1_0", "1_1"), name[0] == "2"] for name in names}},
    )
    (by_depth,) = group_tables([first, second], items)
    # Of depth 1, two of ten gain .5: a resample has at least 5 of them with probability .033, 6 with .006.
    assert cells(by_depth)[2] == [f"second {MINUS} first", "+10.0 (0.0 to +25.0)", "+50.0"]


def test_items_of_one_side_alone_lead_to_their_episodes(comparison_page: tuple[Comparison, Path]) -> None:
    only = table(comparison_page, "Solved by step, not by fixed-9")
    assert cells(only) == [["toy_3", "depth 2, kind wood", "1 of 6", "0 of 2"]]
    links = [link for cell in only.rows[0] if not isinstance(cell, str) for link in cell.links]
    # Before training five sampled and four greedy episodes are kept. After it toy_3 begins in line 13 or 14:
    # the second seed always solves the items before it; of the other runs one item has a second episode.
    lines = {"step-seed0": 14, "step-seed1": 13, "step-seed2": 14, "fixed-9": 14}
    assert links == [
        (name, f"http://127.0.0.1:8003/#/run/{name}/at/evaluation:{line}") for name, line in lines.items()
    ]
    assert not [
        found for found in comparison_page[0].tables if found.title == "Solved by fixed-9, not by step"
    ]
    assert comparison_page[0].view_command.split()[:2] == ["wingspan", "view"]


def test_how_episodes_ended_and_what_they_cost(comparison_page: tuple[Comparison, Path]) -> None:
    stops = table(comparison_page, "How episodes ended")
    assert stops.header == ["", "episodes", "max turns", "terminated", "failed"]
    assert cells(stops) == [
        ["step", "24", "33.3%", "66.7%", "0"],  # 4 + 7 + 5 of 24 succeed
        ["fixed-9", "8", "50.0%", "50.0%", "0"],
    ]
    costs = {row[0]: row[1:] for row in cells(table(comparison_page, "Cost"))}
    assert costs["time, before the report"] == ["31.0 s (30.0 s to 32.0 s)", "30.0 s"]
    assert costs["time in training steps"] == ["16.0 s", "16.0 s"]
    assert costs["CPU time, before the report"] == ["55.0 s", "55.0 s"]
    assert costs["peak memory"] == ["4.00 GB", "4.00 GB"]
    assert costs["environment steps"] == ["28", "52"]
    assert costs["tokens sampled"] == ["84", "156"]  # two episodes a step, three tokens a turn


def test_every_run_and_what_differs(comparison_page: tuple[Comparison, Path]) -> None:
    found = cells(table(comparison_page, "Runs"))
    # Of four items, a gain has no interval.
    assert found == [
        ["step-seed0", "step", "0", f"5 {TIMES} 2, 9 {TIMES} 2", "25.0%", "50.0%", "+25.0", DASH],
        ["step-seed1", "step", "1", f"5 {TIMES} 2, 9 {TIMES} 2", "25.0%", "87.5%", "+62.5", DASH],
        ["step-seed2", "step", "2", f"5 {TIMES} 2, 9 {TIMES} 2", "25.0%", "62.5%", "+37.5", DASH],
        ["fixed-9", "fixed-9", "0", f"9 {TIMES} 4", "25.0%", "50.0%", "+25.0", DASH],
    ]
    assert cells(table(comparison_page, "What differs")) == [
        ["seed", "0, 1, 2", "0"],
        ["horizon.max_turns", "[5, 9]", "[9, 9]"],
    ]


def test_the_page_is_one_file_that_needs_nothing_else(comparison_page: tuple[Comparison, Path]) -> None:
    comparison, path = comparison_page
    page = Page(path)
    viewer = "http://127.0.0.1:8003/#/run/"
    other_references = {reference for reference in page.references if not reference.startswith(viewer)}
    assert {reference.removeprefix("#") for reference in other_references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert [page_table[0] for page_table in page.tables] == [
        list(result_table.header) for result_table in comparison.tables
    ]
    for page_table, result_table in zip(page.tables, comparison.tables, strict=True):
        if "Solved by" not in result_table.title:
            assert page_table[1:] == cells(result_table)
        else:  # with the labels of the links
            assert [
                all(text.startswith(cell) for text, cell in zip(row, expected, strict=True))
                for row, expected in zip(page_table[1:], cells(result_table), strict=True)
            ] == [True] * len(result_table.rows)
    plots = {
        f"{kind}_over_{axis}"
        for kind in ("test", "training")
        for axis in ("steps", "environment_steps", "tokens", "minutes")
    }
    assert {file.stem for file in path.parent.glob("*.svg")} == plots
    markdown = (path.parent / "compare.md").read_text()
    assert "| fixed-9 | success | 4 | 66.7% | 50.0% |" in markdown


@pytest.mark.heavy
def test_the_terminal_shows_the_same_against_another_reference(runs: list[Path], tmp_path: Path) -> None:
    options = ["--reference", "fixed-9", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, ["compare", *map(str, runs[2:]), *options])
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("step-seed2 solves 62.5% and fixed-9 50.0% of 4 items: +12.5 points")
    assert f"step-seed2 {MINUS} fixed-9 +25.0 0.0" in lines
    assert "environment steps 52 28" in lines
    assert "horizon.max_turns [9, 9] [5, 9]" in lines
    assert lines[-1] == f"comparison: {tmp_path / 'out' / 'index.html'}"


@pytest.mark.heavy
def test_images_that_are_no_plots_of_a_comparison_stay(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    compare(runs, out)
    plots = {path.name for path in out.iterdir()} - {"index.html", "compare.md"}
    assert "training_over_tokens.png" in plots
    (out / "photo.png").write_bytes(b"mine")
    (out / "drawing.svg").write_text("mine")
    for run in runs:  # such runs have no plots against time
        steps = [json.loads(line) for line in (run / "train" / "metrics.jsonl").read_text().splitlines()]
        lines = [json.dumps(step | {"seconds": 0.0}) + "\n" for step in steps]
        (run / "train" / "metrics.jsonl").write_text("".join(lines))
    compare(runs, out)
    assert (out / "photo.png").read_bytes() == b"mine"
    assert (out / "drawing.svg").read_text() == "mine"
    left = {path.name for path in out.iterdir()} - {"index.html", "compare.md", "photo.png", "drawing.svg"}
    assert left == {name for name in plots if "minutes" not in name}


@pytest.mark.heavy
def test_a_folder_stands_for_its_runs_and_hostile_names_stay_text(tmp_path: Path) -> None:
    items = [replace(item, metadata={"depth": 1, "goal": f"{n}\nwood |"}) for n, item in enumerate(ITEMS)]
    write_run(tmp_path / "runs" / "a|<b>b", parameters={}, items=items)
    write_run(
        tmp_path / "runs" / "c",
        parameters={"train__lr": 0.5},
        items=items,
        successes={"before": BEFORE, "after": [(0, 0), (1, 1), (1, 1), (1, 1)]},
    )
    comparison, path = compare([tmp_path / "runs"], tmp_path / "out")
    assert comparison.names == ["a|<b>b", "c"]
    assert comparison.view_command == f"wingspan view {tmp_path / 'runs'}"
    assert "b" not in Page(path).tags
    text = (tmp_path / "out" / "compare.md").read_text()
    assert "a\\|<b>b" in text
    assert "| toy_0 | depth 1, goal 0 wood \\| | 2 of 2 | 0 of 2 |" in text
    assert ["train.lr", "0.0003", "0.5"] in cells(comparison.tables[-1])


@pytest.mark.heavy
def test_unfinished_runs_in_a_folder_are_left_out_and_named_ones_are_refused(tmp_path: Path) -> None:
    folder, out = tmp_path / "runs", tmp_path / "out"
    half, begun = folder / "half", folder / "begun"
    write_training(half)
    write_items(begun / "data" / "train.jsonl", ITEMS)
    with pytest.raises(ConfigError, match=r"begun holds no finished run: no train/metrics\.jsonl"):
        compare([folder], out)
    finished_run = write_run(folder / "finished", parameters={})
    comparison, path = compare([folder], out)
    assert comparison.names == ["finished"]
    left_out = ["begun is not finished and is left out.", "half is not finished and is left out."]
    assert comparison.notes[:2] == left_out
    assert all(note in Page(path).text for note in left_out)
    with pytest.raises(ConfigError, match=r"half has not been evaluated: no evaluation\.json; run its"):
        compare([finished_run, half], out)


def test_a_main_result_has_no_interval_that_is_too_narrow_and_names_holms_p() -> None:
    # Three items that all differ alike: of eight assignments of signs, two are as far.
    test = paired_test([0.0] * 3, [1.0] * 3)
    found = Difference(
        side="b", measure="success", reference_mean=0, mean=1, test=test, adjusted_p=0.5, seeds=None
    )
    result = "b solves 100.0% and a 0.0% of 3 items: +100.0 points (p = 0.2500"
    assert summarise(found, reference="a", num_others=1) == f"{result})."
    assert summarise(found, reference="a", num_others=2) == (
        f"{result}, p = 0.5000 by Holm's method for 2 sides)."
    )
    (row,) = paired_table([found], reference="a").rows
    assert row[5:8] == ["+100.0", "\N{EN DASH}", "0.2500"]


# --- runs, seeds, curves


def test_a_curve_has_the_evaluations_at_what_was_spent_by_then(runs: list[Path]) -> None:
    # 4, 10, 18, 28 turns by the end of each step of 4 s; a round ends after the second, another at the end.
    run = read_run(runs[0])
    assert run.curve(run.test_points, "environment_steps") == [(0.0, 0.25), (28.0, 0.5)]
    assert run.curve(run.test_points, "minutes") == [(0, 0.25), (16 / 60, 0.5)]
    assert run.curve(run.quick_points, "environment_steps") == [(10.0, 0.75), (28.0, 0.75)]
    assert run.curve(run.training_points, "tokens") == [(12, 0.5), (30, 0.5), (54, 0.5), (84, 0.5)]


def test_the_evaluation_of_the_best_policy_is_at_what_was_spent_by_the_end_of_its_round(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path / "best", parameters={"train__final_policy": "best"})
    (folder / "train" / "best.json").write_text('{"index": 0}')
    run = read_run(folder)
    assert run.test_points == [(0, 0.25), (2, 0.5)]
    assert run.curve(run.test_points, "environment_steps") == [(0.0, 0.25), (10.0, 0.5)]


def test_what_was_sampled_besides_the_first_groups_is_spent_too(runs: list[Path]) -> None:
    file = runs[0] / "train" / "metrics.jsonl"
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    steps[1] |= {"added_episodes": 3, "added_turns": 7, "added_tokens": 21}
    file.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    run = read_run(runs[0])
    assert run.totals["environment_steps"] == [0, 4, 17, 25, 35]
    assert run.totals["tokens"] == [0, 12, 51, 75, 105]
    assert [run.costs[key] for key in ("episodes", "environment steps", "tokens")] == [11, 35, 105]
    totals_of_report = totals(read_results(runs[0]))
    assert [totals_of_report[key] for key in ("episodes", "turns", "tokens")] == [11, 35, 105]


def test_a_run_that_spends_no_environment_steps_has_no_curve_over_them(runs: list[Path]) -> None:
    file = runs[0] / "train" / "metrics.jsonl"  # as an offline algorithm writes it
    numbers = {"episodes": 0, "dropped": 0, "horizon": 9, "seconds_rollout": 0.0, "seconds": 4.0}
    steps = [{"step": step, **numbers} for step in (1, 2, 3, 4)]
    file.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    settings = {"offline": [read_run(runs[0])]}
    assert [plot.name for plot in evaluation_plots(settings)] == ["test_over_steps", "test_over_minutes"]
    assert training_plots(settings) == []


def test_runs_that_differ_by_seed_alone_are_one_setting(runs: list[Path]) -> None:
    found = [read_run(run) for run in runs]
    assert {name: [run.name for run in group] for name, group in group_by_seed(found).items()} == {
        "step": [*SEEDS],
        "fixed-9": ["fixed-9"],
    }
    again = replace(found[0], name="again")
    assert list(group_by_seed([*found, again])) == [*SEEDS, "again", "fixed-9"]
    assert notes_on([*found, again])[0].startswith(
        "step-seed0, again have the same parameters and the same seed"
    )
    unknown = replace(found[1], parameters={}, seed=None)
    assert list(group_by_seed([found[0], unknown, found[2]])) == ["step", "step-seed1"]
    assert "parameters of step-seed1 were not recorded" in notes_on([found[0], unknown])[0]
    assert notes_on([found[0]]) == [
        "step-seed0 went back to an earlier checkpoint 1 time; the undone steps are in no curve and no cost."
    ]


def test_a_long_number_keeps_the_digits_before_its_point() -> None:
    values = [1234.5678, -98765.4, 999.6, 123.456, 12.0, 0.00012, float("nan"), 1e300]
    assert [format_number(value, sign="+") for value in values] == [
        "+1235", "-98765", "+1000", "+123", "+12", "+0.00012", "+nan", "+1e+300",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "setting"),
    [
        (["grpo-seed0", "grpo-seed1"], "grpo"),
        (["grpo-s0", "grpo-s12"], "grpo"),
        (["babyai_s10", "babyai_s11"], "babyai"),
        (["textworlds0", "textworlds1"], "textworlds"),
    ],
)
def test_the_name_of_a_setting_is_without_its_seeds(runs: list[Path], names: list[str], setting: str) -> None:
    found = [replace(read_run(run), name=name) for run, name in zip(runs, names, strict=False)]
    assert [*group_by_seed(found)] == [setting]


def test_names_of_settings_are_distinct(runs: list[Path]) -> None:
    found = [read_run(run) for run in runs[:3]]
    other_parameters: dict[str, object] = {"train.lr": 0.5}

    def rename(names: Sequence[str]) -> list[FinishedRun]:
        pairs = zip(names, [0, 1, 0, 1], strict=True)
        return [
            replace(
                found[0],
                name=name,
                seed=seed,
                parameters={"seed": seed} | (other_parameters if index > 1 else {}),
            )
            for index, (name, seed) in enumerate(pairs)
        ]

    assert list(group_by_seed(rename(["x-1", "x-2", "x-3", "x-4"]))) == ["x", "x-3, x-4"]
    assert list(group_by_seed(rename(["a", "b", "c1", "c2"]))) == ["a", "c"]
    assert list(group_by_seed(rename(["s-seed10", "s-seed11", "t4-a", "t4-b"]))) == ["s", "t4"]
    single = replace(found[0], name="x", parameters={"train.lr": 2})
    assert list(group_by_seed([*rename(["x-1", "x-2", "y-3", "y-4"]), single])) == ["x-1, x-2", "y", "x"]


def test_settings_are_tested_over_the_seeds_that_both_have(runs: list[Path]) -> None:
    found = [read_run(run) for run in runs[:3]]
    first = side_of("first", found)
    second = side_of(
        "second", [replace(run, after=rate) for run, rate in zip(found, (0.875, 0.875, 0.75), strict=True)]
    )
    test = compare_seeds(first, second)
    assert test is not None
    # .375, 0 and .125; their mean is 1/6, its standard error .11024, and t is 4.30265.
    assert (test.seeds, test.p_value) == (3, 2 / 4)
    assert test.mean == pytest.approx(1 / 6)
    assert (test.low, test.high) == pytest.approx((1 / 6 - 0.47433, 1 / 6 + 0.47433), abs=1e-5)
    assert compare_seeds(first, side_of("alone", found[:1])) is None


def test_the_mean_of_curves_ends_where_the_shortest_does() -> None:
    curves = [[(0, 0.0), (10, 1.0)], [(0, 0.5), (20, 0.5)]]
    mean = mean_curve(curves)
    assert [mean[0], mean[-1]] == [(0, 0.25), (10, 0.75)]
    assert mean[30] == pytest.approx((5, 0.5))
    assert mean_curve(curves[:1]) == []


def test_a_mean_has_an_interval_from_three_seeds_on() -> None:
    curves = [[(0, 0.0), (10, 1.0)], [(0, 0.5), (20, 0.5)], [(0, 0.25), (10, 0.75)]]
    interval = interval_curve(curves)
    # At 4: .4, .5 and .45, whose standard error is .05 / √3; t is 4.30265 for two degrees of freedom.
    assert interval[24] == pytest.approx((4, 0.45 - 0.12421, 0.45 + 0.12421), abs=1e-5)
    assert interval[30] == pytest.approx((5, 0.5, 0.5))
    assert interval[-1] == pytest.approx((10, 0.12897, 1.0), abs=1e-5)  # .75 ± 4.30265 · .25 / √3, at most 1
    assert interval_curve(curves[:2]) == []


@pytest.mark.heavy
def test_the_page_explains_the_curves_of_two_and_of_three_seeds(
    comparison_page: tuple[Comparison, Path], runs: list[Path], tmp_path: Path
) -> None:
    shade, no_interval = "The shade is its 95% interval over seeds", "The mean of two seeds is drawn without"
    texts = ["their curves are faint", shade, no_interval]
    three_seeds = comparison_page[0]
    assert [text in three_seeds.sections[0].about for text in texts] == [True, True, False]
    two_seeds, _ = compare([*runs[:2], runs[3]], tmp_path / "two")
    assert [text in two_seeds.sections[0].about for text in texts] == [True, False, True]
    no_seeds, _ = compare([runs[0], runs[3]], tmp_path / "none")
    assert "seed" not in no_seeds.sections[0].about


@pytest.mark.parametrize(
    ("end", "labels"),
    [
        (1_764_486, ["0", "0.3 M", "0.6 M", "0.9 M", "1.2 M", "1.5 M"]),
        (51_294, ["0", "10 k", "20 k", "30 k", "40 k", "50 k"]),
        (999_999, ["0", "200 k", "400 k", "600 k", "800 k"]),
        (123_456_789, ["0", "25 M", "50 M", "75 M", "100 M"]),
        (51, ["0", "10", "20", "30", "40", "50"]),
        (3, ["0", "1", "2", "3"]),
        (0.3, ["0", "0.05", "0.1", "0.15", "0.2", "0.25"]),
    ],
)
def test_the_labels_of_a_cost_axis_are_short_and_apart(end: float, labels: list[str]) -> None:
    curve = [(0.0, 0.2), (end, 0.8)]
    setting = SettingCurves(label="a", seeds=[curve], mean=[], interval=[])
    boxes: list[Bbox] = []

    def draw(axes: "Axes") -> None:
        draw_costs = settings_over(
            [setting], xlabel="tokens", ylabel="success", is_whole=end > 1, has_markers=True
        )
        draw_costs(axes)
        axes.figure.canvas.draw()
        texts = [text for text in axes.get_xticklabels() if 0 <= text.get_position()[0] <= end]
        assert [text.get_text() for text in texts] == labels
        boxes.extend(text.get_window_extent() for text in texts)

    render_plot("costs", draw, alt="", width=5.3, height=3.2)
    assert all(right.x0 - left.x1 > right.height for left, right in pairwise(boxes))


@pytest.mark.parametrize("count", [1, 3, 12])
@pytest.mark.parametrize(
    "name", ["_{}", "grpo-{}", "textcraft-cpu-{}-4f2a61b0", f"{'on-' * 30}textcraft-and-babyai-{{}}-4f2a61b0"]
)
def test_a_legend_names_every_setting_within_its_plot(name: str, count: int) -> None:
    names = [name.format(number) for number in range(count)]
    curve = [(0.0, 0.2), (51.0, 0.8)]
    settings = [SettingCurves(label=label, seeds=[curve], mean=[], interval=[]) for label in names]
    boxes: list[BboxBase] = []

    def draw(axes: "Axes") -> None:
        settings_over(settings, xlabel="steps", ylabel="success", is_whole=True, has_markers=True)(axes)
        figure = axes.get_figure(root=True)
        assert figure is not None
        figure.draw_without_rendering()
        legend = axes.get_legend()
        assert legend is not None
        texts = [text.get_text() for text in legend.get_texts()]
        assert len(set(texts)) == count
        assert [(text[:5], text[-20:]) for text in texts] == [(label[:5], label[-20:]) for label in names]
        boxes.extend((figure.bbox, legend.get_window_extent(), axes.get_window_extent()))

    plot = render_plot("settings", draw, alt="", width=5.3, height=plot_height(names))
    assert plot.svg
    of_plot, of_legend, of_axes = boxes
    assert (of_legend.x1 <= of_plot.x1, of_legend.y1 <= of_plot.y1) == (True, True)
    assert of_axes.height > of_plot.width / 3


def test_values_between_the_points_of_a_curve() -> None:
    curve = [(0.0, 0.2), (100.0, 0.4), (300.0, 0.8)]
    assert [interpolate(curve, x) for x in (0, 50, 100, 250, 300)] == pytest.approx([0.2, 0.3, 0.4, 0.7, 0.8])
    with pytest.raises(ValueError, match="301 is outside of the curve, from 0 to 300"):
        interpolate(curve, 301)


def test_holms_method_by_hand() -> None:
    # .01 · 4, then max(.04, .02 · 3), max(.06, .03 · 2), max(.06, .5).
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]


def test_an_item_without_samples_is_solved_by_nobody_alone() -> None:
    first = {"a": [True, False], "b": [True, True], "c": [True], "d": [False], "e": [True]}
    second = {"a": [False, False], "b": [False], "c": [], "d": [False], "e": [True]}
    assert only_first_solves(first, second) == ["b", "a"]


# --- what is refused


def test_what_cannot_be_compared_is_refused(runs: list[Path], tmp_path: Path) -> None:
    half, empty, lost_run = tmp_path / "half", tmp_path / "empty", write_run(tmp_path / "lost", parameters={})
    write_training(half)
    write_rounds(half)
    empty.mkdir()
    (lost_run / OUTCOMES).unlink()
    other_items = [replace(item, metadata={"depth": 7}) for item in ITEMS]
    other = write_run(tmp_path / "other", parameters={}, items=other_items)
    reseeded = {"data__split_seed": 7}
    fewer = write_run(
        tmp_path / "fewer", parameters=reseeded, items=[*ITEMS[:3], replace(ITEMS[3], item_id="new")]
    )
    warmer = write_run(tmp_path / "warmer", parameters={"evaluate__temperature": 0.5})
    longer = write_run(tmp_path / "longer", parameters={"data__parts__deeper__max_turns": 30})
    mistakes = [
        ([], "nothing to compare; name at least one run"),
        ([tmp_path / "none"], "there is no folder .*none; give folders of finished runs"),
        ([empty], "empty is no run and no evaluation: it has neither train/metrics.jsonl nor record.json"),
        ([half], "half has not been evaluated: no evaluation.json; run its pipeline to the end"),
        (
            [lost_run],
            "lost cannot be compared item by item: no evaluation_outcomes.json; evaluate its policy",
        ),
        ([runs[0], runs[0]], "step-seed0 is named twice"),
        (
            [runs[0], other],
            r"step-seed0 and .*other are of other items \(4 and 4; items of one name have other contents, or "
            r"another order\); run both with the same data files$",
        ),
        (
            [runs[0], fewer],
            r"are of other items \(4 and 4; toy_3 is only in the first\); run both with the same "
            r"data\.split_seed$",
        ),
        ([runs[0], warmer], "evaluated otherwise: evaluate.temperature is 1.0 and 0.5; evaluate both alike"),
        ([runs[0], longer], "evaluated otherwise: evaluate.max_turns is 26 and deeper 30, one-step 26, two"),
    ]
    for paths, message in mistakes:
        with pytest.raises(ConfigError, match=message) as refusal:
            compare(paths, tmp_path / "out")
        assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match="--reference stp: no side has this name; did you mean 'step'"):
        compare(runs, tmp_path / "out", reference="stp")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name",
    [
        "evaluation.json",
        OUTCOMES,
        "evaluation_trajectories.jsonl",
        "train/metrics.jsonl",
        "train/rounds/01.json",
        "timing.json",
        "usage.json",
        "report/parameters.json",
    ],
)
def test_a_damaged_file_of_a_run_is_named(tmp_path: Path, name: str) -> None:
    run = write_run(tmp_path / "run", parameters={})
    file = run / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content.rstrip()) - 4])
    with pytest.raises(ConfigError, match=rf"{file} is damaged \(.*; restore "):
        compare([run], tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("evaluation.json", "after"),
        ("evaluation.json", "after.sampled"),
        ("evaluation.json", "before.greedy.dropped"),
        ("evaluation.json", "after.sampled.episodes"),
        (OUTCOMES, "before.greedy"),
        ("train/metrics.jsonl", "step"),
        ("train/metrics.jsonl", "episodes"),
        ("train/metrics.jsonl", "horizon"),
        ("train/rounds/01.json", "last_step"),
        ("train/rounds/01.json", "evaluation.dropped"),
        ("train/rewinds.jsonl", "to_step"),
        ("usage.json", "train.cpu_s"),
    ],
)
def test_a_file_of_a_run_that_lacks_a_key_is_named(tmp_path: Path, name: str, key: str) -> None:
    run = write_run(tmp_path / "run", parameters={})
    first, *others = (run / name).read_text().splitlines(keepends=name.endswith("l"))
    values = json.loads(first if name.endswith("l") else (run / name).read_text())
    *path, last = key.split(".")
    block = values
    for part in path:
        block = block[part]
    del block[last]
    (run / name).write_text(json.dumps(values) + "\n" + "".join(others if name.endswith("l") else ()))
    with pytest.raises(DamagedFile, match=rf"{run / name} is damaged \(.*{last}.*\); restore "):
        compare([run], tmp_path / "out")
    with pytest.raises(DamagedFile, match=rf"{run / name} is damaged"):
        report(toy_pipeline(), run)


def test_a_place_that_cannot_be_written_to_is_refused(runs: list[Path]) -> None:
    with pytest.raises(ConfigError, match=r"^/proc cannot be written to .*; choose another --out"):
        compare(runs, Path("/proc/comparison"))
