"""The results of a run's final evaluation: its summaries, and its outcomes item by item, for paired tests."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agents.types import Trajectory
from envs.errors import DamagedFile
from envs.files import RESTORE, check_keys, read_as, read_json
from tasks.data.trajectories import success_rates, summarise
from tasks.evaluation.paired import PairedTest, paired_test

EVALUATION = "evaluation.json"
"""The file in the workspace: policy → mode → summary, as `summarise_groups` makes it."""
OUTCOMES = "evaluation_outcomes.json"
"""The file in the workspace: policy → mode → item → whether each of its samples succeeded."""
POLICIES = ("before", "after")
MODES = ("sampled", "greedy")
"""What a final evaluation is of: the policy before and after training, each in these modes."""
COUNTS = ("episodes", "dropped")
"""The keys that every summary has, even where no episode counts."""
Summary = Mapping[str, float]
"""The output of `tasks.data.trajectories.summarise`."""
Evaluation = Mapping[str, Mapping[str, Summary]]
"""Policy → mode → summary."""
Outcomes = dict[str, dict[str, dict[str, list[bool]]]]
"""Policy → mode → item → whether each sample that did not fail succeeded."""
Samples = Mapping[str, Sequence[float]]
"""Item → value of each sample that did not fail: its success, reward or turns."""


def successes_of(groups: Sequence[Sequence[Trajectory]]) -> dict[str, list[bool]]:
    """The outcomes of `groups`, one of each item; failed episodes are left out, as in success rates."""
    return {group[0].item.item_id: [t.success for t in group if not t.has_failed] for group in groups}


def episodes_to_keep(group: Sequence[Trajectory]) -> list[Trajectory]:
    """The first episode of the `group` of an item and, if that is another, the first that does not solve it.

    So that every item that is not always solved has an episode to read, shares of these are no rates.
    """
    unsolved = next((t for t in group if not (t.success or t.has_failed)), group[0])
    return [group[0]] if unsolved is group[0] else [group[0], unsolved]


def summarise_groups(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """`summarise` of the episodes of `groups`, one of each item, but success rates are means over items."""
    means = item_means(successes_of(groups))
    items = [group[0].item for group in groups]
    return summarise([trajectory for group in groups for trajectory in group]) | success_rates(
        [(item, means[item.item_id]) for item in items if item.item_id in means]
    )


def read_evaluation(workspace: Path) -> Evaluation:
    """The content of `EVALUATION`; empty before the evaluation. Raises `DamagedFile`."""
    file = workspace / EVALUATION
    evaluation = read_json(file)
    for policy, summaries in evaluation.items():
        if not isinstance(summaries, dict) or not all(map(_is_summary, summaries.values())):
            raise DamagedFile(f"{file} is damaged ({policy}: these are no summaries by mode); {RESTORE}")
    _check_policies(evaluation, file=file)
    for policy, summaries in evaluation.items():
        for mode, summary in summaries.items():
            check_keys(summary, COUNTS, file=file, at=f"{policy}.{mode}")
    return evaluation


def _check_policies(values: Mapping[str, Mapping[str, object]], *, file: Path) -> None:
    """Raise `DamagedFile` unless each of `POLICIES` has each of `MODES`, or there are no values at all."""
    if values:
        check_keys(values, POLICIES, file=file)
        for policy in POLICIES:
            check_keys(values[policy], MODES, file=file, at=policy)


def _is_summary(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(number, int | float) for number in value.values())


def read_outcomes(file: Path) -> Outcomes:
    """Policy → mode → item → successes; empty if there is no such file. Raises `DamagedFile`."""
    outcomes = read_as(Outcomes, file) or {}
    _check_policies(outcomes, file=file)
    return outcomes


def item_means(samples: Samples) -> dict[str, float]:
    """The mean of each item that has samples."""
    return {item: fmean(values) for item, values in samples.items() if values}


def success_of(samples: Samples) -> float | None:
    """The success rate: the mean over the items that have samples; None if none has."""
    means = item_means(samples)
    return fmean(means.values()) if means else None


def compare_samples(first: Samples, second: Samples) -> PairedTest | None:
    """The paired test of the second against the first, of the means of the items that have samples in both;
    None if there are none. It decides wherever two evaluations of the same items are compared."""
    first_means, second_means = item_means(first), item_means(second)
    items = [item for item in first_means if item in second_means]
    if not items:
        return None
    return paired_test([first_means[item] for item in items], [second_means[item] for item in items])
