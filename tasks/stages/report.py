"""Stage `report`: a page about a run, its plots as files, and its main figures for DVC.

Chooses the contents and their wording. `tasks/reporting/results.py` reads the workspace, `chart_style.py`
styles the plots, and `templates/` holds the layout. The page needs no network and no script; text of
environments and policies is escaped. The same workspace gives the same page, except for the commit and the
versions of the code, and the place of the MLflow store.
"""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agents.huggingface.files import decoder
from envs.files import write_atomically
from envs.redaction import redact_values, without_password
from tasks.config.offline import OfflineSettings
from tasks.config.parameters import group_leaves, read_changes, read_pipeline_name
from tasks.config.pipelines import Pipeline
from tasks.data.hashes import path_md5
from tasks.data.items import training_turns
from tasks.evaluation.intervals import MIN_BOOTSTRAP, mean_interval
from tasks.evaluation.outcomes import MODES, POLICIES, Summary, compare_samples, item_means
from tasks.evaluation.paired import PairedTest
from tasks.reporting import charts, figures, links
from tasks.reporting.excerpts import LISTED, choose_pairs, failing_items
from tasks.reporting.figure_files import write_figures
from tasks.reporting.pages import duration, render_page, write_page
from tasks.reporting.results import (
    Results,
    count_dropped,
    environment_steps,
    groupings,
    num_dropped,
    num_episodes,
    num_tokens,
    phases,
    read_results,
    stages_of,
)
from tasks.runs.parameters import ALL_PARAMETERS
from tasks.runs.progress import SILENT, Progress
from tasks.runs.provenance import provenance, uncommitted_files
from tasks.runs.rounds import explain_unchanged, final_step
from tasks.tracking.lineage_record import LINEAGE
from tasks.tracking.names import absolute_store, run_page
from tasks.tracking.record import read_record


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A success rate before and after training, on the test split: means over items."""

    before: float
    after: float
    before_interval: tuple[float, float]
    after_interval: tuple[float, float]
    test: PairedTest
    """The test of the items' success after training against that before, with the interval of the gain."""

    @property
    def gain(self) -> float:
        """After minus before, of the items that have samples in both: that of `test`."""
        return self.test.mean


def report(pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> Path:
    """Write `report/index.html` and its plots (`*.svg`, `*.png`) from the files in `workspace`, and the files
    of `tasks/reporting/figure_files.py`.

    The page names what is missing. Returns the page's path.
    """
    results = read_results(workspace)
    parameters = redact_values(pipeline.model_dump(mode="json"))
    changes = {mode: change_of(results, mode=mode) for mode in MODES}
    stages = stages_of(horizon_steps(results, pipeline=pipeline))
    all_groupings = groupings(results)
    settings = pipeline.train
    step_of_final = final_step(workspace / "train", settings.final_policy, last=settings.steps)
    plots = figures.all_plots(results, stages=stages, groupings=all_groupings, final_step=step_of_final)
    page = render_page(
        "report.html",
        name=workspace.resolve().name,
        pipeline_name=read_pipeline_name(workspace),
        pipeline=pipeline,
        results=results,
        stages=stages,
        modes=MODES,
        min_items=MIN_BOOTSTRAP,
        changes=changes,
        groupings=all_groupings,
        pairs=choose_pairs(results, decode=decoder(workspace / "policy")),
        failures=failing_items(results),
        listed=LISTED,
        viewer=links.RunPages(workspace.resolve().name),
        view_command=links.view_command([workspace]),
        plots={plot.name: plot for plot in plots},
        missing=missing_parts(results, pipeline=pipeline),
        totals=totals(results),
        unchanged=explain_unchanged(results.steps),
        dropped=dropped_by_place(results),
        phases=phase_table(results),
        is_offline=isinstance(pipeline.train, OfflineSettings),
        parameters=group_leaves(parameters),
        changed=redact_values(read_changes(workspace)),
        quick_items=count_quick_items(results),
        window=charts.smoothing_window(len(results.steps)),
        mlflow=mlflow_run(workspace),
        lineage=lineage(results, workspace, pipeline=pipeline),
        reproduce_command=reproduce_command(workspace),
    )
    path = write_page(workspace / "report", page=page, plots=plots, possible_plots=["*"])
    text = json.dumps(parameters, indent=2, ensure_ascii=False)
    write_atomically(path.with_name(ALL_PARAMETERS), text + "\n")
    metrics = main_figures(results, changes=changes)
    write_figures(workspace, metrics=metrics, results=results, groupings=all_groupings)
    return path


def main_figures(results: Results, *, changes: Mapping[str, Change | None]) -> dict[str, float]:
    """The figures that two runs are compared by, those that are known.

    `success` on the test split with its 95% interval (`_low`, `_high`), `success_before` training and the
    `gain`, with its interval where it has one (`PairedTest.has_interval`); the same two rates of greedy
    episodes; the number of test `items`, of training `steps`, and the `minutes` that these took.
    """
    figures: dict[str, float] = {}
    if change := changes["sampled"]:
        rates = {"success": change.after, "success_before": change.before, "gain": change.gain}
        intervals = {"success": change.after_interval}
        if change.test.has_interval:
            intervals["gain"] = (change.test.low, change.test.high)
        for name, rate in rates.items():
            figures[name] = rate
            if name in intervals:
                figures[f"{name}_low"], figures[f"{name}_high"] = intervals[name]
    if greedy := changes["greedy"]:
        figures |= {"greedy": greedy.after, "greedy_before": greedy.before, "items": greedy.test.items}
    if results.steps:
        figures["steps"] = len(results.steps)
        figures["minutes"] = sum(step.get("seconds", 0.0) for step in results.steps) / 60
    return figures


def horizon_steps(results: Results, *, pipeline: Pipeline) -> list[int]:
    """The longest horizon of each training step: as recorded, and for the steps to come as planned. An
    adaptive horizon stays where it is."""
    recorded_horizons = [int(step["horizon"]) for step in results.steps]
    steps_to_come = range(len(recorded_horizons) + 1, pipeline.train.steps + 1)
    planned_horizons = [
        max(training_turns(pipeline, step=step, evidence={}).values()) for step in steps_to_come
    ]
    return recorded_horizons + [max([turns, *recorded_horizons[-1:]]) for turns in planned_horizons]


def change_of(results: Results, *, mode: str) -> Change | None:
    """The change of the success rate in one mode; None until both policies are evaluated."""
    before, after = (results.rate(policy, mode) for policy in POLICIES)
    samples = [results.outcomes.get(policy, {}).get(mode, {}) for policy in POLICIES]
    test = compare_samples(*samples)
    if before is None or after is None or test is None:
        return None
    before_interval, after_interval = (mean_interval([*item_means(s).values()]) for s in samples)
    return Change(
        before=before, after=after, before_interval=before_interval, after_interval=after_interval, test=test
    )


def count_quick_items(results: Results) -> int:
    """The number of test items in a quick evaluation; 0 before the first."""
    return max((int(r.evaluation["episodes"] + r.evaluation["dropped"]) for r in results.rounds), default=0)


def mlflow_run(workspace: Path) -> dict[str, str]:
    """The MLflow run that records this one: its `id`, the `store` with its whole path and, on a server, the
    `url` of its page."""
    record = read_record(workspace)
    if not record:
        return {}
    store = absolute_store(without_password(record["uri"]))
    run = {"id": record["run_id"], "store": store}
    if store.startswith(("http://", "https://")):
        run["url"] = store.rstrip("/") + run_page(record["experiment_id"], record["run_id"])
    return run


def reproduce_command(workspace: Path) -> str | None:
    """The command that reproduces the run; None if its lineage was not recorded."""
    return shlex.join(["wingspan", "reproduce", str(workspace)]) if (workspace / LINEAGE).exists() else None


def missing_parts(results: Results, *, pipeline: Pipeline) -> list[str]:
    """What the page does not show yet, in sentences."""
    done, due = len(results.steps), pipeline.train.steps
    parts = {
        "This pipeline has no warm-up: “before” is the model it starts from.": pipeline.warmup is None,
        "Training has not begun: no train/metrics.jsonl.": done == 0,
        f"Training is at step {done} of {due}.": 0 < done < due,
        "No round has ended yet: there is no quick evaluation.": done > 0 and not results.rounds,
        "The final evaluation is missing: no evaluation.json.": not results.evaluation,
        "The outcomes of single items are missing: no evaluation_outcomes.json.": bool(results.evaluation)
        and not results.outcomes,
        "No trajectories to read: no evaluation_trajectories.jsonl.": not results.trajectories,
        "How long the stages took was not recorded: no timing.json.": not results.seconds,
        "No receipt of the environments: no provision.json.": not results.provision,
    }
    return [text for text, holds in parts.items() if holds]


def totals(results: Results) -> dict[str, float]:
    """The totals of training: episodes, tokens, seconds and so on; empty before its first step."""
    if not results.steps:
        return {}
    tokens = sum(map(num_tokens, results.steps))
    return {
        "episodes": sum(map(num_episodes, results.steps)),
        "tokens": tokens,
        "seconds": sum(step.get("seconds", 0.0) for step in results.steps),
        "steps": len(results.steps),
        "turns": environment_steps(results)[-1],
        "informative": fmean(
            [step["informative_groups"] for step in results.steps if "informative_groups" in step] or [0.0]
        ),
        "tokens_per_s": tokens / (sum(step["seconds_rollout"] for step in results.steps) or 1.0),
    }


def dropped_by_place(results: Results) -> dict[str, tuple[int, dict[str, int]]]:
    """The episodes of each place (training, evaluations), counted or dropped, and those dropped, by cause."""
    places: dict[str, list[Summary]] = {
        "training": [*results.steps],
        "quick evaluations": [done.evaluation for done in results.rounds],
        "final evaluation": [summary for modes in results.evaluation.values() for summary in modes.values()],
    }
    return {
        place: (int(sum(num_episodes(s) + num_dropped(s) for s in summaries)), count_dropped(summaries))
        for place, summaries in places.items()
        if summaries
    }


def phase_table(results: Results) -> list[tuple[str, float, float]]:
    """(phase, total seconds, share) of the training steps, then of the train stage outside them."""
    rows = [(name, sum(seconds)) for name, seconds in phases(results).items() if sum(seconds) > 0]
    if rows and "train" in results.seconds:
        other_s = results.seconds["train"] - sum(step["seconds"] for step in results.steps)
        rows.append(("start-up and quick evaluations", max(0.0, other_s)))
    whole = sum(seconds for _, seconds in rows) or 1.0
    return [(name.replace("_", " "), seconds, seconds / whole) for name, seconds in rows]


def lineage(results: Results, workspace: Path, *, pipeline: Pipeline) -> dict[str, str]:
    """The origin of the results: files by MD5 (data as in `dvc.lock`), the current code and versions."""
    facts = provenance(envs=pipeline.data.envs, uncommitted=uncommitted_files())
    origins = {}
    if "git.commit" in facts:
        origins["commit"] = facts["git.commit"] + (" and changes" if facts["git.dirty"] == "true" else "")
    for name in ("data/train.jsonl", "data/test.jsonl", "policy/model.safetensors"):
        if (workspace / name).exists():
            origins[name] = path_md5(workspace / name)
    versions = {"python": facts["python"]} | {
        key.removeprefix("version."): value for key, value in facts.items() if key.startswith("version.")
    }
    origins["versions"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    if results.provision:
        receipt = results.provision
        origins["environments"] = (
            f"{receipt['capacity']} at once; of {receipt['episodes']} items the experts solved "
            f"{receipt['solved']} in {duration(receipt['seconds'])}"
        )
    return origins
