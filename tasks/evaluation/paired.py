"""A paired test of two series over the same items: mean difference, interval and p-value; pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Literal

from tasks.evaluation.intervals import MIN_BOOTSTRAP, bootstrap

MAX_EXACT = 18
"""Items with a difference up to which every assignment of signs is counted: 2^18 of them."""
FLIPS = 100_000
"""Random assignments of signs where there are more."""
_ROUNDING = 1e-9
"""Difference below which two sums are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTest:
    """The second series against the first, item by item."""

    items: int
    mean: float
    """The mean of the differences, second minus first."""
    low: float
    high: float
    """95% interval of `mean`: percentile bootstrap over items."""
    p_value: float
    """Two-sided, of the hypothesis that the sign of each item's difference is a coin flip."""
    method: Literal["exact", "monte-carlo"]
    """Whether all assignments of signs were counted, or `FLIPS` seeded random ones."""

    @property
    def has_interval(self) -> bool:
        """Whether the interval is meaningful: with few items, or equal differences, it is too narrow."""
        return self.items >= MIN_BOOTSTRAP and self.low < self.high


def paired_test(first: Sequence[float], second: Sequence[float]) -> PairedTest:
    """Compare two series, one value each for every item: a sign-flip permutation test (Fisher 1935).

    Under the null hypothesis, the two values of an item could as well be exchanged, so that every assignment
    of signs to the differences is equally likely; the p-value is the share of assignments whose sum is at
    least as far from 0 as the observed one. With random assignments it is (hits + 1) / (flips + 1), which is
    never too small (Phipson and Smyth 2010). Raises `ValueError` for no items or different lengths.
    """
    differences = [b - a for a, b in zip(first, second, strict=True)]
    if not differences:
        raise ValueError("no items to compare; give at least one")
    low, high = bootstrap(differences)
    p_value, method = _flip_signs([d for d in differences if abs(d) > _ROUNDING])
    return PairedTest(
        items=len(differences), mean=fmean(differences), low=low, high=high, p_value=p_value, method=method
    )


def _flip_signs(differences: Sequence[float]) -> tuple[float, Literal["exact", "monte-carlo"]]:
    """The p-value of differences other than 0, which alone a sign changes."""
    import numpy as np

    numbers = np.asarray(differences, dtype=np.float64)
    count = len(numbers)
    threshold = abs(numbers.sum()) - _ROUNDING * sqrt(count + 1)
    if count <= MAX_EXACT:
        sums = np.zeros(1)
        for number in numbers:
            sums = np.concatenate([sums + number, sums - number])
        return float((np.abs(sums) >= threshold).mean()), "exact"
    rng = np.random.default_rng(0)
    hits, chunk = 0, max(1, 4_000_000 // count)
    for start in range(0, FLIPS, chunk):
        signs = rng.integers(2, size=(min(chunk, FLIPS - start), count), dtype=np.int8) * 2 - 1
        hits += int((np.abs(signs @ numbers) >= threshold).sum())
    return (hits + 1) / (FLIPS + 1), "monte-carlo"
