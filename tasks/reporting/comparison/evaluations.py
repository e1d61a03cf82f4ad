"""Evaluations (`wingspan evaluate`) as sides of a comparison."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from envs.errors import ConfigError
from envs.files import iterate_json_lines
from tasks.config.parameters import flat
from tasks.evaluation.record import EvaluationRecord, read_record
from tasks.reporting.comparison.sides import SUCCESS, ComparedItem, Side, Source, check_same_items
from tasks.runs.folders import TRAJECTORIES, RunFolder


def read_evaluation(folder: RunFolder) -> tuple[EvaluationRecord, Side]:
    """The evaluation in `folder`. Raises `ConfigError`."""
    record = read_record(folder.folder)
    outcomes = record.outcomes
    lines, stops = _read_episodes(folder.folder / TRAJECTORIES)
    side = Side(
        name=folder.name,
        sources=[Source(name=folder.name, lines=lines)],
        samples={
            SUCCESS: {outcome.item: outcome.successes for outcome in outcomes},
            "reward": {outcome.item: outcome.rewards for outcome in outcomes},
            "turns": {outcome.item: outcome.turns for outcome in outcomes},
        },
        by_seed={},
        stops={stop: count for stop, count in sorted(stops.items()) if stop != "error"},
        num_failed=sum(sum(outcome.failures.values()) for outcome in outcomes),
        parameters=_settings(record),
        costs={
            "seconds": [record.seconds],
            "episodes": [float(sum(len(outcome.successes) for outcome in outcomes))],
            "environment steps": [float(sum(sum(outcome.turns) for outcome in outcomes))],
        },
    )
    return record, side


def compared_items(record: EvaluationRecord) -> list[ComparedItem]:
    """The items of an evaluation, in order."""
    return [ComparedItem(outcome.item, outcome.metadata) for outcome in record.outcomes]


def check_comparable(records: Mapping[Path, EvaluationRecord]) -> None:
    """Raise `ConfigError` unless all evaluations have the same items, sampling parameters and horizons."""
    (path, first), *other_records = records.items()
    for other_path, other_record in other_records:
        both_paths = f"{path} and {other_path}"
        if first.items_md5 != other_record.items_md5:
            items, other_items = (
                {outcome.item: (record.items_md5, outcome.metadata) for outcome in record.outcomes}
                for record in (first, other_record)
            )
            remedy = "evaluate both on the same --split, --where and --items"
            check_same_items(items, other_items, names=(path, other_path), remedy=remedy)
        values = dict(flat(other_record.sampling.model_dump(), sep="."))
        for key, value in flat(first.sampling.model_dump(), sep="."):
            if values.get(key) != value:
                raise ConfigError(
                    f"{both_paths} were sampled otherwise: {key} is {value} and {values.get(key)}; evaluate "
                    "both with the same sampling parameters"
                )
        for a, b in zip(first.outcomes, other_record.outcomes, strict=True):
            if a.max_turns != b.max_turns:
                raise ConfigError(
                    f"{both_paths} have other horizons: {a.item} had {a.max_turns} and {b.max_turns} turns; "
                    "evaluate both with the same --max-turns"
                )


def _settings(record: EvaluationRecord) -> dict[str, object]:
    """What may differ between two evaluations that can be compared."""
    values = record.model_dump(mode="json", include={"policy", "pipeline", "seed", "settings", "provenance"})
    hidden = ("settings.data", "policy.folder")  # the name of a policy leads to its folder
    return {key: value for key, value in flat(values, sep=".") if not key.startswith(hidden)}


def _read_episodes(file: Path) -> tuple[dict[str, int], Counter[str]]:
    """The line of each item's first episode, and how the episodes ended; empty without the file."""
    lines: dict[str, int] = {}
    stops: Counter[str] = Counter()
    if file.exists():
        for number, values in enumerate(iterate_json_lines(file), start=1):
            lines.setdefault(values["item"]["item_id"], number)
            stops[values["stop_reason"]] += 1
    return lines, stops
