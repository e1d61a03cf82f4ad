"""The outcomes of a run's final evaluation item by item, `evaluation_outcomes.json`, for paired tests."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agents.types import StopReason, Trajectory
from tasks.reporting.paired import PairedTest, paired_test

OUTCOMES = "evaluation_outcomes.json"
"""In the workspace: policy → mode → item → whether each of its samples succeeded."""
Successes = Mapping[str, Sequence[bool]]
"""Item → success of each sample that did not fail."""


def successes_of(groups: Sequence[Sequence[Trajectory]]) -> dict[str, list[bool]]:
    """The outcomes of `groups`, one of each item; failed episodes are left out, as in success rates."""
    return {
        group[0].item.item_id: [t.success for t in group if t.stop_reason is not StopReason.ERROR]
        for group in groups
    }


def read_outcomes(file: Path) -> dict[str, dict[str, dict[str, list[bool]]]]:
    """Policy → mode → item → successes."""
    outcomes: dict[str, dict[str, dict[str, list[bool]]]] = json.loads(file.read_text())
    return outcomes


def compare_successes(first: Successes, second: Successes) -> PairedTest | None:
    """The paired test of the second against the first over the items that have outcomes in both; None if
    there are none."""
    items = [item for item in first if first[item] and second.get(item)]
    if not items:
        return None
    return paired_test([fmean(first[item]) for item in items], [fmean(second[item]) for item in items])
