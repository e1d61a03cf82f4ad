"""The results of a run, read from its workspace: the data of a report and of a comparison.

Parts that no stage has written yet are empty or None, so that an unfinished run has a report too.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from agents.types import Trajectory
from envs.files import check_keys, read_json, read_lines_as
from envs.types import Item, replace_surrogates
from tasks.data.collapse import ALERTS, Alert
from tasks.data.hashes import text_md5
from tasks.data.trajectories import read_trajectories, sort_kinds
from tasks.evaluation.intervals import mean_interval
from tasks.evaluation.outcomes import (
    COUNTS,
    MODES,
    OUTCOMES,
    POLICIES,
    Evaluation,
    Samples,
    Summary,
    compare_samples,
    item_means,
    read_evaluation,
    read_outcomes,
    success_of,
)
from tasks.evaluation.paired import PairedTest
from tasks.runs.folders import EVALUATION_TRAJECTORIES
from tasks.runs.rounds import RoundResult, read_rounds, round_file
from tasks.runs.steps import read_steps
from tasks.runs.usage import Usage, read_usage
from tasks.verl.rewinds import Rewind, read_rewinds

MAX_GROUPS = 8
"""A metadata key with more values than this identifies items, not kinds of items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The files of a workspace."""

    steps: list[dict[str, float]]
    """`train/metrics.jsonl`: one training step each, ascending."""
    rounds: list[RoundResult]
    rewinds: list[Rewind]
    alerts: list[Alert]
    """`train/alerts.jsonl`: signs of a collapse, ascending by step."""
    evaluation: Evaluation
    """The content of `evaluation.json`; empty before the evaluation."""
    outcomes: Mapping[str, Mapping[str, Samples]]
    """Policy → mode → item → successes, as in `evaluation_outcomes.json`; empty before the evaluation."""
    trajectories: list[Trajectory]
    """The trajectories of `episodes_to_keep` for every test item, policy and mode, which `labels` name."""
    seconds: Mapping[str, float]
    """The seconds by stage, with earlier attempts at a training; without the report stage, which is still
    running."""
    usage: Mapping[str, Usage]
    """The usage by stage, like `seconds`; empty where it was not recorded."""
    provision: Mapping[str, Any]

    def items(self) -> list[Item]:
        """The items that were evaluated, in order."""
        return list({t.item.item_id: t.item for t in self.trajectories}.values())

    @property
    def counted_rounds(self) -> list[RoundResult]:
        """The rounds in whose quick evaluation an episode counted, which have its `success`."""
        return [done for done in self.rounds if "success" in done.evaluation]

    def rate(self, policy: str, mode: str) -> float | None:
        """Success on the test split; None where it was not evaluated or no episode counted."""
        return success_of(self.outcomes.get(policy, {}).get(mode, {}))

    def sampled(self, policy: str) -> dict[str, list[tuple[int, Trajectory]]]:
        """The recorded sampled trajectories of one policy, by item id: the first sample first, each with its
        line in `evaluation_trajectories.jsonl`, counted from 1."""
        by_item: dict[str, list[tuple[int, Trajectory]]] = {}
        for line, trajectory in enumerate(self.trajectories, start=1):
            if trajectory.labels.get("policy") == policy and trajectory.labels.get("mode") == "sampled":
                by_item.setdefault(trajectory.item.item_id, []).append((line, trajectory))
        return by_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Success of the items that share one value of one metadata key."""

    value: object
    items: int
    rates: Mapping[tuple[str, str], float | None]
    """The rates by policy and mode, over items."""
    intervals: Mapping[tuple[str, str], tuple[float, float]]
    """The intervals of these rates."""
    gain: PairedTest | None
    """The gain of the sampled episodes after training against those before; None if no item has both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping:
    """Success by the values of one metadata key, e.g. `depth`."""

    key: str
    groups: list[Group]

    @property
    def plot_name(self) -> str:
        """File name of its plot; metadata keys are arbitrary text."""
        if re.fullmatch(r"\w{1,40}", self.key, flags=re.ASCII):
            return f"by_{self.key}"
        return f"by_{text_md5(replace_surrogates(self.key))[:8]}"


def read_results(workspace: Path) -> Results:
    """Read the files that `workspace` has so far. Raises `DamagedFile`."""
    trajectory_file = workspace / EVALUATION_TRAJECTORIES
    return Results(
        steps=read_steps(workspace, keys=(*COUNTS, "horizon", "seconds", "seconds_rollout")),
        rounds=_read_rounds(workspace / "train"),
        rewinds=read_rewinds(workspace / "train"),
        alerts=read_lines_as(Alert, workspace / "train" / ALERTS),
        evaluation=read_evaluation(workspace),
        outcomes=read_outcomes(workspace / OUTCOMES),
        trajectories=read_trajectories(trajectory_file) if trajectory_file.exists() else [],
        seconds={stage: s for stage, s in read_stage_seconds(workspace).items() if stage != "report"},
        usage={stage: usage for stage, usage in read_usage(workspace).items() if stage != "report"},
        provision=read_json(workspace / "provision.json"),
    )


def _read_rounds(folder: Path) -> list[RoundResult]:
    rounds = read_rounds(folder)
    for result in rounds:
        check_keys(result.evaluation, COUNTS, file=round_file(folder, result.index), at="evaluation")
    return rounds


def read_stage_seconds(workspace: Path) -> dict[str, float]:
    """Seconds by stage; empty where they were not recorded.

    Those of training include earlier attempts, which it resumed; other stages begin anew.
    """
    seconds: dict[str, float] = read_json(workspace / "timing.json").get("stages", {})
    return seconds


def groupings(results: Results) -> list[Grouping]:
    """Success by every metadata key that has 2 to `MAX_GROUPS` plain values over the test items."""
    keys = grouping_keys([item.metadata for item in results.items()])
    return [_grouping(results, key=key, values=values) for key, values in keys.items()]


def grouping_keys(metadata: Sequence[Mapping[str, object]]) -> dict[str, list[object]]:
    """The keys that every item's metadata has with 2 to `MAX_GROUPS` plain values in all; key → values,
    ascending."""
    groupings = {}
    for key in dict.fromkeys(key for values in metadata for key in values):
        values = [item.get(key) for item in metadata]
        if not all(isinstance(value, (str, int, float)) for value in values):
            continue
        distinct = sort_kinds(set(values))
        if 2 <= len(distinct) <= MAX_GROUPS:
            groupings[key] = distinct
    return groupings


def stages_of(horizons: Sequence[int]) -> list[tuple[int, int, int]]:
    """`(first step, last step, max_turns)` of each stretch of equal horizon; steps count from 1."""
    stages, step = [], 0
    for max_turns, stretch in groupby(horizons):
        length = len(list(stretch))
        stages.append((step + 1, step + length, max_turns))
        step += length
    return stages


def environment_steps(results: Results) -> list[float]:
    """Environment steps (turns of the episodes that count) from the start up to each training step."""
    turns = (
        step.get("turns", 0.0) * step["episodes"] + step.get("added_turns", 0.0) for step in results.steps
    )
    return [*accumulate(turns, initial=0.0)][1:]


def num_episodes(step: Summary) -> float:
    """The episodes of a training step that count, those included that were sampled besides the first-drawn
    ones (`StepRecord.metrics`)."""
    return step["episodes"] + step.get("added_episodes", 0.0)


def num_tokens(step: Summary) -> float:
    """The tokens that the policy sampled in the episodes of `num_episodes`."""
    return step.get("tokens", 0.0) + step.get("added_tokens", 0.0)


def num_dropped(step: Summary) -> float:
    """The episodes of a training step that failed, with those of the same kinds as in `num_episodes`."""
    return step["dropped"] + step.get("added_dropped", 0.0)


def count_dropped(summaries: Sequence[Summary]) -> dict[str, int]:
    """Count dropped episodes (`num_dropped`) by cause over `summaries`, the most frequent first."""
    causes: Counter[str] = Counter()
    for summary in summaries:
        for key, count in summary.items():
            cause = key.removeprefix("added_")
            if cause.startswith("dropped_"):
                causes[cause.removeprefix("dropped_")] += int(count)
    return dict(sorted(causes.items(), key=lambda pair: (-pair[1], pair[0])))


def phases(results: Results) -> dict[str, list[float]]:
    """Seconds of every training step by phase; `rest` is the time outside all phases."""
    names = dict.fromkeys(
        key.removeprefix("seconds_") for step in results.steps for key in step if key.startswith("seconds_")
    )
    seconds = {name: [step.get(f"seconds_{name}", 0.0) for step in results.steps] for name in names}
    sums = [sum(parts) for parts in zip(*seconds.values(), strict=True)] or [0.0] * len(results.steps)
    seconds["rest"] = [
        max(0.0, step.get("seconds", 0.0) - part) for step, part in zip(results.steps, sums, strict=True)
    ]
    return seconds


def _grouping(results: Results, *, key: str, values: Sequence[object]) -> Grouping:
    outcomes = {
        (policy, mode): results.outcomes.get(policy, {}).get(mode, {})
        for policy in POLICIES
        for mode in MODES
    }
    groups = []
    for value in values:
        items = [item.item_id for item in results.items() if item.metadata.get(key) == value]
        samples = {pair: {item: of_all.get(item, ()) for item in items} for pair, of_all in outcomes.items()}
        groups.append(
            Group(
                value=value,
                items=len(items),
                rates={pair: success_of(of_group) for pair, of_group in samples.items()},
                intervals={
                    pair: mean_interval([*item_means(of_group).values()])
                    for pair, of_group in samples.items()
                },
                gain=compare_samples(*(samples[policy, "sampled"] for policy in POLICIES)),
            )
        )
    return Grouping(key=key, groups=groups)
