"""The tables of a comparison, as text and links: the same ones for the terminal, the page and Markdown."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from tasks.evaluation.intervals import MIN_BOOTSTRAP
from tasks.evaluation.outcomes import Samples, compare_samples
from tasks.evaluation.paired import PairedTest
from tasks.evaluation.record import Rate, format_number
from tasks.reporting.comparison.runs import FinishedRun
from tasks.reporting.comparison.scores import Difference, is_rate, only_first_solves, score
from tasks.reporting.comparison.sides import SUCCESS, ComparedItem, Side
from tasks.reporting.links import RunPages
from tasks.reporting.pages import DASH, duration, format_count, format_p, gigabytes, percent, points
from tasks.reporting.results import grouping_keys

LISTED = 40
"""Items that a table names."""


@dataclass(frozen=True, slots=True)
class LinkedCell:
    """A cell with links: to the trajectories that it is about."""

    text: str
    links: Sequence[tuple[str, str]]
    """(label, address)."""

    def __str__(self) -> str:
        return self.text


Cell = str | LinkedCell
MINUS = "\N{MINUS SIGN}"
_COSTS = {
    "seconds": "time",
    "seconds, before the report": "time, before the report",
    "seconds, warmup": "time, warm-up",
    "seconds, train": "time, training",
    "seconds, evaluate": "time, evaluation",
    "seconds in training steps": "time in training steps",
    "tokens": "tokens sampled",
    "CPU seconds": "CPU time, before the report",
    "memory": "peak memory",
}
"""Cost → its words, where they are others."""
_WITHOUT_INTERVAL = (
    f"A difference has no interval for fewer than {MIN_BOOTSTRAP} items, or if it is the same for every item."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table with its heading and an explanation."""

    title: str
    about: str
    """Sentences, or empty."""
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: frozenset[int] = frozenset()
    """Columns of text, which may be wrapped."""
    is_for_page: bool = False
    """Whether it is too long for a terminal."""


def score_table(sides: Sequence[Side]) -> Table:
    """The means of every measure with their intervals."""
    measures = list(sides[0].samples)
    has_seeds = any(len(side.by_seed) > 1 for side in sides)
    header = ["", "items", *(part for measure in measures for part in (measure, "95% interval"))]
    rows: list[list[Cell]] = []
    for side in sides:
        scores = [score(side.samples[measure], is_rate=is_rate(measure)) for measure in measures]
        row: list[Cell] = [side.name, str(scores[0].items if scores[0] else 0)]
        for measure, value in zip(measures, scores, strict=True):
            row += ["", ""] if value is None else [_number(value.mean, measure), _interval(value, measure)]
        if has_seeds:
            row.append(", ".join(f"{seed}: {percent(rate)}" for seed, rate in side.by_seed.items()))
        rows.append(row)
    about = "Means over items, with 95% intervals over items."
    if has_seeds:
        header.append(f"{SUCCESS} by seed")
        about += " The samples of an item are those of all seeds."
    words = frozenset({len(header) - 1}) if has_seeds else frozenset()
    return Table(title="Final scores", about=about, header=header, rows=rows, words=words)


def summarise(difference: Difference, *, reference: str, num_others: int) -> str:
    """The main result, as a sentence. `num_others`: the sides that are tested against the reference."""
    test = difference.test
    facts = [f"95% interval {_span(test.low, test.high, SUCCESS)}"] if test.has_interval else []
    facts.append(_p(test.p_value))
    if num_others > 1:
        facts.append(f"{_p(difference.adjusted_p)} by Holm's method for {num_others} sides")
    text = (
        f"{difference.side} solves {percent(difference.mean)} and {reference} "
        f"{percent(difference.reference_mean)} of {format_count(test.items, 'item')}: "
        f"{points(test.mean)} points ({', '.join(facts)})"
    )
    if difference.seeds is None:
        return f"{text}."
    seeds = difference.seeds
    return f"{text}; over {seeds.seeds} seeds {_span(seeds.low, seeds.high, SUCCESS)}."


def paired_table(found_differences: Sequence[Difference], *, reference: str) -> Table:
    """The paired tests against the reference."""
    has_others = len({difference.side for difference in found_differences}) > 1
    header = ["", "", "items", reference, "this", "difference", "95% interval", "p"]
    header += [*(["p, Holm"] if has_others else []), "over seeds", "95% interval", "p"]
    rows: list[list[Cell]] = []
    for result in found_differences:
        test, seeds, measure = result.test, result.seeds, result.measure
        row: list[Cell] = [result.side, measure, str(test.items)]
        row += [_number(result.reference_mean, measure), _number(result.mean, measure)]
        row += [_change(test.mean, measure), _test_span(test, measure), format_p(test.p_value)]
        row += [format_p(result.adjusted_p)] if has_others else []
        if seeds is None:
            row += [DASH, DASH, DASH]
        else:
            change = f"{_change(seeds.mean, measure)} ({seeds.seeds} seeds)"
            row += [change, _span(seeds.low, seeds.high, measure), format_p(seeds.p_value)]
        rows.append(row)
    if all(result.seeds is None for result in found_differences):
        header, rows = header[:-3], [row[:-3] for row in rows]
    about = (
        "Item by item: the interval is a bootstrap of the items' differences, p is two-sided, of a "
        f"permutation test of their signs. {_WITHOUT_INTERVAL}"
    )
    if has_others:
        about += " Holm's p allows for the number of sides that are tested."
    if len(header) > 9:
        about += (
            " Over items: whether these policies would differ on other items of this kind. Over seeds: "
            "whether policies trained anew would differ (Student's t, and all signs of the seeds' "
            "differences: with n seeds p is 2/2ⁿ at least)."
        )
    return Table(title=f"Against {reference}", about=about, header=header, rows=rows, words=frozenset({1}))


def group_tables(sides: Sequence[Side], items: Sequence[ComparedItem]) -> Iterator[Table]:
    """Success by each metadata key that groups the items, and the differences to the first side."""
    reference, *other_sides = sides
    for key, values in grouping_keys([item.metadata for item in items]).items():
        groups = {value: [item.item for item in items if item.metadata.get(key) == value] for value in values}
        header = ["", *(f"{value} ({len(names)})" for value, names in groups.items())]
        rows: list[list[Cell]] = [
            [side.name, *(_group_score(side.samples[SUCCESS], names) for names in groups.values())]
            for side in sides
        ]
        for challenger in other_sides:
            row: list[Cell] = [f"{challenger.name} {MINUS} {reference.name}"]
            for names in groups.values():
                first, second = (_select(side.samples[SUCCESS], names) for side in (reference, challenger))
                test = compare_samples(first, second)
                span = f" ({_span(test.low, test.high, SUCCESS)})" if test and test.has_interval else ""
                row.append(DASH if test is None else f"{points(test.mean)}{span}")
            rows.append(row)
        about = "Success, with 95% intervals over the items of each value, whose number is in brackets."
        if other_sides:
            about += f" Differences in points are paired. {_WITHOUT_INTERVAL}"
        yield Table(title=f"By {key}", about=about, header=header, rows=rows)


def only_tables(sides: Sequence[Side], items: Sequence[ComparedItem]) -> Iterator[Table]:
    """The items that the first side solves and another does not, and the reverse, with their episodes."""
    metadata = {item.item: item.metadata for item in items}
    reference, *other_sides = sides
    for other_side in other_sides:
        for first, second in ((reference, other_side), (other_side, reference)):
            names = only_first_solves(first.samples[SUCCESS], second.samples[SUCCESS])
            if not names:
                continue
            rows: list[list[Cell]] = [
                [
                    name,
                    ", ".join(f"{key} {value}" for key, value in metadata[name].items()),
                    *(_episodes(side, name) for side in (first, second)),
                ]
                for name in names[:LISTED]
            ]
            rest = f" {len(names) - LISTED} more are not listed." if len(names) > LISTED else ""
            yield Table(
                title=f"Solved by {first.name}, not by {second.name}",
                about=f"{format_count(len(names), 'item')} that some episode of {first.name} solves, and "
                f"none of {second.name}. The links lead to the first episode of each run.{rest}",
                header=["item", "kind", first.name, second.name],
                rows=rows,
                words=frozenset({1}),
                is_for_page=True,
            )


def stop_table(sides: Sequence[Side]) -> Table:
    """How the sampled episodes ended."""
    stops = list(dict.fromkeys(stop for side in sides for stop in side.stops))
    header = ["", "episodes", *(stop.replace("_", " ") for stop in stops), "failed"]
    rows: list[list[Cell]] = []
    for side in sides:
        total = sum(side.stops.values())
        shares = [percent(side.stops.get(stop, 0) / total if total else None) for stop in stops]
        rows.append([side.name, f"{total:,}", *shares, f"{side.num_failed:,}"])
    return Table(
        title="How episodes ended",
        about="The sampled episodes of the final evaluation. Failed ones, which ended by an error, are not "
        "the policy's, and in no number.",
        header=header,
        rows=rows,
    )


def cost_table(sides: Sequence[Side]) -> Table:
    """What each side has cost, as means over its runs."""
    costs = list(dict.fromkeys(cost for side in sides for cost in side.costs))
    rows: list[list[Cell]] = [
        [_COSTS.get(cost, cost), *(_cost(side.costs.get(cost, ()), cost) for side in sides)] for cost in costs
    ]
    about = "Episodes, environment steps and tokens are of training."
    if any(len(side.sources) > 1 for side in sides):
        about += " Of several seeds: the mean, and in brackets the least and the most."
    if "seconds" in costs:
        about = "Of the evaluations."
    return Table(title="Cost", about=about, header=["", *(side.name for side in sides)], rows=rows)


def run_table(settings: Mapping[str, Sequence[FinishedRun]]) -> Table:
    """Every run by itself."""
    rows: list[list[Cell]] = [
        [
            LinkedCell(run.name, [("trajectories", RunPages(run.name).trajectories("label.policy:after"))]),
            setting,
            str(DASH if run.seed is None else run.seed),
            run.horizon,
            percent(run.before),
            percent(run.after),
            points(run.gain.mean),
            _test_span(run.gain, SUCCESS),
        ]
        for setting, runs in settings.items()
        for run in runs
    ]
    return Table(
        title="Runs",
        about="Success on the test split before and after training, sampled; the gain in points with its "
        f"paired 95% interval. {_WITHOUT_INTERVAL} The horizon is turns × steps.",
        header=["run", "setting", "seed", "horizon", "before", "after", "gain", "95% interval"],
        rows=rows,
        words=frozenset({3}),
    )


def difference_table(sides: Sequence[Side], *, subject: str) -> Table:
    """Parameters or settings that are not the same on all sides."""
    rows: list[list[Cell]] = [[*row] for row in _differences([side.parameters for side in sides])]
    header = [subject, *(side.name for side in sides)]
    about = "" if rows else "None: all sides have the same, as far as they are recorded."
    return Table(
        title="What differs", about=about, header=header, rows=rows, words=frozenset(range(1, len(header)))
    )


def _differences(parameters: Sequence[Mapping[str, object]]) -> list[list[str]]:
    """A row for each key whose value is not the same in all `parameters`: the key and each value.

    Sides whose parameters are unknown have `?` and make no difference; nor do the names, such as paths, of
    policies with one content.
    """
    recorded_parameters = [values for values in parameters if values]
    policies = {values.get("policy.md5") for values in recorded_parameters}
    hidden = {"description"} if None in policies or len(policies) > 1 else {"description", "policy.name"}
    keys = dict.fromkeys(key for values in recorded_parameters for key in values if key not in hidden)
    return [
        [key, *(_format_value(values, key) for values in parameters)]
        for key in keys
        if len({_format_value(values, key) for values in recorded_parameters}) > 1
    ]


def _format_value(values: Mapping[str, object], key: str) -> str:
    if not values:
        return "?"
    return json.dumps(values[key], ensure_ascii=False).strip('"') if key in values else "-"


def _number(value: float, measure: str) -> str:
    return percent(value) if is_rate(measure) else format_number(value)


def _change(value: float, measure: str) -> str:
    return points(value) if is_rate(measure) else format_number(value, sign="+")


def _p(value: float) -> str:
    return f"p {'= ' if value >= 0.0001 else ''}{format_p(value)}"


def _interval(value: Rate, measure: str) -> str:
    if is_rate(measure):
        return f"{100 * value.low:.1f} to {100 * value.high:.1f}"
    return f"{format_number(value.low)} to {format_number(value.high)}"


def _span(low: float, high: float, measure: str) -> str:
    return f"{_change(low, measure)} to {_change(high, measure)}"


def _test_span(test: PairedTest, measure: str) -> str:
    return _span(test.low, test.high, measure) if test.has_interval else DASH


def _select(samples: Samples, items: Sequence[str]) -> Samples:
    return {item: samples[item] for item in items if item in samples}


def _group_score(samples: Samples, items: Sequence[str]) -> str:
    value = score(samples, is_rate=True, items=items)
    return DASH if value is None else f"{percent(value.mean)} ({_interval(value, SUCCESS)})"


def _episodes(side: Side, item: str) -> LinkedCell:
    """How many samples solve `item`, with links to its first episode in each source."""
    samples = side.samples[SUCCESS].get(item, [])
    links = [
        (source.name, RunPages(source.name).trajectory(source.lines[item]))
        for source in side.sources
        if item in source.lines
    ]
    return LinkedCell(f"{sum(map(bool, samples))} of {len(samples)}", links)


def _cost(values: Sequence[float], cost: str) -> str:
    if not values:
        return DASH
    mean, least, most = fmean(values), min(values), max(values)
    if cost == "memory":
        texts = [gigabytes(value) for value in (mean, least, most)]
    elif "second" in cost:
        texts = [duration(value) for value in (mean, least, most)]
    else:
        texts = [f"{value:,.0f}" for value in (mean, least, most)]
    return texts[0] if least == most else f"{texts[0]} ({texts[1]} to {texts[2]})"
