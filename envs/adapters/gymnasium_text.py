"""Spaces of gymnasium as text: which have a text form, and what it is.

Observations: texts as they are, numbers as numbers, tuples in parentheses, dictionaries a line per key.
Actions: texts as they are, a choice by its name or number, several numbers separated by blanks or commas.
A space with more numbers than a reader would take in, or of another kind, has no text form.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium.spaces as spaces
import numpy as np

MAX_NUMBERS = 64
"""In one observation or action; more is a picture, not a text."""

COLOURS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white", "crimson")
"""By gymnasium's colour numbers, from 30 for letters and 40 for their background."""

_ESCAPE = re.compile(r"\x1b\[([\d;]*)m")


class NoTextForm(ValueError):
    """A space that cannot be read or written as text; the text names the part."""


@dataclass(frozen=True, slots=True)
class ActionText:
    """How actions of one space are written."""

    described: str
    """What an action looks like, for whoever is to write one."""
    read: Callable[[str], Any]
    """Text → action, or None where it is none."""


def observation_text(space: Any) -> Callable[[Any], str]:
    """What makes a text of the space's values; raises `NoTextForm`."""
    match space:
        case spaces.Text():
            return str
        case spaces.Discrete():
            return lambda value: str(int(value))
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box() if _size(space) <= MAX_NUMBERS:
            return lambda value: _numbers(np.asarray(value).tolist())
        case spaces.Tuple():
            parts = [observation_text(part) for part in space.spaces]
            return lambda value: f"({', '.join(f(v) for f, v in zip(parts, value, strict=True))})"
        case spaces.Dict():
            named = {key: observation_text(part) for key, part in space.spaces.items()}
            return lambda value: "\n".join(f"{key}: {f(value[key])}" for key, f in named.items())
    raise NoTextForm(f"observation space {space}")


def action_text(space: Any, *, names: Sequence[str] = ()) -> ActionText:
    """How the space's actions are written; `names` are those of a choice, in order. Raises `NoTextForm`."""
    match space:
        case spaces.Text():
            return ActionText("any text", lambda said: said if space.contains(said) else None)
        case spaces.Discrete():
            return _choice(space, names)
        case spaces.MultiDiscrete() | spaces.MultiBinary() | spaces.Box() if _size(space) <= MAX_NUMBERS:
            return ActionText(f"{_size(space)} numbers out of {space}", lambda said: _array(space, said))
    raise NoTextForm(f"action space {space}")


def without_colours(rendered: str) -> str:
    """Terminal colours as words, for they say where things are: `<red>S</red>`."""
    open_names: list[str] = []

    def in_words(found: re.Match[str]) -> str:
        codes = [int(code) for code in found[1].split(";") if code]
        if codes in ([], [0]):
            return f"</{open_names.pop()}>" if open_names else ""
        name = next((COLOURS[c % 10] for c in codes if 30 <= c < 50 and c % 10 < len(COLOURS)), "bold")
        open_names.append(name)
        return f"<{name}>"

    return _ESCAPE.sub(in_words, rendered)


def _choice(space: Any, names: Sequence[str]) -> ActionText:
    first, last = int(space.start), int(space.start + space.n - 1)
    known = {str(number): number for number in range(first, last + 1)}
    if len(names) == space.n:
        known |= {name.lower(): first + place for place, name in enumerate(names)}
        described = ", ".join(name.lower() for name in names)
    else:
        described = f"a number from {first} to {last}"
    dtype = space.dtype.type

    def read(said: str) -> Any:
        chosen = known.get(" ".join(said.lower().split()))
        return None if chosen is None else dtype(chosen)

    return ActionText(described, read)


def _array(space: Any, said: str) -> Any:
    try:
        numbers = [float(word) for word in said.strip(" []()").replace(",", " ").split()]
    except ValueError:
        return None
    if len(numbers) != _size(space) or not all(map(math.isfinite, numbers)):
        return None
    action = np.asarray(numbers).reshape(space.shape)
    if not np.issubdtype(space.dtype, np.floating) and not np.equal(action, np.round(action)).all():
        return None
    action = action.astype(space.dtype)
    return action if space.contains(action) else None


def _numbers(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_numbers, value))}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size(space: Any) -> int:
    return math.prod(space.shape)
