"""The arithmetic of a comparison: means with intervals, paired tests, items that only one side solves."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from tasks.evaluation.intervals import bootstrap, mean_interval, t_interval
from tasks.evaluation.outcomes import Samples, compare_samples, item_means
from tasks.evaluation.paired import PairedTest, paired_test
from tasks.evaluation.record import Rate
from tasks.reporting.comparison.sides import RATES, SUCCESS, Side


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedTest:
    """The differences of runs with the same seed, which say whether they would recur with other seeds."""

    seeds: int
    mean: float
    low: float
    high: float
    """95% interval by Student's t."""
    p_value: float
    """Two-sided, by all assignments of signs: 2 / 2^seeds at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One measure of a side against the reference, over the items that have samples of both."""

    side: str
    measure: str
    reference_mean: float
    mean: float
    test: PairedTest
    adjusted_p: float
    """The adjusted p of `test`, by Holm's method over all sides that are tested against the reference."""
    seeds: SeedTest | None
    """The test of the main measure over seeds, if two seeds or more are in both."""


def score(samples: Samples, *, is_rate: bool, items: Sequence[str] | None = None) -> Rate | None:
    """The mean over `items`, all of them by default, with its 95% interval; None if none has samples."""
    means = item_means(samples)
    values = [means[item] for item in (means if items is None else items) if item in means]
    return Rate.estimate(values, interval=mean_interval if is_rate else bootstrap) if values else None


def compare_with(reference: Side, other_sides: Sequence[Side]) -> list[Difference]:
    """Every measure of each of `other_sides` against `reference`; a pair without common items is left out."""
    differences = []
    for measure, first in reference.samples.items():
        tests = {
            other_side.name: compare_samples(first, other_side.samples[measure]) for other_side in other_sides
        }
        found_tests = {name: test for name, test in tests.items() if test is not None}
        adjusted_ps = holm([test.p_value for test in found_tests.values()])
        for (name, test), adjusted_p in zip(found_tests.items(), adjusted_ps, strict=True):
            other_side = next(side for side in other_sides if side.name == name)
            reference_means, means = item_means(first), item_means(other_side.samples[measure])
            items = [item for item in reference_means if item in means]
            differences.append(
                Difference(
                    side=name,
                    measure=measure,
                    reference_mean=fmean(reference_means[item] for item in items),
                    mean=fmean(means[item] for item in items),
                    test=test,
                    adjusted_p=adjusted_p,
                    seeds=compare_seeds(reference, other_side) if measure == SUCCESS else None,
                )
            )
    return differences


def compare_seeds(reference: Side, other_side: Side) -> SeedTest | None:
    """The paired test over the seeds that both have; None for fewer than two."""
    seeds = [seed for seed in reference.by_seed if seed in other_side.by_seed]
    if len(seeds) < 2:
        return None
    first, second = ([side.by_seed[seed] for seed in seeds] for side in (reference, other_side))
    differences = [b - a for a, b in zip(first, second, strict=True)]
    low, high = t_interval(differences)
    p_value = paired_test(first, second).p_value
    return SeedTest(seeds=len(seeds), mean=fmean(differences), low=low, high=high, p_value=p_value)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the given order: Holm's step-down method (1979), which bounds the probability of
    any false discovery among them."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def only_first_solves(first: Samples, second: Samples) -> list[str]:
    """The items that some sample of the first solves and none of the second, of those that both have samples
    of; first those that the first solves most."""
    items = [item for item in first if any(first[item]) and second.get(item) and not any(second[item])]
    return sorted(items, key=lambda item: -fmean(first[item]))


def is_rate(measure: str) -> bool:
    """Whether `measure` is a share."""
    return measure in RATES
