"""95% intervals of success rates and of other means over items or seeds; pure arithmetic.

If an item has several samples, `n` is the number of *items*: samples of one item are correlated, and
counting each of them would make the interval too narrow.
"""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev

Z = 1.959964
"""97.5th percentile of the normal distribution."""
RESAMPLES = 10_000
"""The resamples of a bootstrap."""
MIN_BOOTSTRAP = 10
"""Items of a bootstrap of rates; with fewer it is too narrow."""
_CHUNK = 4_000_000
"""Values that a bootstrap holds at a time."""


def wilson(rate: float, *, n: int) -> tuple[float, float]:
    """Wilson's score interval of a `rate` over `n` items (Wilson 1927); `(0, 1)` where `n` is 0."""
    if n == 0:
        return 0.0, 1.0
    centre = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    # The ends are exact where nothing, or everything, is solved; the difference of sums is not.
    return 0.0 if rate == 0 else max(0.0, centre - half), 1.0 if rate == 1 else min(1.0, centre + half)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the mean of `values`, one for each item; `(0, 1)` for no values.

    A bootstrap over items, except for rates that are all 0 or 1, or of fewer than `MIN_BOOTSTRAP` items: for
    these it would be too narrow. They have Wilson's, which for values between 0 and 1 is, if anything, too
    wide.
    """
    are_rates = all(0 <= value <= 1 for value in values)
    if are_rates and (len(values) < MIN_BOOTSTRAP or all(value in (0, 1) for value in values)):
        return wilson(fmean(values) if values else 0.0, n=len(values))
    return bootstrap(values)


def bootstrap(values: Sequence[float]) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of `values` (Efron 1979), from `RESAMPLES` seeded resamples.

    Raises `ValueError` for no values.
    """
    import numpy as np

    if not values:
        raise ValueError("no values to resample; give at least one")
    numbers, rng = np.asarray(values, dtype=np.float64), np.random.default_rng(0)
    rows = max(1, _CHUNK // len(numbers))
    means = np.concatenate(
        [
            numbers[rng.integers(len(numbers), size=(min(rows, RESAMPLES - start), len(numbers)))].mean(
                axis=1
            )
            for start in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def t_interval(values: Sequence[float]) -> tuple[float, float]:
    """Interval of the mean of two or more independent `values`, such as those of seeds: Student's t.

    Raises `ValueError` for fewer.
    """
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    if len(values) < 2:
        raise ValueError(f"{len(values)} values have no spread; give at least two")
    half = float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / sqrt(len(values))
    return fmean(values) - half, fmean(values) + half
