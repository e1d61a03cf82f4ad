"""The outcomes of a run's final evaluation item by item, `evaluation_outcomes.json`, for paired tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agents.types import Trajectory
from tasks.reporting.paired import PairedTest, paired_test

OUTCOMES = "evaluation_outcomes.json"
"""In the workspace: policy → mode → item → whether each of its samples succeeded."""
Samples = Mapping[str, Sequence[float]]
"""Item → value of each sample that did not fail: its success, reward or turns."""


def successes_of(groups: Sequence[Sequence[Trajectory]]) -> dict[str, list[bool]]:
    """The outcomes of `groups`, one of each item; failed episodes are left out, as in success rates."""
    return {group[0].item.item_id: [t.success for t in group if not t.has_failed] for group in groups}


def read_outcomes(file: Path) -> dict[str, dict[str, dict[str, list[bool]]]]:
    """Policy → mode → item → successes."""
    outcomes: dict[str, dict[str, dict[str, list[bool]]]] = json.loads(file.read_text())
    return outcomes


def item_means(samples: Samples) -> dict[str, float]:
    """The mean of each item that has samples."""
    return {item: fmean(values) for item, values in samples.items() if values}


def compare_samples(first: Samples, second: Samples) -> PairedTest | None:
    """The paired test of the second against the first, of the means of the items that have samples in both;
    None if there are none. It decides wherever two evaluations of the same items are compared."""
    first_means, second_means = item_means(first), item_means(second)
    items = [item for item in first_means if item in second_means]
    if not items:
        return None
    return paired_test([first_means[item] for item in items], [second_means[item] for item in items])
