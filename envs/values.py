"""Reads values that foreign code returns, such as an environment's or a reward's; `ValueError` says what is
wrong with one."""

import math
from numbers import Real


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
