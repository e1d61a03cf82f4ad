"""Values from outside: what foreign code returns, and what JSON and its schemas hold.

`read_number` and `read_flag` raise `ValueError`, which says what is wrong with a value that an environment or
a reward returned. JSON can spell lone surrogates, which UTF-8 cannot: `replace_surrogates` removes them.
"""

import math
import re
from collections.abc import Mapping
from numbers import Real
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def read_number(value: object, name: str) -> float:
    """`value` as a finite float; numbers of other libraries, such as NumPy's, are numbers."""
    try:
        number = float(value) if isinstance(value, Real) else None
    except OverflowError:
        number = math.inf
    if number is None:
        raise ValueError(f"{name} is {show(value)}; return a number")
    if not math.isfinite(number):
        raise ValueError(f"{name} is {number}; return a finite number")
    return number


def read_flag(value: object, name: str) -> bool:
    """`value` as a bool; a NumPy bool is one, too."""
    if not is_flag(value):
        raise ValueError(f"{name} is {show(value)}; return True or False")
    return bool(value)


def is_flag(value: object) -> bool:
    """Whether `value` is a bool, of Python or of NumPy."""
    # NumPy is not imported for this; its bool is called `bool_` before NumPy 2.
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_"))


def show(value: object) -> str:
    """E.g. `a str, 'no'`, cut to a readable length."""
    return f"a {type(value).__name__}, {repr(value)[:80]}"


def replace_surrogates(text: str, *, by: str = "\ufffd") -> str:
    """`text` with `by` for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub(by, text)


def replace_surrogates_within(value: Any, *, by: str = "\ufffd") -> Any:
    """A JSON value with `by` for each lone surrogate in its texts and keys."""
    if isinstance(value, str):
        return replace_surrogates(value, by=by)
    if isinstance(value, list):
        return [replace_surrogates_within(element, by=by) for element in value]
    if isinstance(value, dict):
        return {
            replace_surrogates(key, by=by): replace_surrogates_within(element, by=by)
            for key, element in value.items()
        }
    return value


def find_definition(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of `root` that `reference` points to, such as `#/$defs/Town`, or an empty mapping if it
    points nowhere."""
    part: Any = root
    for key in reference.removeprefix("#/").split("/"):
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}
