"""The tool for arithmetic, which runs no code: expressions are parsed by recursive descent and computed in
fractions.

No text is evaluated by Python: names are looked up in two tables, operators are matched one by one. Sizes
are checked before anything is computed: no text of `MAX_CHARS` takes more than a fraction of a second.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/" | "//" | "%") sign)*
    sign    = ("+" | "-") sign | power
    power   = postfix (("^" | "**") sign)?          right to left; -2^2 is -4
    postfix = atom "!"*
    atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
"""

import math
import operator
import re
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction

from agents.tools.tool import tool
from agents.tools.types import ToolError

MAX_CHARS = 1000
MAX_DEPTH = 50
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4}(?![0-9]))?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*)|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)
_THOUSANDS = re.compile(r"(?<![0-9.])[0-9]{1,3}(?:,[0-9]{3})*,0[0-9]{2}(?![0-9])")
"""A number like `1,000`, since nobody writes 0 as `000`; `1,234` may be two arguments."""
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": " pi "})  # noqa: RUF001
_SUMS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
MAX_BITS = 8192
"""The most bits of a numerator or denominator, about 2,500 digits."""
MAX_FACTORIAL = 800
MAX_DEGREE = 64
"""Of roots that are computed exactly if possible."""


class CalculationError(Exception):
    """The text, which the agent reads, says what cannot be computed."""


def check_size(value: Fraction) -> Fraction:
    """`value`; raises `CalculationError` if it has more than `MAX_BITS`."""
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculationError(f"a number has more than {MAX_BITS * 3 // 10} digits")
    return value


def power(base: Fraction, exponent: Fraction) -> Fraction:
    """Exact for whole exponents, and where the root that a fraction asks for is a fraction itself."""
    if exponent.denominator != 1:
        if base < 0:
            raise CalculationError("a negative number has no real power with a fraction as exponent")
        if (root := _exact_root(base, exponent.denominator)) is not None:
            return power(root, Fraction(exponent.numerator))
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


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """The root of a number that is not negative; None if it is no fraction, or its degree is above
    `MAX_DEGREE`."""
    if degree > MAX_DEGREE:
        return None
    numerator, denominator = _floor_root(value.numerator, degree), _floor_root(value.denominator, degree)
    if (numerator**degree, denominator**degree) == (value.numerator, value.denominator):
        return Fraction(numerator, denominator)
    return None


def _floor_root(value: int, degree: int) -> int:
    """The largest whole number whose power is at most `value`, by Newton's method from above."""
    root = 1 << -(-value.bit_length() // degree)
    while root and (lower := ((degree - 1) * root + value // root ** (degree - 1)) // degree) < root:
        root = lower
    return root


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
    root = _exact_root(value, 2)
    return _float(math.sqrt)(value) if root is None else root


def _cbrt(value: Fraction) -> Fraction:
    root = _exact_root(abs(value), 3)
    if root is None:
        return _float(math.cbrt)(value)
    return root if value >= 0 else -root


def _log(value: Fraction, base: Fraction = Fraction(10)) -> Fraction:
    if base == 10:
        return _float(math.log10)(value)
    logarithm = _float(math.log2)(value) if base == 2 else _float(math.log)(value, base)
    nearest = Fraction(round(logarithm))
    with suppress(CalculationError):
        if power(base, nearest) == value:
            return nearest
    return logarithm


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
    "cbrt": _cbrt,
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


def evaluate(text: str) -> Fraction:
    """The value of an expression.

    Exact except for angles, and for roots, powers and logarithms that are no fractions, which are computed
    as `float`. Raises `CalculationError` with the reason.
    """
    if len(text) > MAX_CHARS:
        raise CalculationError(f"the expression has {len(text)} characters; at most {MAX_CHARS} are read")
    if separated := _THOUSANDS.search(text):
        raise CalculationError(f"{separated[0]} is not one number here; write it without commas")
    reader = _Reader(_tokens(text.translate(_SAME)))
    value = reader.sum()
    if reader.next:
        raise CalculationError(f"{reader.next!r} is not expected after a complete expression")
    return value


def format_number(value: Fraction) -> str:
    """Whole numbers in full, others as the nearest `float`, or as a fraction if no `float` is near."""
    try:
        near = 0.0 if value.denominator == 1 else float(value)
    except OverflowError:
        near = 0.0
    return repr(near) if near else str(value)


def _tokens(text: str) -> list[str]:
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise CalculationError(f"{text[position:].lstrip()[:20]!r} is no number, operator or name")
        tokens.append(match.group().strip())
        position = match.end()
    return tokens


class _Reader:
    """Parses and computes, from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._position = 0
        self._depth = 0

    @property
    def next(self) -> str:
        """Empty at the end."""
        return self._tokens[self._position] if self._position < len(self._tokens) else ""

    def sum(self) -> Fraction:
        value = self._product()
        while self.next in _SUMS:
            compute = _SUMS[self._take()]
            value = check_size(compute(value, self._product()))
        return value

    def _product(self) -> Fraction:
        value = self._sign()
        while self.next in _PRODUCTS:
            name = self._take()
            right = self._sign()
            if name != "*" and right == 0:
                raise CalculationError("division by zero")
            value = check_size(Fraction(_PRODUCTS[name](value, right)))
        return value

    def _sign(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculationError(f"more than {MAX_DEPTH} levels within each other")
        if self.next in _SUMS:
            value = -self._sign() if self._take() == "-" else self._sign()
        else:
            value = self._power()
        self._depth -= 1
        return value

    def _power(self) -> Fraction:
        base = self._postfix()
        if self.next not in ("^", "**"):
            return base
        self._take()
        return power(base, self._sign())

    def _postfix(self) -> Fraction:
        value = self._atom()
        while self.next == "!":
            self._take()
            value = FUNCTIONS["factorial"](value)
        return value

    def _atom(self) -> Fraction:
        token = self._take()
        if token == "(":
            value = self.sum()
            self._expect(")")
            return value
        if token[:1].isalpha():
            return self._name(token)
        if token[:1].isdigit() or token[:1] == ".":
            return _number(token)
        raise CalculationError(f"a number is expected, not {token or 'the end'!r}")

    def _name(self, name: str) -> Fraction:
        if self.next != "(":
            if name in CONSTANTS:
                return CONSTANTS[name]
            names = ", ".join([*CONSTANTS, *FUNCTIONS])
            raise CalculationError(f"{name!r} is no number; the names are {names}")
        if name not in FUNCTIONS:
            raise CalculationError(f"{name!r} is no function; the functions are {', '.join(FUNCTIONS)}")
        self._take()
        values = [self.sum()]
        while self.next == ",":
            self._take()
            values.append(self.sum())
        self._expect(")")
        try:
            return check_size(FUNCTIONS[name](*values))
        except TypeError:
            raise CalculationError(f"{name} does not take {len(values)} arguments") from None

    def _take(self) -> str:
        token = self.next
        self._position += 1
        return token

    def _expect(self, token: str) -> None:
        if self.next != token:
            raise CalculationError(f"{token!r} is expected, not {self.next or 'the end'!r}")
        self._position += 1


def _number(token: str) -> Fraction:
    mantissa, _, exponent = token.lower().partition("e")
    if abs(int(exponent or 0)) > 1000:
        raise CalculationError(f"the exponent of {token[:40]} is larger than 1000")
    whole = mantissa if mantissa[0] != "." else f"0{mantissa}"
    return check_size(Fraction(whole.rstrip(".")) * Fraction(10) ** int(exponent or 0))


@tool
def calculator(expression: str) -> str:
    """Compute a number, exactly where that is possible.

    Operators: + - * / // % ^ (or **) and ! for factorials. Constants: pi, e, tau. Functions: abs, sqrt, cbrt,
    exp, ln, log (base 10, or a second argument), log2, log10, sin, cos, tan, asin, acos, atan, floor, ceil,
    round, min, max, gcd, lcm, factorial, comb. Angles are in radians.

    Args:
        expression: What to compute, e.g. "(3 + 4/5)^2 * sqrt(2)".
    """
    try:
        return format_number(evaluate(expression))
    except CalculationError as error:
        raise ToolError(f"calculator: {error}") from None
