"""What the outcomes of an item's samples say: avg@k, pass@k and pass^k of one item; pure arithmetic.

`n` is the number of an item's samples that count, `c` how many of them are successes. Means over items, with
their intervals, are made in `tasks/evaluation/summary.py`. A failed episode is no sample.
"""

from collections.abc import Sequence
from math import comb
from statistics import fmean

from agents.types import Trajectory


def pass_at_k(n: int, c: int, k: int) -> float:
    """The probability that of `k` samples at least one succeeds, without bias: 1 - C(n-c, k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374), equation 1. Raises `ValueError` unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    return 1.0 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """The probability that all of `k` samples succeed, pass^k, without bias: C(c, k) / C(n, k).

    Yao et al. 2024 (tau-bench, arXiv 2406.12045), section 4. Raises `ValueError` as `pass_at_k`.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def default_ks(samples: int) -> list[int]:
    """The values of k that are reported of `samples` per item: powers of two, and `samples` itself."""
    powers = [2**exponent for exponent in range(samples.bit_length()) if 2**exponent <= samples]
    return sorted({*powers, samples})


def passes(successes: Sequence[Sequence[bool]], *, ks: Sequence[int]) -> dict[str, list[float]]:
    """`pass_at_<k>` and `pass_hat_<k>` of every item that has at least `k` outcomes, for each k.

    `successes`: by item, its samples that count. An item with fewer outcomes than k has no value for it.
    """
    values: dict[str, list[float]] = {}
    for k in ks:
        counts = [(len(item), sum(item)) for item in successes if len(item) >= k]
        values[f"pass_at_{k}"] = [pass_at_k(n, c, k) for n, c in counts]
        values[f"pass_hat_{k}"] = [pass_hat_k(n, c, k) for n, c in counts]
    return values


def pass_rates(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    """pass@k and pass^k as means over items (groups), for the default values of k above 1."""
    successes = [[t.success for t in group if not t.has_failed] for group in groups]
    ks = [k for k in default_ks(max(map(len, groups), default=1)) if k > 1]
    return {name: fmean(values) for name, values in passes(successes, ks=ks).items() if values}


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"n={n}, c={c}, k={k}: there must be 0 <= c <= n and 1 <= k <= n")
