"""Rewards of 1 or 0 that compare texts and numbers."""

import math
import re
from collections.abc import Sequence

from agents.rewards.function import reward

_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
"""A sign counts only without a word or number before it: `5-4` ends with a 4."""
_WITHIN_TERM = re.compile(r"(?:/|\^\{?|\}\{|\\[dt]?frac|\\sqrt\{?)\s*")
"""Before a number that is the denominator of a fraction, an exponent, or under a root."""


def references(answer: object) -> list[str]:
    """The accepted answers of a data set's field: one text or number, or a list of them.

    A whole number has no decimal point, whether the data has 5 or 5.0: JSON and tables do not tell these
    apart, and SQuAD's normalisation reads `5.0` as `50`.

    Raises `TypeError` for anything else and `ValueError` for an empty list.
    """
    values = answer if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
    if not values:
        raise ValueError("the item has no accepted answer; give its field `answer` at least one")
    for reference in values:
        if isinstance(reference, bool) or not isinstance(reference, str | int | float):
            raise TypeError(f"`answer` is {answer!r}; give one text or number, or a list of accepted ones")
    return [ref if isinstance(ref, str) else str(ref).removesuffix(".0") for ref in values]


def last_number(text: str) -> float | None:
    """The last number in `text`: `-3`, `1,234.5`, `.5`, `2e-3`; None if there is none. U+2212 counts
    as a minus sign, too."""
    numbers = _NUMBER.findall(text.replace("\u2212", "-"))
    return float(numbers[-1].replace(",", "")) if numbers else None


def _ends_within_term(text: str) -> bool:
    *_, last = _NUMBER.finditer(text)
    return any(term.end() == last.start() for term in _WITHIN_TERM.finditer(text, 0, last.start()))


def verdict(correct: bool, **metrics: float) -> dict[str, float | bool]:
    """The value of a reward of 1 or 0."""
    return {"reward": float(correct), "success": correct, **metrics}


@reward
def string_equal(final_response: str, answer: str | Sequence[str]) -> dict[str, float | bool]:
    """1 if the response without surrounding white space is an accepted answer."""
    return verdict(final_response.strip() in [reference.strip() for reference in references(answer)])


@reward
def number_equal(
    final_response: str,
    answer: str | float | Sequence[str],
    relative_tolerance: float = 1e-6,
    absolute_tolerance: float = 1e-9,
) -> dict[str, float | bool]:
    """1 if the last number of the response is an accepted one, within either tolerance.

    The tolerances may be fields of the data. Raises `ValueError` for an answer without a number, and for one
    that ends with a fraction, a power or a root, whose last number is not its value.
    """
    response_number = last_number(final_response)
    accepted_numbers = []
    for reference in references(answer):
        number = last_number(reference)
        if number is None:
            raise ValueError(f"`answer` is {reference!r}, which contains no number; use string_equal")
        if _ends_within_term(reference):
            raise ValueError(
                f"`answer` is {reference!r}, which ends with a fraction, a power or a root; use math_equal"
            )
        accepted_numbers.append(number)
    correct = response_number is not None and any(
        math.isclose(response_number, number, rel_tol=relative_tolerance, abs_tol=absolute_tolerance)
        for number in accepted_numbers
    )
    return verdict(correct)
