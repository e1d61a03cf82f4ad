"""Rewards that compare text with text, and number with number: all 1 or 0, and so a success or none."""

import math
import re
from collections.abc import Sequence

from agents.rewards.function import reward

_NUMBER = re.compile(
    r"(?:(?<![\w.])[-+])?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+|(?=\.\d))(?:\.\d+)?(?:[eE][-+]?\d+)?"
)
"""A sign is one only where no word or number comes before it: `5-4` ends with a 4."""


def references(answer: object) -> list[str]:
    """The accepted answers of a data set's field: one text or number, or a list of them.

    Raises `TypeError` for anything else and `ValueError` for an empty list.
    """
    several = answer if isinstance(answer, Sequence) and not isinstance(answer, str) else [answer]
    if not several:
        raise ValueError("the item has no accepted answer; give its field `answer` at least one")
    for one in several:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise TypeError(f"`answer` is {answer!r}; give one text or number, or a list of accepted ones")
    return [str(one) for one in several]


def last_number(text: str) -> float | None:
    """The last number in `text`: `-3`, `1,234.5`, `.5`, `2e-3`; None where there is none."""
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def verdict(correct: bool, **metrics: float) -> dict[str, float | bool]:
    """What a reward of 1 or 0 returns."""
    return {"reward": float(correct), "success": correct, **metrics}


@reward
def string_equal(final_response: str, answer: str | Sequence[str]) -> dict[str, float | bool]:
    """1 if the response is an accepted answer, but for white space around it."""
    return verdict(final_response.strip() in [one.strip() for one in references(answer)])


@reward
def number_equal(
    final_response: str,
    answer: str | float | Sequence[str],
    relative_tolerance: float = 1e-6,
    absolute_tolerance: float = 1e-9,
) -> dict[str, float | bool]:
    """1 if the last number of the response is an accepted one, within either tolerance.

    The tolerances may be fields of the data. Raises `ValueError` for an answer that is no number.
    """
    found = last_number(final_response)
    accepted = []
    for one in references(answer):
        number = last_number(one)
        if number is None:
            raise ValueError(f"`answer` is {one!r}, which holds no number; use string_equal")
        accepted.append(number)
    correct = found is not None and any(
        math.isclose(found, one, rel_tol=relative_tolerance, abs_tol=absolute_tolerance) for one in accepted
    )
    return verdict(correct)
