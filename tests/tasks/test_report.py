"""The report against numbers done by hand, hostile text, and workspaces with parts missing."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agents.horizon import Horizon
from tasks.config.parameters import changed_parameters, write_changes
from tasks.data.collapse import Alert
from tasks.evaluation.intervals import bootstrap, wilson
from tasks.evaluation.outcomes import OUTCOMES, compare_samples, episodes_to_keep
from tasks.reporting.chart_style import AFTER, PARTS, render_plot
from tasks.reporting.charts import (
    line_over_steps,
    paired_bars,
    smooth,
    smoothing_window,
    success_over_steps,
    tick_label,
)
from tasks.reporting.comparison.runs import read_run
from tasks.reporting.excerpts import PairVerdict, choose_pairs
from tasks.reporting.figures import LINES
from tasks.reporting.pages import DASH, PAGES
from tasks.reporting.results import count_dropped, environment_steps, phases, read_results, stages_of
from tasks.runs.rounds import explain_unchanged
from tasks.stages.report import Change, horizon_steps, main_figures, report
from tests.support.html_page import Page
from tests.support.report_toy import (
    ITEMS,
    RAISE_REASON,
    make_failure,
    make_trajectory,
    toy_pipeline,
    write_evaluation,
    write_rounds,
    write_training,
    write_workspace,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "toy-run"
    write_workspace(folder)
    alert = Alert(monitor="repetition", step=3, value=0.4, limit=0.2, text="repetition rose by 0.4")
    (folder / "train" / "alerts.jsonl").write_text(json.dumps(asdict(alert)) + "\n")
    report(toy_pipeline(), folder)
    return folder


@pytest.fixture(scope="module")
def page(workspace: Path) -> Page:
    return Page(workspace / "report" / "index.html")


@pytest.fixture(scope="module")
def stopped_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of a run that was stopped in its first round."""
    folder = tmp_path_factory.mktemp("stopped")
    write_training(folder)
    return Page(report(toy_pipeline(train__steps=9), folder))


@pytest.fixture(scope="module")
def untrained_page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Of a model that was evaluated, without a warm-up and training."""
    folder = tmp_path_factory.mktemp("untrained")
    write_evaluation(folder)
    return Page(report(toy_pipeline(warmup=None), folder))


@pytest.fixture(scope="module")
def changed_workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run with other parameters and a record of its lineage, none of whose turns could be parsed."""
    folder = tmp_path_factory.mktemp("changed") / "a run"
    write_workspace(folder)
    file = folder / "evaluation_trajectories.jsonl"
    malformed_text = file.read_text().replace('"is_malformed": false', '"is_malformed": true')
    file.write_text(
        malformed_text.replace('"text": "Thought: wood first', '"text": "Let me <think> about wood')
    )
    (folder / "lineage.json").write_text("{}")
    settings = {"temperature": 0.7, "samples_per_item": 1, "quick_items": 50}
    evaluate = {f"evaluate__{key}": value for key, value in settings.items()}
    pipeline = toy_pipeline(train__lr=0.25, warmup=None, **evaluate)
    write_changes(folder, name="toy", changes=changed_parameters(pipeline, default=toy_pipeline()))
    report(pipeline, folder)
    return folder


@pytest.fixture(scope="module")
def changed_page(changed_workspace: Path) -> Page:
    return Page(changed_workspace / "report" / "index.html")


# Newcombe 1998, Statistics in Medicine 17: table I of "Two-sided confidence intervals for the single
# proportion" (method 3).
@pytest.mark.parametrize(
    ("num_solved", "items", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_values(num_solved: int, items: int, low: float, high: float) -> None:
    assert wilson(num_solved / items, n=items) == pytest.approx((low, high), abs=5e-5)


def test_nothing_is_known_of_no_items() -> None:
    assert wilson(0.0, n=0) == (0.0, 1.0)


def test_stages_of_the_horizon() -> None:
    assert stages_of([8, 8, 12, 16, 16, 16]) == [(1, 2, 8), (3, 3, 12), (4, 6, 16)]


@pytest.mark.heavy
def test_the_horizon_of_steps_to_come_is_the_plan_s_and_never_lower_than_the_last(workspace: Path) -> None:
    results = read_results(workspace)  # 5, 5, 9, 9
    assert horizon_steps(replace(results, steps=results.steps[:1]), pipeline=toy_pipeline()) == [5, 5, 9, 9]
    assert horizon_steps(replace(results, steps=[]), pipeline=toy_pipeline()) == [5, 5, 9, 9]
    adaptive = Horizon(type="adaptive", max_turns=[5, 9, 12])
    pipeline = toy_pipeline().model_copy(update={"horizon": adaptive})
    assert horizon_steps(replace(results, steps=results.steps[:3]), pipeline=pipeline) == [5, 5, 9, 9]


def test_a_raise_of_the_horizon_is_explained(page: Page) -> None:
    assert f"Horizon from step 3: {RAISE_REASON}." in " ".join(page.text.split())


def test_a_rewind_is_explained(page: Page) -> None:
    assert "At step 4 training went back to step 2, because the KL is 9." in " ".join(page.text.split())


def test_a_sign_of_a_collapse_is_reported(page: Page) -> None:
    assert "Sign of a collapse at step 3: repetition rose by 0.4." in page.text


def test_every_plot_has_a_place_on_the_page_and_every_part_its_color() -> None:
    template = (PAGES / "report.html").read_text()
    assert [key for key in LINES if f'"{key}"' not in template] == []
    assert len(set(PARTS)) == 6  # rollout, update, weight sync, checkpoint, wait, rest


def test_small_ticks_have_one_notation() -> None:
    small = [tick_label(value, largest=3.2e-4) for value in (-1.5e-4, 0.0, 8e-5, 3.2e-4)]
    assert small == ["\u22121.5e\u22124", "0", "8e\u22125", "3.2e\u22124"]
    assert [tick_label(value, largest=0.3) for value in (-0.15, -0.0, 0.3)] == ["\u22120.15", "0", "0.3"]


def test_an_axis_of_zeros_has_plain_ticks() -> None:
    labels: list[str] = []

    def draw(axes: "Axes") -> None:
        line_over_steps([(1.0, 0.0), (2.0, 0.0)], label="reward", stages=[(1, 2, 8)])(axes)
        axes.figure.canvas.draw()
        labels.extend(text.get_text() for text in axes.get_yticklabels())

    render_plot("reward", draw, alt="")
    assert labels == ["0", "0.2", "0.4", "0.6", "0.8", "1"]


@pytest.mark.heavy
def test_the_optimizer_is_explained_as_far_as_it_is_shown(page: Page, tmp_path: Path) -> None:
    write_training(tmp_path)
    file = tmp_path / "train" / "metrics.jsonl"
    file.write_text(file.read_text().replace('"kl"', '"other"').replace('"grad_norm"', '"another"'))
    partial_page = Page(report(toy_pipeline(train__steps=9), tmp_path))
    for text, is_in_both in (("KL is that", False), ("The clip fraction", True), ("The gradient's", False)):
        assert text in page.text
        assert (text in partial_page.text) == is_in_both
    assert "tokens of the update. The clip fraction" in " ".join(page.text.split())
    assert "was clipped. The gradient's" in " ".join(page.text.split())


def test_sums_by_hand(workspace: Path) -> None:
    results = read_results(workspace)
    assert environment_steps(results) == [4, 10, 18, 28]  # two episodes of 2, 3, 4 and 5 turns
    assert phases(results)["rest"] == pytest.approx([0.75] * 4)  # 4 - 2 - 1 - 0.25
    assert count_dropped(results.steps) == {"EnvCrashed": 1}
    assert "report" not in results.seconds


def test_what_the_stages_used_stands_beside_their_time(page: Page) -> None:
    text = " ".join(page.text.split())
    # 30 s in all; of the stages that were not measured nothing is said.
    assert "stage time share CPU time peak memory" in text
    assert f"prepare 1.0 s 3.3% {DASH} {DASH} " in text
    assert "train 26.0 s 86.7% 50.0 s 4.00 GB" in text
    assert "all stages 30.0 s 55.0 s 4.00 GB" in text


def test_the_headline(page: Page) -> None:
    # Sampled: 2 of 8 episodes before, 4 of 8 after. Greedy: 1 of 4, then 3 of 4.
    text = " ".join(page.text.split())
    assert "25.0% → 50.0% of 4 held-out items are solved" in text
    # Both items that changed, changed for the better: 2 of 4 signs are as far from 0. Of fewer than ten items
    # an interval is too narrow.
    assert "+25.0 points (p = 0.5000)" in text
    assert "Greedy: 25.0% → 75.0%, +50.0 points. Before is" in text


@pytest.mark.heavy
@pytest.mark.filterwarnings("error:No artists")  # none of the items that are in the file is in the outcomes
def test_the_headline_of_twelve_items_has_the_gain_s_interval(tmp_path: Path) -> None:
    write_workspace(tmp_path)
    file = tmp_path / OUTCOMES
    outcomes = {
        policy: {
            mode: {f"{item}_{copy}": samples for copy in range(3) for item, samples in by_item.items()}
            for mode, by_item in modes.items()
        }
        for policy, modes in json.loads(file.read_text()).items()
    }
    file.write_text(json.dumps(outcomes))
    text = " ".join(Page(report(toy_pipeline(), tmp_path)).text.split())
    # The gains are .5 and 0, six times each: of a resample, k are .5 with probability C(12, k) / 4096, which
    # is 79 for up to 2, and 299 for up to 3.
    assert "+25.0 points (95% interval +12.5 to +37.5, p = 0.0312)" in text


def test_the_password_of_a_server_is_in_no_file_of_a_report(tmp_path: Path) -> None:
    write_workspace(tmp_path)
    servers = {"textcraft": {"urls": ["http://any:s3cret-canary@host:8000"]}}
    pipeline = toy_pipeline(servers=servers)
    write_changes(tmp_path, name="toy", changes=changed_parameters(pipeline, default=toy_pipeline()))
    report(pipeline, tmp_path)
    texts = {file.name: file.read_bytes() for file in (tmp_path / "report").iterdir()}
    assert [name for name, text in texts.items() if b"s3cret-canary" in text] == []
    for name in ("index.html", "parameters.json"):
        assert b"http://[redacted]@host:8000" in texts[name]


def test_a_page_shows_a_question_mark_for_a_lone_surrogate(tmp_path: Path) -> None:
    """An endpoint may escape one in its JSON; UTF-8 has none."""
    write_workspace(tmp_path)
    for file in ("evaluation_trajectories.jsonl", "train/metrics.jsonl"):
        text = (tmp_path / file).read_text()
        (tmp_path / file).write_text(
            text.replace("wood first", "wood \\ud800 first é").replace("KeyError", "Key\\udfffError")
        )
    report(toy_pipeline(), tmp_path)
    page = (tmp_path / "report" / "index.html").read_bytes().decode("utf-8")
    assert "wood ? first é" in page
    assert "wood first" not in page


def test_the_main_figures_are_a_flat_file(workspace: Path) -> None:
    metrics = json.loads((workspace / "metrics.json").read_text())
    low, high = wilson(0.5, n=4)
    assert metrics == {
        "success": 0.5,
        "success_low": pytest.approx(low, abs=1e-6),
        "success_high": pytest.approx(high, abs=1e-6),
        "success_before": 0.25,
        "gain": 0.25,
        "greedy": 0.75,
        "greedy_before": 0.25,
        "items": 4,
        "steps": 4,
        "minutes": pytest.approx(4 * 4.0 / 60, abs=1e-6),
    }


def test_the_gain_has_an_interval_from_ten_items_that_differ(tmp_path: Path) -> None:
    """Five of ten items are solved only after training, the others never."""
    outcomes = {f"item_{n}": ([False], [n < 5]) for n in range(10)}

    def figures(first: int) -> dict[str, float]:
        chosen = dict(list(outcomes.items())[first:])
        samples = [{item: pair[policy] for item, pair in chosen.items()} for policy in (0, 1)]
        test = compare_samples(*samples)
        assert test is not None
        change = Change(
            before=0.0, after=0.5, before_interval=(0.0, 0.3), after_interval=(0.2, 0.8), test=test
        )
        return main_figures(read_results(tmp_path), changes={"sampled": change, "greedy": None})

    write_workspace(tmp_path)
    low, high = bootstrap([1.0] * 5 + [0.0] * 5)
    ten_items = figures(first=0)
    assert (ten_items["gain_low"], ten_items["gain_high"]) == (low, high)
    nine_items = figures(first=1)
    assert ten_items.keys() - nine_items.keys() == {"gain_low", "gain_high"}


@pytest.fixture
def uneven_workspace(tmp_path: Path) -> Path:
    """Of toy_1, which no policy solves, more episodes failed before training than after it."""
    successes = {
        "before": [(1, 1, 1, 1), (0,), (0, 0), (0, 0)],
        "after": [(1, 1, 1, 1), (0, 0, 0, 0), (0, 0), (0, 0)],
    }
    workspace = tmp_path / "uneven"
    write_workspace(workspace, successes=successes)
    report(toy_pipeline(), workspace)
    return workspace


@pytest.mark.heavy
def test_no_gain_contradicts_its_interval_where_episodes_failed(uneven_workspace: Path) -> None:
    metrics = json.loads((uneven_workspace / "metrics.json").read_text())
    assert (metrics["success_before"], metrics["success"], metrics["gain"]) == (0.25, 0.25, 0.0)
    run = read_run(uneven_workspace)
    assert (run.before, run.after, run.gain.mean) == (0.25, 0.25, 0.0)
    page = Page(uneven_workspace / "report" / "index.html")
    (row,) = [row for row in page.rows("1") if row[1] == "2"]
    assert row[2:5] == ["50.0%", "50.0%", "0.0"]
    assert "After training, no sampled episode solves 3 items. The first" in " ".join(page.text.split())


@pytest.mark.heavy
def test_the_recorded_evaluation_has_the_same_rates(uneven_workspace: Path) -> None:
    evaluation = json.loads((uneven_workspace / "evaluation.json").read_text())
    for policy, episodes in (("before", 9), ("after", 12)):
        summary = evaluation[policy]["sampled"]
        assert summary["episodes"] == episodes
        assert [summary[f"success{key}"] for key in ("", "_depth_1", "_depth_2")] == [0.25, 0.5, 0.0]


def test_the_table_by_depth_is_of_every_sample(page: Page) -> None:
    # Depth 1: (0,1)(1,0) → (1,1)(0,1); depth 2: nothing → (1,0)(0,0).
    change = ["+25.0", "\u2013"]  # so few items have no interval
    assert ["1", "2", "50.0%", "75.0%", *change, "50.0%", "100.0%", "+50.0"] in page.rows("1")
    assert ["2", "2", "0.0%", "25.0%", *change, "0.0%", "50.0%", "+50.0"] in page.rows("2")
    assert ["all", "4", "25.0%", "50.0%", *change, "25.0%", "75.0%", "+50.0"] in page.rows("all")


def test_other_metadata_is_shown_too(page: Page) -> None:
    # wood: toy_0, toy_2, toy_3 with (0,1)(0,0)(0,0) → (1,1)(1,0)(0,0); stone: toy_1 with (1,0) → (0,1).
    (wood,), (stone,) = page.rows("wood"), page.rows("stone")
    assert wood == ["wood", "3", "16.7%", "50.0%", "+33.3", "\u2013", "33.3%", "66.7%", "+33.3"]
    assert stone == ["stone", "1", "50.0%", "50.0%", "0.0", "\u2013", "0.0%", "100.0%", "+100.0"]


def test_what_fails_now_is_listed_with_links_to_its_episodes(page: Page) -> None:
    # After training: (1,1) is solved, (0,1) and (1,0) are now and then, (0,0) is not.
    text = " ".join(page.text.split())
    assert "After training, no sampled episode solves 1 item, and only some solve 2 more items." in text
    table = next(table for table in page.tables if table[0][:3] == ["item", "kind", "before"])
    assert [row[:6] for row in table[1:]] == [
        ["toy_3", "depth 2, kind wood", "0 of 2", "0 of 2", "2", "max turns"],
        ["toy_1", "depth 1, kind stone", "1 of 2", "1 of 2", "2", "max turns"],
        ["toy_2", "depth 2, kind wood", "0 of 2", "1 of 2", "2", "max turns"],
    ]
    assert [row[6] for row in table[1:]] == ["Got 1 log"] * 3
    # Before: lines 1 to 5 sampled, two of them of toy_1, 6 to 9 greedy; after: toy_0 is in line 10, toy_1 in
    # 11, the two samples of toy_2 are in 12 and 13, and toy_3 is in 14.
    run = "http://127.0.0.1:8003/#/run/toy-run"
    for link in ("at/evaluation:14", "at/evaluation:11", "at/evaluation:13", "item?item=toy_3"):
        assert f"{run}/{link}" in page.references
    assert "wingspan view " in text


def test_the_first_episode_and_the_first_that_does_not_solve_the_item_are_kept() -> None:
    def list_kept_samples(*outcomes: bool | None) -> list[int]:
        """None is a failed episode."""
        group = [
            make_failure(ITEMS[0], error="EnvCrashed: x")
            if ok is None
            else make_trajectory(ITEMS[0], success=ok)
            for ok in outcomes
        ]
        numbered = [replace(trajectory, sample_index=index) for index, trajectory in enumerate(group)]
        return [trajectory.sample_index for trajectory in episodes_to_keep(numbered)]

    assert list_kept_samples(True, True) == [0]
    assert list_kept_samples(True, None, False, False) == [0, 2]
    assert list_kept_samples(False, True, False) == [0]
    assert list_kept_samples(None, True) == [0]
    assert list_kept_samples(None, False) == [0, 1]


def test_dropped_episodes_and_time(page: Page) -> None:
    assert page.rows("training") == [["training", "9", "1", "EnvCrashed 1"]]
    assert page.rows("final evaluation") == [["final evaluation", "24", "0", "\u2013"]]
    # 26 s of training: four steps of 2 + 1 + 0.25 + 0.75 s, and 10 s outside them.
    assert page.rows("rollout")[0][:3] == ["rollout", "8.0 s", "30.8%"]
    assert page.rows("rest")[0][:3] == ["rest", "3.0 s", "11.5%"]
    assert page.rows("start-up and quick evaluations")[0][1] == "10.0 s"
    assert page.rows("all stages")[0][1] == "30.0 s"


def test_dropped_episodes_of_added_groups_are_counted(tmp_path: Path) -> None:
    write_workspace(tmp_path)
    file = tmp_path / "train" / "metrics.jsonl"
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    steps[2] |= {"added_episodes": 3, "added_turns": 7, "added_tokens": 21}
    steps[2] |= {"added_dropped": 2, "added_dropped_EnvCrashed": 1, "added_dropped_EnvTimeout": 1}
    file.write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    page = Page(report(toy_pipeline(), tmp_path))
    # Eight counted ones and a failure among the first-drawn ones, five more were added.
    assert page.rows("training") == [["training", "14", "3", "EnvCrashed 2, EnvTimeout 1"]]
    assert "episodes 11" in re.sub(r"\s+", " ", page.text)


def test_totals_of_training(page: Page) -> None:
    text = re.sub(r"\s+", " ", page.text)
    # 28 turns of 3 tokens; rollouts took 4 times 2 s.
    for fact in ("episodes 8", "environment steps 28", "sampled tokens 84", "time in steps 16.0 s"):
        assert fact in text
    assert "tokens/s in rollouts 10 " in text


def test_pairs_are_of_one_item_and_show_every_turn(workspace: Path, page: Page) -> None:
    pairs = choose_pairs(read_results(workspace), decode=str)
    pairs_by_id = {pair.item.item_id: pair for pair in pairs}
    assert {item_id: pair.verdict for item_id, pair in pairs_by_id.items()} == {
        "toy_0": PairVerdict.NEWLY_SOLVED,
        "toy_1": PairVerdict.NO_LONGER_SOLVED,
        "toy_2": PairVerdict.NEWLY_SOLVED,
        "toy_3": PairVerdict.STILL_UNSOLVED,
    }
    assert pairs[0].item.item_id == "toy_2"  # the deepest that training has solved
    turn = pairs_by_id["toy_0"].after.turns[0]
    assert (turn.thought, turn.action, turn.completion.policy_version) == ("wood first", "get 1 log", 4)
    assert pairs_by_id["toy_0"].opening == "(1, 2)"
    assert page.text.count("3 tokens, log-prob \u22120.58, version 4") == 8  # four items of two turns


def test_an_item_with_a_dropped_episode_is_not_shown(tmp_path: Path) -> None:
    write_evaluation(tmp_path)
    file = tmp_path / "evaluation_trajectories.jsonl"
    lines = file.read_text().splitlines()
    lines[0] = lines[0].replace('"max_turns"', '"error"')
    file.write_text("\n".join(lines))
    pairs = choose_pairs(read_results(tmp_path), decode=str)
    assert sorted(pair.item.item_id for pair in pairs) == ["toy_1", "toy_2", "toy_3"]


def test_the_page_is_well_formed_and_needs_nothing_else(page: Page) -> None:
    assert len(page.ids) == len(set(page.ids))
    assert page.references
    viewer = "http://127.0.0.1:8003/#/run/toy-run/"
    other_references = [reference for reference in page.references if not reference.startswith(viewer)]
    assert {reference.removeprefix("#") for reference in other_references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)


def test_plots_follow_the_page_s_colours(workspace: Path) -> None:
    drawings = re.findall(r"<svg.*?</svg>", (workspace / "report" / "index.html").read_text(), re.DOTALL)
    assert len(drawings) == 16
    for drawing in drawings:
        assert (
            re.findall(r"#[0-9a-fA-F]{6}\b(?!-)", re.sub(r'"[^"]*#[^":;]*"|url\([^)]*\)', "", drawing)) == []
        )
        assert "var(--ink)" in drawing


def test_plots_are_files_too(workspace: Path) -> None:
    folder = workspace / "report"
    names = {
        "success",
        "by_depth",
        "by_kind",
        "turns",
        "stop_reasons",
        "informative_groups",
        "entropy",
        "seconds",
        "reward",
        "tokens_per_episode",
        "tokens_per_turn",
        "kl",
        "clip_fraction",
        "grad_norm",
        "lr",
    }
    assert {path.stem for path in folder.glob("*.svg")} == names | {"success_narrow"}
    for path in folder.glob("*.svg"):
        assert ET.fromstring(path.read_text()).tag.endswith("svg")
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.heavy
def test_the_same_workspace_gives_the_same_page(workspace: Path) -> None:
    folder = workspace / "report"
    first = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "old.svg").write_text("of an earlier page")
    assert report(toy_pipeline(), workspace) == folder / "index.html"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == first


@pytest.mark.heavy
def test_hostile_text_stays_text(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>--></svg></style>{{ 7 * 7 }}$\\frac{"
    items = [
        type(item)(
            item_id=f"{evil}{index}",
            env=item.env,
            metadata={"depth": item.metadata["depth"], f"{evil}key/../x": f"{evil}{index % 2}"},
        )
        for index, item in enumerate(ITEMS)
    ]
    write_workspace(tmp_path, items=items, action=evil)
    page = Page(report(toy_pipeline(), tmp_path))
    assert not {"script", "img"} & set(page.tags)
    assert "onerror" not in page.attributes
    assert page.text.count(evil) > 16  # items, metadata, plot labels, and an action per turn
    assert "49" not in page.text.split(evil)[1]


@pytest.mark.heavy
def test_a_plot_of_any_text_is_an_image(tmp_path: Path) -> None:
    """Of metadata with controls, which no XML has, and with halves of surrogate pairs, which no font has."""
    items = [
        replace(item, metadata={"k": ("a\x1b[31m", "\ud800\uffff")[index % 2], "half \ud800": index % 2})
        for index, item in enumerate(ITEMS)
    ]
    write_workspace(tmp_path, items=items)
    path = report(toy_pipeline(), tmp_path)
    plots = list(path.parent.glob("by_*.svg"))
    assert len(plots) == 2
    for plot in plots:
        assert ET.fromstring(plot.read_bytes()).tag.endswith("svg")
    assert "a\ufffd[31m" in (path.parent / "by_k.svg").read_text()


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"trained": 0, "informative_groups": 0.0}, "no group was informative"),
        ({"trained": 0, "informative_groups": 0.5}, "no episode was trained on"),
        ({"trained": 2, "informative_groups": 0.0}, None),
        ({"informative_groups": 0.0}, None),  # of an offline algorithm
    ],
)
def test_a_training_that_did_not_change_the_policy_has_a_cause(
    values: dict[str, float], cause: str | None
) -> None:
    line = None if cause is None else f"{cause}: the policy did not change"
    assert explain_unchanged([values, values]) == line
    assert explain_unchanged([values, {"trained": 1, "informative_groups": 1.0}]) is None
    assert explain_unchanged([]) is None


@pytest.mark.heavy
def test_a_training_that_did_not_change_the_policy_says_so(tmp_path: Path) -> None:
    write_training(tmp_path)
    file = tmp_path / "train" / "metrics.jsonl"
    steps = [json.loads(line) | {"trained": 0, "informative_groups": 0.0} for line in file.open()]
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    page = Page(report(toy_pipeline(), tmp_path))
    assert "No group was informative: the policy did not change." in page.text


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("writers", "missing"),
    [
        ([], ["Training has not begun", "final evaluation is missing", "provision.json"]),
        ([write_training, write_rounds], ["No trajectories to read", "timing.json"]),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, writers: list[Callable[[Path], None]], missing: list[str]
) -> None:
    for write in writers:
        write(tmp_path)
    page = Page(report(toy_pipeline(), tmp_path))
    for words in (*missing, "not evaluated yet"):
        assert words in page.text


@pytest.mark.heavy
def test_a_run_that_was_stopped_says_where(stopped_page: Page) -> None:
    assert "Training is at step 4 of 9." in stopped_page.text


@pytest.mark.heavy
def test_a_run_that_was_stopped_in_its_first_round_says_what_is_missing(stopped_page: Page) -> None:
    for words in ("No round has ended", "final evaluation is missing", "not evaluated yet"):
        assert words in stopped_page.text


@pytest.mark.heavy
def test_without_a_warm_up_before_is_the_model(untrained_page: Page) -> None:
    assert "This pipeline has no warm-up" in untrained_page.text
    assert "Before is the model it starts from." in untrained_page.text


@pytest.mark.heavy
def test_of_a_model_that_was_only_evaluated_training_is_missing(untrained_page: Page) -> None:
    assert "Training has not begun" in untrained_page.text
    assert "not evaluated yet" not in untrained_page.text


@pytest.mark.heavy
def test_the_fine_print_is_of_what_was_evaluated(changed_page: Page) -> None:
    text = " ".join(changed_page.text.split())
    assert "Sampled at temperature 0.7, 1 sample per item" in text
    assert "Quick evaluations run 4 test items once each" in text  # of a test split of four


@pytest.mark.heavy
def test_a_turn_that_could_not_be_parsed_is_shown_as_it_was_written(changed_page: Page) -> None:
    text = changed_page.text
    assert text.count("Let me <think> about wood") == 16  # four items of two turns, before and after
    assert text.count("no action found") == 16


def test_parameters_are_listed_by_block_and_none_is_json(page: Page) -> None:
    headings = re.findall(r"<h3>([\w.-]+)</h3>", page.source)
    assert {"pipeline", "data", "data.parts.one-step", "rollout", "train"} <= set(headings)
    assert "where.depth [1]" in re.sub(r"\s+", " ", page.text)
    assert '{"' not in page.text


@pytest.mark.heavy
def test_parameters_that_a_run_changed_are_listed_first(changed_page: Page) -> None:
    default = toy_pipeline()
    assert default.warmup is not None
    assert changed_page.rows("train.lr") == [["train.lr", str(default.train.lr), "0.25"]]
    assert changed_page.rows("warmup.steps") == [["warmup.steps", str(default.warmup.steps), "\u2013"]]


@pytest.mark.parametrize(
    ("uri", "page_uri"),
    [
        ("sqlite:///mlflow.db", f"run abc in sqlite:///{Path.cwd()}/mlflow.db"),
        ("sqlite:////data/mlflow.db", "run abc in sqlite:////data/mlflow.db"),
        ("mlruns", f"run abc in {Path.cwd()}/mlruns"),
        ("file:///data/mlruns", "run abc in file:///data/mlruns"),
        (
            "http://me:secret@tracking:5000/",
            "http://tracking:5000/#/experiments/7/runs/abc?workflowType=machine_learning",
        ),
        ("postgresql://me:secret@store/db", "run abc in postgresql://store/db"),
    ],
)
def test_the_mlflow_run_is_named_without_a_password(tmp_path: Path, uri: str, page_uri: str) -> None:
    record = {"uri": uri, "run_id": "abc", "experiment_id": "7", "identity": "", "finished": False}
    (tmp_path / "mlflow.json").write_text(json.dumps(record))
    page = Page(report(toy_pipeline(), tmp_path))
    assert page_uri in page.text
    assert "secret" not in page.source


def test_curves_are_smoothed_by_the_mean_of_their_neighbours() -> None:
    assert smoothing_window(9) == 1
    assert smoothing_window(51) == 7
    values = [(float(step), float(step % 2)) for step in range(1, 17)]
    curve = smooth(values)  # over three steps
    assert [step for step, _ in curve] == [step for step, _ in values]
    assert curve[0][1] == pytest.approx(1 / 2)  # of 1 and 0: there is none before it
    assert curve[1][1] == pytest.approx(2 / 3)  # 1, 0, 1
    assert curve[2][1] == pytest.approx(1 / 3)


def test_the_first_rate_does_not_cover_the_axis() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 3.8), layout="constrained")
    axes = figure.subplots()
    paint = success_over_steps(
        training=[(1.0, 0.5), (2.0, 0.6)], quick=[], before=0.4, after=0.7, final_step=2, stages=[(1, 2, 10)]
    )
    paint(axes)
    figure.draw_without_rendering()
    (label,) = [text for text in axes.texts if text.get_text() == "40.0%"]
    numbers = [tick.get_window_extent() for tick in axes.get_yticklabels()]
    assert not any(label.get_window_extent().overlaps(number) for number in numbers)


@pytest.mark.parametrize("choice", ["best", "last"])
def test_the_evaluation_of_the_best_policy_is_drawn_at_the_step_that_it_is_of(
    tmp_path: Path, choice: str
) -> None:
    """The best round ended with step 2 of 4."""
    write_workspace(tmp_path)
    (tmp_path / "train" / "best.json").write_text('{"index": 0}')
    report(toy_pipeline(train__final_policy=choice), tmp_path)
    plot = (tmp_path / "report" / "success.svg").read_text()
    markers = re.findall(r'<use [^>]*x="([\d.]+)" y="[\d.]+" style="fill: (#\w+)', plot)
    tick_xs = [float(x) for x, _ in markers[:5]]  # of the steps 0 to 4
    after_x = next(float(x) for x, color in markers if color == AFTER)
    assert after_x == tick_xs[2] if choice == "best" else after_x > tick_xs[4]


def test_a_policy_without_a_rate_of_the_first_group_is_in_the_legend() -> None:
    labels: list[str] = []

    def draw(axes: "Axes") -> None:
        spans = [(0.0, 1.0), (0.4, 0.6)]
        before, after = [None, 0.5], [0.5, 0.6]
        paired_bars(key="", labels=["a", "b"], before=before, after=after, intervals=(spans, spans))(axes)
        legend = axes.get_legend()
        assert legend is not None
        labels.extend(text.get_text() for text in legend.get_texts())

    render_plot("bars", draw, alt="")
    assert labels == ["before", "after"]


@pytest.mark.heavy
def test_numbers_that_are_missing_or_infinite_leave_a_report(tmp_path: Path) -> None:
    """A turn without a token has no log-prob; the KL of one step, and all gradient norms, are infinite."""
    write_workspace(tmp_path)
    file = tmp_path / "train" / "metrics.jsonl"
    steps = [json.loads(line) | {"grad_norm": float("inf")} for line in file.read_text().splitlines()]
    steps[1]["kl"] = float("inf")
    file.write_text("".join(json.dumps(step) + "\n" for step in steps))
    file = tmp_path / "evaluation_trajectories.jsonl"
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    for episode in episodes:
        episode["turns"][0]["completion"] |= {"token_ids": [], "logprobs": []}
    file.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    page = Page(report(toy_pipeline(), tmp_path))
    assert "0 tokens, version 4" in page.text
    assert "3 tokens, log-prob \u22120.58, version 4" in page.text
    assert {plot.stem for plot in (tmp_path / "report").glob("*.svg")} & {"kl", "grad_norm"} == {"kl"}


@pytest.mark.heavy
def test_a_run_with_its_lineage_says_how_to_reproduce_it(
    stopped_page: Page, changed_workspace: Path, changed_page: Page
) -> None:
    assert "wingspan reproduce" not in stopped_page.text
    assert f"wingspan reproduce '{changed_workspace}'" in changed_page.text


def test_a_finished_run_lacks_nothing(page: Page) -> None:
    assert "missing" not in page.text


@pytest.mark.parametrize("groups", [2, 4, 6, 8])
def test_the_labels_below_the_bars_of_groups_do_not_overlap(groups: int) -> None:
    label = "an international calling code\n49% → 72%\n100 items"
    drawn: list[Axes] = []

    def draw(axes: "Axes") -> None:
        rates = [1.0] * groups
        spans = [(0.9, 1.0)] * groups
        labels = [label] * groups
        paired_bars(key="kind", labels=labels, before=rates, after=rates, intervals=(spans, spans))(axes)
        drawn.append(axes)

    render_plot("bars", draw, alt="", width=5.0, height=3.1)
    boxes = [text.get_window_extent() for text in drawn[0].get_xticklabels()]
    assert len(boxes) == groups
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
