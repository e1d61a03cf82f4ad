"""Powers, functions and constants of `arithmetic.py`; each checks sizes before it computes."""

import math
from collections.abc import Callable
from fractions import Fraction

MAX_BITS = 8192
"""Of a numerator or denominator, about 2,500 digits."""
MAX_FACTORIAL = 800


class CalculationError(Exception):
    """The text, which the agent reads, says what cannot be computed."""


def check_size(value: Fraction) -> Fraction:
    """`value`; raises `CalculationError` if it has more than `MAX_BITS`."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculationError(f"a number has more than {MAX_BITS * 3 // 10} digits")
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Exact for whole exponents."""
    if exponent.denominator != 1:
        if base < 0:
            raise CalculationError("a negative number has no real power with a fraction as exponent")
        return _float(lambda x, y: x**y)(base, exponent)
    if base == 0 and exponent < 0:
        raise CalculationError("division by zero")
    if abs(base) in (0, 1):
        return base ** int(exponent % 2 + 2 * (exponent != 0))
    # A number of n bits to the k-th has more than (n - 1) k.
    least = (max(abs(base.numerator), base.denominator).bit_length() - 1) * abs(exponent)
    if least > MAX_BITS:
        raise CalculationError(f"a power has more than {MAX_BITS * 3 // 10} digits")
    return check_size(Fraction(base ** int(exponent)))


def _float(function: Callable[..., float]) -> Callable[..., Fraction]:
    """Make a function of floats one of fractions."""

    def compute(*values: Fraction) -> Fraction:
        try:
            return Fraction(function(*(float(value) for value in values)))
        except (ValueError, ZeroDivisionError):
            raise CalculationError("a function has no real value there") from None
        except OverflowError:
            raise CalculationError("a number is too large for this function") from None

    return compute


def _whole(value: Fraction, *, least: int | None = 0) -> int:
    if value.denominator != 1 or (least is not None and value < least):
        raise CalculationError("this function takes whole numbers, most of them not negative")
    return value.numerator


def _sqrt(value: Fraction) -> Fraction:
    if value < 0:
        raise CalculationError("a negative number has no real root")
    roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if (roots[0] ** 2, roots[1] ** 2) == (value.numerator, value.denominator):
        return Fraction(*roots)
    return _float(math.sqrt)(value)


def _log(value: Fraction, base: Fraction = Fraction(10)) -> Fraction:
    if base == 10:
        return _float(math.log10)(value)
    return _float(math.log2)(value) if base == 2 else _float(math.log)(value, base)


def _round(value: Fraction, digits: Fraction = Fraction(0)) -> Fraction:
    num_digits = _whole(digits, least=None)
    if abs(num_digits) > 300:
        raise CalculationError("round takes at most 300 places")
    scale = Fraction(10) ** num_digits
    size = math.floor(abs(value) * scale + Fraction(1, 2)) / scale  # halves away from zero, as at school
    return size if value >= 0 else -size


def _factorial(value: Fraction) -> Fraction:
    if _whole(value) > MAX_FACTORIAL:
        raise CalculationError(f"factorials are computed up to {MAX_FACTORIAL}")
    return Fraction(math.factorial(_whole(value)))


def _comb(total: Fraction, size: Fraction) -> Fraction:
    if _whole(total) > 10 * MAX_FACTORIAL:
        raise CalculationError(f"comb is computed up to {10 * MAX_FACTORIAL}")
    return Fraction(math.comb(_whole(total), _whole(size)))


CONSTANTS = {"pi": Fraction(math.pi), "e": Fraction(math.e), "tau": Fraction(math.tau)}
FUNCTIONS: dict[str, Callable[..., Fraction]] = {
    "abs": abs,
    "sqrt": _sqrt,
    "cbrt": _float(math.cbrt),
    "exp": _float(math.exp),
    "ln": _float(lambda x: math.log(x)),
    "log": _log,
    "log2": _float(lambda x: math.log2(x)),
    "log10": _float(lambda x: math.log10(x)),
    "sin": _float(math.sin),
    "cos": _float(math.cos),
    "tan": _float(math.tan),
    "asin": _float(math.asin),
    "acos": _float(math.acos),
    "atan": _float(math.atan),
    "floor": lambda x: Fraction(math.floor(x)),
    "ceil": lambda x: Fraction(math.ceil(x)),
    "round": _round,
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "gcd": lambda *values: Fraction(math.gcd(*(_whole(value, least=None) for value in values))),
    "lcm": lambda *values: Fraction(math.lcm(*(_whole(value, least=None) for value in values))),
    "factorial": _factorial,
    "comb": _comb,
}
