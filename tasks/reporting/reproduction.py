"""Compares a run with its reproduction, number by number: `wingspan reproduce`.

Values that depend on time or on the machine's load are left out: seconds, rates per second, live environments
(`tasks/tracking/names.py` puts these in the sections `time` and `system`). Everything else is compared for
equality, not within a tolerance.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tasks.config.parameters import differing_values, flat
from tasks.tracking.lineage_record import LineageRecord
from tasks.tracking.names import TOOL_SECONDS, step_metric
from tasks.tracking.references import FoundRun

COLUMNS = ("", "run", "reproduced", "difference")
EQUAL = "equal"
MAX_METRICS = 12
"""Metrics of training that differ and are listed."""
_NOT_COMPARED = ("time/", "system/")
_MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonLine:
    """One line of the comparison."""

    name: str
    first: str
    second: str
    difference: str
    is_equal: bool
    decides: bool = True
    """Whether runs that differ here are not equal."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells by `COLUMNS`."""
        return self.name, self.first, self.second, self.difference


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The comparison of a run with its reproduction."""

    lines: Sequence[ComparisonLine]

    @property
    def is_equal(self) -> bool:
        """Whether parameters, data, items, and every metric of training and evaluation are equal."""
        return all(line.is_equal for line in self.lines if line.decides)


def compare_reproduction(first: FoundRun, second: FoundRun) -> Reproduction:
    """Compare the run `first` with its reproduction `second`. Raises as `FoundRun.evaluation`."""
    return Reproduction(
        [
            *_compare_parameters(first.lineage, second.lineage),
            *_compare_hashes("data", first.lineage.data, second.lineage.data),
            *_compare_reads(first.lineage, second.lineage),
            *_compare_outputs(first.lineage, second.lineage),
            *_compare_training(first.steps, second.steps),
            *_compare_evaluations(first.evaluation, second.evaluation),
        ]
    )


def _compare_parameters(first: LineageRecord, second: LineageRecord) -> Iterator[ComparisonLine]:
    before, after = (dict(flat(lineage.parameters, sep=".")) for lineage in (first, second))
    differing = differing_values(before, after)
    if not differing:
        count = f"{len(before)} values"
        yield ComparisonLine(name="parameters", first=count, second=count, difference=EQUAL, is_equal=True)
    for key in differing:
        yield ComparisonLine(
            name=key,
            first=str(before.get(key, _MISSING)),
            second=str(after.get(key, _MISSING)),
            difference="other value",
            is_equal=False,
        )


def _compare_reads(first: LineageRecord, second: LineageRecord) -> Iterator[ComparisonLine]:
    """Code that differs although the commit is the same, e.g. because Git ignores a file: a reason for
    differences, not a result."""
    before, after = (
        {path: md5 for stage in lineage.stages.values() for path, md5 in stage.reads.items()}
        for lineage in (first, second)
    )
    for path in before:
        if path in after and path not in first.data and before[path] != after[path]:
            yield from _compare_hashes("read", {path: before[path]}, {path: after[path]}, decides=False)


def _compare_outputs(first: LineageRecord, second: LineageRecord) -> Iterator[ComparisonLine]:
    """Items count as results; a policy's bytes do not, because its metrics do."""
    for stage, outs in {"prepare": None, "warmup": ["warmup"], "train": ["policy"]}.items():
        records = [lineage.stages.get(stage) for lineage in (first, second)]
        writes = [
            {
                out: md5
                for out, md5 in (record.writes if record else {}).items()
                if outs is None or out in outs
            }
            for record in records
        ]
        yield from _compare_hashes(None, *writes, decides=outs is None)


def _compare_hashes(
    prefix: str | None, first: Mapping[str, str], second: Mapping[str, str], *, decides: bool = True
) -> Iterator[ComparisonLine]:
    for name in {**first, **second}:
        before, after = (hashes.get(name, _MISSING) for hashes in (first, second))
        is_equal = before == after
        yield ComparisonLine(
            name=f"{prefix}: {name}" if prefix else name,
            first=shorten(before),
            second=shorten(after),
            difference=EQUAL if is_equal else "other content",
            is_equal=is_equal,
            decides=decides,
        )


def _compare_training(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> Iterator[ComparisonLine]:
    before, after = (
        {int(values["step"]): _comparable(values) for values in steps} for steps in (first, second)
    )
    steps = sorted(before.keys() | after.keys())
    names = list(dict.fromkeys(name for values in (before, after) for row in values.values() for name in row))
    differing = {}
    for name in names:
        for step in steps:
            if not _is_same(before.get(step, {}).get(name), after.get(step, {}).get(name)):
                differing[name] = step
                break
    are_equal = not differing and before.keys() == after.keys()
    yield ComparisonLine(
        name="training",
        first=f"{len(before)} steps",
        second=f"{len(after)} steps",
        difference=f"{len(names)} metrics {EQUAL}"
        if are_equal
        else f"{len(differing)} of {len(names)} metrics differ",
        is_equal=are_equal,
    )
    # The first difference is nearest to the cause.
    for name, step in islice(sorted(differing.items(), key=lambda entry: entry[1]), MAX_METRICS):
        yield _number_line(
            f"  {name}, step {step}", before.get(step, {}).get(name), after.get(step, {}).get(name)
        )


def _comparable(values: Mapping[str, object]) -> dict[str, object]:
    return {
        key: value
        for key, value in flat(values, sep="/")
        if key != "step" and not step_metric(key).startswith(_NOT_COMPARED)
    }


def _compare_evaluations(
    first: Mapping[str, object], second: Mapping[str, object]
) -> Iterator[ComparisonLine]:
    before, after = (
        {name: value for name, value in flat(evaluation, sep=" ") if f" {TOOL_SECONDS}" not in name}
        for evaluation in (first, second)
    )
    names = {**before, **after}
    differing = [name for name in names if not _is_same(before.get(name), after.get(name))]
    yield ComparisonLine(
        name="evaluation",
        first=f"{len(before)} figures",
        second=f"{len(after)} figures",
        difference=EQUAL if not differing else f"{len(differing)} differ",
        is_equal=not differing,
    )
    for name in names:
        if name in differing or name.endswith(" success"):
            yield _number_line(f"  {name}", before.get(name), after.get(name))


def _number_line(name: str, first: object, second: object) -> ComparisonLine:
    is_equal = _is_same(first, second)
    difference = EQUAL if is_equal else "other value"
    if not is_equal and isinstance(first, (int, float)) and isinstance(second, (int, float)):
        difference = f"{second - first:+.6g}"
    return ComparisonLine(
        name=name,
        first=_MISSING if first is None else _format(first),
        second=_MISSING if second is None else _format(second),
        difference=difference,
        is_equal=is_equal,
    )


def _is_same(first: object, second: object) -> bool:
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first) and math.isnan(second):
        return True
    return first == second


def _format(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def shorten(md5: str) -> str:
    """A hash as tables show it: its first ten characters."""
    return md5 if not md5[:10].isalnum() or md5 == _MISSING else md5[:10]
