"""Arithmetic expressions, parsed by recursive descent and computed in fractions.

No text is evaluated by Python: names are looked up in two tables, operators are matched one by one. Sizes
are checked before anything is computed: no text of `MAX_CHARS` takes more than a fraction of a second.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/" | "//" | "%") sign)*
    sign    = ("+" | "-") sign | power
    power   = postfix (("^" | "**") sign)?          right to left; -2^2 is -4
    postfix = atom "!"*
    atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
"""

import operator
import re
from collections.abc import Callable
from fractions import Fraction

from agents.tools.calculator.functions import CONSTANTS, FUNCTIONS, CalculationError, check_size, power

MAX_CHARS = 1000
MAX_DEPTH = 50
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4}(?![0-9]))?)"
    r"|(?P<name>[A-Za-z][A-Za-z0-9]*)|(?P<sign>\*\*|//|[-+*/%^!(),]))"
)
_SAME = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "π": " pi "})  # noqa: RUF001
_SUMS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: dict[str, Callable[[Fraction, Fraction], Fraction | int]] = {
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}


def evaluate(text: str) -> Fraction:
    """The value of an expression.

    Exact except for roots, fractional powers, logarithms and angles, which are computed as `float`.
    Raises `CalculationError` with the reason.
    """
    if len(text) > MAX_CHARS:
        raise CalculationError(f"the expression has {len(text)} characters; at most {MAX_CHARS} are read")
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
