"""Finished runs as sides of a comparison: those that differ only by seed are one side."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path

from envs.errors import ConfigError
from envs.types import Item
from tasks.data.items import describe_turns
from tasks.evaluation.outcomes import OUTCOMES, POLICIES, Samples, compare_samples, success_of
from tasks.evaluation.paired import PairedTest
from tasks.reporting.comparison.sides import GREEDY, SUCCESS, Side, Source, check_same_items, same_data_remedy
from tasks.reporting.results import (
    Results,
    environment_steps,
    num_episodes,
    num_tokens,
    read_results,
    stages_of,
)
from tasks.runs.folders import EVALUATION_TRAJECTORIES
from tasks.runs.parameters import read_parameters
from tasks.runs.rounds import final_step

AXES = {
    "steps": "training steps",
    "environment_steps": "environment steps in training",
    "tokens": "tokens sampled in training",
    "minutes": "minutes in training steps",
}
"""What curves are drawn against → label."""
MEASURES = {SUCCESS: "sampled", GREEDY: "greedy"}
"""Measure → mode of the evaluation."""
_TIMES = "\N{MULTIPLICATION SIGN}"


class UnfinishedRun(ConfigError):
    """A run has not been trained, or not been evaluated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run whose policy was trained and evaluated."""

    name: str
    folder: Path
    seed: int | None
    """None if the parameters are not recorded."""
    parameters: Mapping[str, object]
    horizon: str
    """Turns of each curriculum stage times its training steps."""
    before: float
    after: float
    """Mean success over items of the sampled episodes."""
    gain: PairedTest
    """The gain of the items' success after training against that before."""
    items: Mapping[str, Item]
    """The items that were evaluated, in order."""
    samples: Mapping[str, Samples]
    """Measure → item → successes of the trained policy."""
    lines: Mapping[str, int]
    """Item → line of its first sampled episode after training."""
    stops: Mapping[str, int]
    num_failed: int
    totals: Mapping[str, Sequence[float]]
    """Axis of `AXES` → what was spent by the end of each training step; at 0, nothing."""
    test_points: Sequence[tuple[int, float]]
    """(step, success) of the evaluations of all test items, before and after training: the latter at the step
    of the policy that `train.final_policy` chose."""
    quick_points: Sequence[tuple[int, float]]
    """(step, success) of the quick evaluation after each round, which may be of fewer items."""
    training_points: Sequence[tuple[int, float]]
    """(step, success of its training episodes)."""
    costs: Mapping[str, float]
    num_rewinds: int

    def curve(self, points: Sequence[tuple[int, float]], axis: str) -> list[tuple[float, float]]:
        """`points` with what was spent by each step instead of the step."""
        return [(self.totals[axis][step], value) for step, value in points]


def read_run(folder: Path, *, name: str | None = None) -> FinishedRun:
    """The run of `folder`. Raises `UnfinishedRun` for one that is not finished, and `ConfigError` for one
    that cannot be compared, `DamagedFile` among them."""
    results = read_results(folder)
    _check_finished(folder, results)
    parameters = read_parameters(folder)
    samples = [results.outcomes[policy]["sampled"] for policy in POLICIES]
    before, after = map(success_of, samples)
    gain = compare_samples(*samples)
    if before is None or after is None or gain is None:
        raise ConfigError(f"{folder}: no item has outcomes before and after training; evaluate it again")
    totals = _totals(results)
    choice = parameters.get("train.final_policy")
    step_of_final = final_step(folder / "train", choice, last=len(results.steps))
    summary = results.evaluation["after"]["sampled"]
    return FinishedRun(
        name=name or folder.resolve().name,
        folder=folder,
        seed=parameters.get("seed"),
        parameters=parameters,
        horizon=", ".join(
            f"{turns} {_TIMES} {end - first + 1}"
            for first, end, turns in stages_of([int(step["horizon"]) for step in results.steps])
        ),
        before=before,
        after=after,
        gain=gain,
        items={item.item_id: item for item in results.items()},
        samples={measure: results.outcomes["after"][mode] for measure, mode in MEASURES.items()},
        lines={item: episodes[0][0] for item, episodes in results.sampled("after").items()},
        stops={
            key.removeprefix("stop_"): int(count)
            for key, count in summary.items()
            if key.startswith("stop_") and count
        },
        num_failed=int(summary["dropped"]),
        totals=totals,
        test_points=[(0, before), (step_of_final, after)],
        quick_points=[(done.last_step, done.evaluation["success"]) for done in results.counted_rounds],
        training_points=[
            (index, step["success"]) for index, step in enumerate(results.steps, start=1) if "success" in step
        ],
        costs=_costs(results, totals),
        num_rewinds=len(results.rewinds),
    )


def group_by_seed(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Name → runs of each setting, in the order of their first runs.

    Runs are of one setting if their parameters differ by the seed alone, and their seeds are distinct. A run
    whose parameters are not recorded is a setting by itself. A setting's name is what the names of its runs
    begin with.
    """
    groups: dict[str, list[FinishedRun]] = {}
    for run in runs:
        other_parameters = {k: v for k, v in run.parameters.items() if k not in ("seed", "description")}
        key = json.dumps(other_parameters, sort_keys=True) if run.parameters else run.name
        groups.setdefault(key, []).append(run)
    settings: list[list[FinishedRun]] = []
    for group in groups.values():
        is_setting = len({run.seed for run in group}) == len(group)
        settings += [group] if is_setting else [[run] for run in group]
    names = {setting[0].name: setting for setting in settings if len(setting) == 1}
    for setting in settings:
        if len(setting) > 1:
            name = _common_name([run.name for run in setting])
            names[name if name not in names else ", ".join(run.name for run in setting)] = setting
    return dict(sorted(names.items(), key=lambda pair: settings.index(pair[1])))


def side_of(name: str, runs: Sequence[FinishedRun]) -> Side:
    """The side of a setting: the samples of an item are those of all its runs."""
    parameters = dict(runs[0].parameters)
    if len(runs) > 1:
        parameters["seed"] = ", ".join(str(run.seed) for run in runs)
    return Side(
        name=name,
        sources=[Source(name=run.name, lines=run.lines) for run in runs],
        samples={
            measure: {
                item: [value for run in runs for value in run.samples[measure].get(item, [])]
                for item in runs[0].items
            }
            for measure in MEASURES
        },
        by_seed={run.seed: run.after for run in runs if run.seed is not None},
        stops={
            stop: sum(run.stops.get(stop, 0) for run in runs)
            for stop in sorted({s for r in runs for s in r.stops})
        },
        num_failed=sum(run.num_failed for run in runs),
        parameters=parameters,
        costs={
            cost: [run.costs[cost] for run in runs if cost in run.costs]
            for cost in dict.fromkeys(cost for run in runs for cost in run.costs)
        },
    )


def check_comparable(runs: Sequence[FinishedRun]) -> None:
    """Raise `ConfigError` unless all runs were evaluated on the same items, in the same way: as for the
    registry's champion."""
    first = runs[0]
    for run in runs[1:]:
        remedy = same_data_remedy(first.parameters, run.parameters)
        check_same_items(first.items, run.items, names=(first.folder, run.folder), remedy=remedy)
        if not (first.parameters and run.parameters):
            continue
        ways = [_evaluation(known_run.parameters) for known_run in (first, run)]
        for key in ways[0]:
            values = [way[key] for way in ways]
            if values[0] != values[1]:
                raise ConfigError(
                    f"{first.folder} and {run.folder} were evaluated otherwise: {key} is {values[0]} and "
                    f"{values[1]}; evaluate both alike (wingspan evaluate) and compare these evaluations"
                )


def notes_on(runs: Sequence[FinishedRun]) -> list[str]:
    """Caveats that a reader needs before comparing the numbers, as sentences."""
    notes = []
    if unknown_runs := [run.name for run in runs if not run.parameters]:
        notes.append(
            f"The parameters of {', '.join(unknown_runs)} were not recorded, so their seeds are unknown; run "
            "the stage report again to record them."
        )
    known_runs = [run for run in runs if run.parameters]
    repeated_runs = [
        run.name for run in known_runs if [run.parameters for run in known_runs].count(run.parameters) > 1
    ]
    if repeated_runs:
        notes.append(
            f"{', '.join(repeated_runs)} have the same parameters and the same seed, so they are not grouped."
        )
    notes += [
        f"{run.name} went back to an earlier checkpoint {run.num_rewinds} "
        f"{'time' if run.num_rewinds == 1 else 'times'}; the undone steps are in no curve and no cost."
        for run in runs
        if run.num_rewinds
    ]
    return notes


def _evaluation(parameters: Mapping[str, object]) -> dict[str, object]:
    """How a run was evaluated."""
    prefix, suffix = "data.parts.", ".max_turns"
    own_turns = {
        key.removeprefix(prefix).removesuffix(suffix): value
        for key, value in parameters.items()
        if key.startswith(prefix) and key.endswith(suffix) and not isinstance(value, list)  # a horizon's
    }
    turns = {
        part: value or parameters.get("evaluate.max_turns")
        for part, value in own_turns.items()
        if parameters.get(f"{prefix}{part}.evaluate", True)
    }
    return {
        "evaluate.max_turns": describe_turns(turns),
        "evaluate.temperature": parameters.get("evaluate.temperature"),
    }


def _check_finished(folder: Path, results: Results) -> None:
    if not results.steps:
        raise UnfinishedRun(f"{folder} holds no finished run: no train/metrics.jsonl; run its pipeline first")
    if not results.evaluation:
        raise UnfinishedRun(
            f"{folder} has not been evaluated: no evaluation.json; run its pipeline to the end, or leave it "
            "out"
        )
    if not results.outcomes or not results.trajectories:
        file = OUTCOMES if not results.outcomes else EVALUATION_TRAJECTORIES
        raise ConfigError(
            f"{folder} cannot be compared item by item: no {file}; evaluate its policy with `wingspan "
            f"evaluate {folder} ENV`, and compare such evaluations"
        )
    for policy in POLICIES:
        for mode in MEASURES.values():
            if results.rate(policy, mode) is None:
                raise ConfigError(
                    f"{folder} has no {mode} episode of the policy {policy} training that counts, in "
                    f"{OUTCOMES}; evaluate it again"
                )


def _totals(results: Results) -> dict[str, list[float]]:
    steps = results.steps
    return {
        "steps": [float(step) for step in range(len(steps) + 1)],
        "environment_steps": [0.0, *environment_steps(results)],
        "tokens": [*accumulate(map(num_tokens, steps), initial=0.0)],
        "minutes": [*accumulate((step.get("seconds", 0.0) / 60 for step in steps), initial=0.0)],
    }


def _costs(results: Results, totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
    seconds = {"before the report": sum(results.seconds.values())} if results.seconds else {}
    for stage in ("warmup", "train", "evaluate"):
        if stage in results.seconds:
            seconds[stage] = results.seconds[stage]
    usage = results.usage.values()
    return {
        **{f"seconds, {stage}": value for stage, value in seconds.items()},
        "seconds in training steps": 60 * totals["minutes"][-1],
        **({"CPU seconds": sum(stage.cpu_s for stage in usage)} if usage else {}),
        **({"memory": max(stage.peak_memory_bytes for stage in usage)} if usage else {}),
        "training steps": float(len(results.steps)),
        "episodes": sum(map(num_episodes, results.steps)),
        "environment steps": totals["environment_steps"][-1],
        "tokens": totals["tokens"][-1],
    }


def _common_name(names: Sequence[str]) -> str:
    """`grpo` of `grpo-seed0` and `grpo-seed1`, of `grpo-seed10` and `grpo-seed11`, and of `grpo-s0` and
    `grpo-s1`."""
    common_letters = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    prefix = "".join(letters[0] for letters in common_letters)
    return re.sub(r"(seed|(?<=[-_. ])s)\d*$", "", prefix).rstrip("-_. ") or names[0]
