"""avg@k, pass@k, pass^k, intervals and the paired test, against enumeration and other libraries."""

from itertools import combinations, product
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from tasks.evaluation.intervals import bootstrap, mean_interval, t_interval, wilson
from tasks.evaluation.paired import MAX_EXACT, paired_test
from tasks.evaluation.pass_at_k import default_ks, pass_at_k, pass_hat_k, passes


@pytest.fixture(scope="module")
def stats() -> Any:
    """scipy.stats: most workers never need it, and all import this file."""
    from scipy import stats  # type: ignore[import-untyped]

    return stats


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_mean_over_all_choices_of_k_samples(n: int) -> None:
    for c in range(n + 1):
        outcomes = [True] * c + [False] * (n - c)
        for k in range(1, n + 1):
            subsets = [*combinations(outcomes, k)]
            assert pass_at_k(n, c, k) == pytest.approx(fmean(any(some) for some in subsets))
            assert pass_hat_k(n, c, k) == pytest.approx(fmean(all(some) for some in subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1)])
def test_what_no_sample_can_be_is_refused(n: int, c: int, k: int) -> None:
    for estimate in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match=f"n={n}, c={c}, k={k}"):
            estimate(n, c, k)


def test_an_item_with_fewer_outcomes_than_k_has_no_value() -> None:
    values = passes([[True, False], [True], []], ks=[1, 2])
    assert values == {
        "pass_at_1": [0.5, 1.0],
        "pass_hat_1": [0.5, 1.0],
        "pass_at_2": [1.0],
        "pass_hat_2": [0.0],
    }
    assert [default_ks(samples) for samples in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_outcomes_of_0_and_1_have_wilsons_interval_and_others_a_bootstrap() -> None:
    assert mean_interval([1, 0, 1, 1]) == wilson(0.75, n=4)
    assert mean_interval([]) == (0.0, 1.0)
    many = [0.5, 1.0, 0.25, 0.0, 0.75] * 2
    assert mean_interval(many) == bootstrap(many)
    assert mean_interval(many[:5]) == wilson(0.5, n=5)
    assert mean_interval([3.0, 5.0]) == bootstrap([3.0, 5.0])  # no rates


def test_the_bootstrap_is_scipys(stats: Any) -> None:
    values = np.random.default_rng(3).uniform(size=40).round(2).tolist()
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(1)
    )
    assert bootstrap(values) == pytest.approx(tuple(theirs.confidence_interval), abs=0.005)
    assert bootstrap(values) == bootstrap(values)


def test_the_interval_over_seeds_is_students(stats: Any) -> None:
    for count in (2, 3, 4, 5, 10, 31, 102):
        values = np.random.default_rng(count).uniform(size=count).tolist()
        theirs = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert t_interval(values) == pytest.approx((theirs.low, theirs.high), rel=1e-9)
    with pytest.raises(ValueError, match="1 values have no spread"):
        t_interval([0.5])


def test_the_exact_p_value_is_that_of_enumeration_and_scipy(stats: Any) -> None:
    first = [0.0, 0.25, 0.5, 0.5, 1.0, 0.0, 0.75, 0.25]
    second = [0.5, 0.25, 0.75, 1.0, 1.0, 0.25, 0.5, 1.0]
    differences = [b - a for a, b in zip(first, second, strict=True)]
    sums = [
        sum(s * d for s, d in zip(signs, differences, strict=True)) for signs in product((1, -1), repeat=8)
    ]
    result = paired_test(first, second)
    assert result.method == "exact"
    assert result.p_value == fmean(abs(total) >= abs(sum(differences)) for total in sums)
    theirs = stats.permutation_test(
        (second, first), lambda a, b: np.mean(np.asarray(a) - np.asarray(b)), permutation_type="samples"
    )
    assert result.p_value == pytest.approx(theirs.pvalue)
    assert result.mean == pytest.approx(fmean(differences))
    assert result.low < result.mean < result.high


def test_many_items_are_tested_with_random_signs(stats: Any) -> None:
    rng = np.random.default_rng(0)
    first = rng.uniform(size=MAX_EXACT + 22)
    second = first + rng.normal(0.1, 0.3, size=len(first))
    result = paired_test(first.tolist(), second.tolist())
    theirs = stats.permutation_test(
        (second - first,), np.sum, permutation_type="samples", n_resamples=20_000, rng=rng, vectorized=True
    )
    assert result.method == "monte-carlo"
    assert result.p_value == pytest.approx(theirs.pvalue, abs=0.005)
    assert paired_test(first.tolist(), second.tolist()) == result


def test_few_items_and_equal_differences_have_no_interval() -> None:
    assert paired_test([0.0] * 10, [0.5] * 9 + [0.0]).has_interval
    assert not paired_test([0.0] * 9, [0.5] * 8 + [0.0]).has_interval
    assert not paired_test([0.0] * 10, [0.5] * 10).has_interval


def test_equal_series_have_no_difference() -> None:
    result = paired_test([0.5] * 3, [0.5] * 3)
    assert (result.mean, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="no items"):
        paired_test([], [])
