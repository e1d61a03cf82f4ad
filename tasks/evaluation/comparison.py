"""The paired comparison of two evaluations of the same items: `wingspan compare RECORD RECORD`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from envs.errors import ConfigError
from envs.files import write_atomically
from tasks.config.parameters import flat
from tasks.evaluation.record import EvaluationRecord, Outcome, is_record, read_record
from tasks.reporting.compare import differences, markdown
from tasks.reporting.pages import percent, points
from tasks.reporting.paired import PairedTest, paired_test

MEASURES = ("success", "reward", "turns")
_LISTED = 20
"""Items that a listing names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationComparison:
    """A second evaluation against a first, item by item."""

    names: tuple[str, str]
    tests: dict[str, tuple[float, float, PairedTest]]
    """Measure → means of both over the items that both have outcomes for, and their test."""
    only_first: list[str]
    """Items that some sample of the first solves, and none of the second."""
    only_second: list[str]
    without: list[str]
    """Items for which an evaluation has no outcome; they are in no test."""
    differing: list[list[str]]
    """A row for each setting and version that is not the same: its key, and its value in each."""
    file: Path
    """The comparison as Markdown."""


def are_records(paths: Sequence[Path]) -> bool:
    """Whether `paths` are evaluations; raises `ConfigError` for evaluations among other folders."""
    records = [is_record(path) for path in paths]
    if any(records) and not all(records):
        other_path = paths[records.index(False)]
        raise ConfigError(f"{other_path} is no evaluation, and others are; compare evaluations, or runs")
    return bool(records) and all(records)


def compare_evaluations(paths: Sequence[Path], out: Path) -> EvaluationComparison:
    """Test the second of two evaluations against the first, and write `evaluations.md` to `out`.

    Raises `ConfigError` for more or fewer than two, for other items or sampling, and for no common outcomes.
    """
    if len(paths) != 2:
        raise ConfigError(f"{len(paths)} evaluations: a paired test compares two; name two")
    first, second = map(read_record, paths)
    _check_comparable(first, second, paths)
    pairs = list(zip(first.outcomes, second.outcomes, strict=True))
    scored_pairs = [(a, b) for a, b in pairs if a.successes and b.successes]
    if not scored_pairs:
        raise ConfigError(f"{paths[0]} and {paths[1]} have no item with outcomes in both; evaluate again")
    names = _names(paths)
    comparison = EvaluationComparison(
        names=names,
        tests={name: _test(scored_pairs, name) for name in MEASURES},
        only_first=[a.item for a, b in scored_pairs if any(a.successes) and not any(b.successes)],
        only_second=[a.item for a, b in scored_pairs if any(b.successes) and not any(a.successes)],
        without=[a.item for a, b in pairs if not (a.successes and b.successes)],
        differing=differences(dict(zip(names, map(_settings, (first, second)), strict=True))),
        file=out / "evaluations.md",
    )
    write_atomically(comparison.file, _page(comparison))
    return comparison


def tests_table(comparison: EvaluationComparison) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row for each measure."""
    first, second = comparison.names
    header = ["", "items", first, second, "difference", "95% interval", "p", "test"]
    rows = []
    for measure, (a, b, test) in comparison.tests.items():
        is_rate = measure == "success"
        mean, low, high = (points(x) if is_rate else f"{x:+.3g}" for x in (test.mean, test.low, test.high))
        means = (percent(x) if is_rate else f"{x:.3g}" for x in (a, b))
        p_value = f"{test.p_value:.4f}" if test.p_value >= 0.0001 else "< 0.0001"
        rows.append([measure, str(test.items), *means, mean, f"{low} to {high}", p_value, test.method])
    return header, rows


def sentences(comparison: EvaluationComparison) -> list[str]:
    """Items that only one of the two solves, and items that were left out."""
    listings = {
        f"Only {comparison.names[0]} solves": comparison.only_first,
        f"Only {comparison.names[1]} solves": comparison.only_second,
        "Left out, because an evaluation has no outcome": comparison.without,
    }
    return [f"{text}: {_list(items)}." for text, items in listings.items() if items]


def _check_comparable(first: EvaluationRecord, second: EvaluationRecord, paths: Sequence[Path]) -> None:
    both_paths = " and ".join(map(str, paths))
    if first.items_md5 != second.items_md5:
        items, other_items = ([outcome.item for outcome in record.outcomes] for record in (first, second))
        missing = next((item for item in items if item not in other_items), None)
        extra = next((item for item in other_items if item not in items), None)
        reason = (
            f"{missing} is only in the first"
            if missing
            else f"{extra} is only in the second"
            if extra
            else "items of one name have other contents, or another order"
        )
        raise ConfigError(
            f"{both_paths} are of other items ({len(items)} and {len(other_items)}; {reason}); evaluate both "
            "on the same --split, --where and --items"
        )
    values = dict(flat(second.sampling.model_dump(), sep="."))
    for key, value in flat(first.sampling.model_dump(), sep="."):
        if values.get(key) != value:
            raise ConfigError(
                f"{both_paths} were sampled otherwise: {key} is {value} and {values.get(key)}; evaluate "
                "both with the same sampling parameters"
            )
    for a, b in zip(first.outcomes, second.outcomes, strict=True):
        if a.max_turns != b.max_turns:
            raise ConfigError(
                f"{both_paths} have other horizons: {a.item} had {a.max_turns} and {b.max_turns} turns; "
                "evaluate both with the same --max-turns"
            )


def _test(pairs: Sequence[tuple[Outcome, Outcome]], measure: str) -> tuple[float, float, PairedTest]:
    key = {"success": "successes", "reward": "rewards", "turns": "turns"}[measure]
    first, second = ([fmean(getattr(pair[side], key)) for pair in pairs] for side in (0, 1))
    return fmean(first), fmean(second), paired_test(first, second)


def _settings(record: EvaluationRecord) -> dict[str, object]:
    """What may differ between two evaluations that can be compared."""
    values = record.model_dump(mode="json", include={"policy", "pipeline", "seed", "settings", "provenance"})
    return {key: value for key, value in flat(values, sep=".") if not key.startswith("settings.data")}


def _names(paths: Sequence[Path]) -> tuple[str, str]:
    """Of the folders; with their parents' where these are the same."""
    folders = [(path if path.is_dir() else path.parent).resolve() for path in paths]
    names = [folder.name for folder in folders]
    if names[0] == names[1]:
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    return names[0], names[1] if names[1] != names[0] else f"{names[1]} (2)"


def _list(items: Sequence[str]) -> str:
    more = f" and {len(items) - _LISTED} more" if len(items) > _LISTED else ""
    return f"{len(items)} ({', '.join(items[:_LISTED])}{more})"


def _page(comparison: EvaluationComparison) -> str:
    parts = [markdown(*tests_table(comparison)), *(f"{text}\n" for text in sentences(comparison))]
    if comparison.differing:
        parts.append(markdown(["setting", *comparison.names], comparison.differing))
    return "\n".join(parts)
