"""95% intervals of success rates; pure arithmetic.

If an item has several samples, `n` is the number of *items*: samples of one item are correlated, and
counting each of them would make the interval too narrow.
"""

from math import sqrt

Z = 1.959964
"""97.5th percentile of the normal distribution."""


def wilson(rate: float, *, n: int) -> tuple[float, float]:
    """Wilson's score interval of a `rate` over `n` items (Wilson 1927); `(0, 1)` where `n` is 0."""
    if n == 0:
        return 0.0, 1.0
    centre = (rate + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def gain_interval(before: float, after: float, *, n: int) -> tuple[float, float]:
    """Interval of `after - before`, each on `n` items: Newcombe's hybrid score (1998), method 10.

    It assumes that the two are independent; they share their items, so the true interval is, if anything,
    narrower.
    """
    before_low, before_high = wilson(before, n=n)
    after_low, after_high = wilson(after, n=n)
    gain = after - before
    return (
        gain - sqrt((after - after_low) ** 2 + (before_high - before) ** 2),
        gain + sqrt((after_high - after) ** 2 + (before - before_low) ** 2),
    )
