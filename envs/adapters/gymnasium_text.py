"""The text form of Gymnasium's spaces.

Observations: texts unchanged, numbers as numbers, tuples in parentheses, dictionaries with a line per key.
Actions: texts unchanged, a choice by its name or number, several numbers separated by blanks or commas.
Spaces with more than `MAX_NUMBERS` numbers, and other kinds of spaces, have no text form.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

MAX_NUMBERS = 64
"""The most numbers in one observation or action; more would be an image rather than a text."""

COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
"""Colours by Gymnasium's numbers, from 30 on for letters and from 40 on for their background."""

_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


class NoTextForm(ValueError):
    """A space has no text form; the message names it."""


@dataclass(frozen=True, slots=True)
class ActionText:
    """The text form of one space's actions."""

    description: str
    """The form of an action, for the policy."""
    read: Callable[[str], Any]
    """Text → action; None if the text is not an action."""


def make_observation_text(space: spaces.Space) -> Callable[[Any], str]:
    """A function from the space's values to text; raises `NoTextForm`."""
    match space:
        case spaces.Text():
            return str
        case spaces.Discrete():
            return lambda value: str(int(value))
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box() if _size(space) <= MAX_NUMBERS:
            return lambda value: _format_numbers(np.asarray(value).tolist())
        case spaces.Tuple():
            parts = [make_observation_text(part) for part in space.spaces]
            return lambda value: f"({', '.join(f(v) for f, v in zip(parts, value, strict=True))})"
        case spaces.Dict():
            fields = {key: make_observation_text(part) for key, part in space.spaces.items()}
            return lambda value: "\n".join(f"{key}: {f(value[key])}" for key, f in fields.items())
    raise NoTextForm(f"observation space {space}")


def make_action_text(space: spaces.Space, *, names: Sequence[str] = ()) -> ActionText:
    """The text form of the space's actions; `names` are those of a choice, in order. Raises `NoTextForm`."""
    match space:
        case spaces.Text():
            return ActionText("any text", lambda text: text if space.contains(text) else None)
        case spaces.Discrete():
            return _choice(space, names)
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box() if _size(space) <= MAX_NUMBERS:
            return ActionText(f"{_size(space)} numbers out of {space}", lambda text: _read_array(space, text))
    raise NoTextForm(f"action space {space}")


def colours_to_words(rendering: str) -> str:
    """Replace terminal colours by tags, because they show where things are: `<red>S</red>`."""
    open_names: list[str] = []

    def to_tag(escape: re.Match[str]) -> str:
        codes = [int(code) for code in escape[1].split(";") if code]
        if codes in ([], [0]):
            return f"</{open_names.pop()}>" if open_names else ""
        name = next((COLOURS[c % 10] for c in codes if 30 <= c < 50 and c % 10 < len(COLOURS)), "bold")
        open_names.append(name)
        return f"<{name}>"

    return _ESCAPE.sub(to_tag, rendering)


def _choice(space: spaces.Discrete, names: Sequence[str]) -> ActionText:
    first, last = int(space.start), int(space.start + space.n - 1)
    values = {str(number): number for number in range(first, last + 1)}
    if len(names) == space.n:
        values |= {name.lower(): first + offset for offset, name in enumerate(names)}
        description = ", ".join(name.lower() for name in names)
    else:
        description = f"a number from {first} to {last}"
    dtype = space.dtype.type

    def read(text: str) -> object:
        value = values.get(" ".join(text.lower().split()))
        return None if value is None else dtype(value)

    return ActionText(description, read)


def _read_array(space: spaces.Space, text: str) -> object:
    try:
        numbers = [float(word) for word in text.strip(" []()").replace(",", " ").split()]
    except ValueError:
        return None
    if len(numbers) != _size(space) or not all(map(math.isfinite, numbers)):
        return None
    values = np.asarray(numbers).reshape(space.shape)
    with np.errstate(invalid="ignore"):
        action = values.astype(space.dtype)
    if not np.issubdtype(space.dtype, np.floating) and not np.array_equal(action, values):
        return None  # the conversion rounds 0.5 and wraps 256 around
    return action if space.contains(action) else None


def _format_numbers(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_numbers, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size(space: spaces.Space) -> int:
    return math.prod(space.shape)
