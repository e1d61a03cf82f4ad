"""The calculator against Python's own fractions, and what must not get through it."""

import asyncio
import contextlib
import re
import time
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agents.tools.calculator import MAX_CHARS, CalculationError, calculator, evaluate, format_number
from agents.tools.types import ToolResult, ToolStatus

NUMBER = st.integers(0, 999).map(str) | st.from_regex(r"[0-9]{1,3}\.[0-9]{1,3}", fullmatch=True)


def _join(parts: tuple[str, str, str]) -> str:
    return " ".join(parts)


def _raise(parts: tuple[str, str]) -> str:
    """A power with a whole exponent; that of `0.5 ** 3 ** -2` is 1/9, and Python would return a float."""
    base, exponent = parts
    return f"({base}) ** {exponent}" if "**" in base else f"{base} ** {exponent}"


TEXT = st.recursive(
    NUMBER,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner).map(_join)
        | st.tuples(inner, st.sampled_from(["0", "1", "2", "3", "-2"])).map(_raise)
        | inner.map(lambda text: f"({text})")
        | inner.map(lambda text: f"-{text}")
    ),
    max_leaves=12,
)


def python(text: str) -> Any:
    """Python's own answer, every literal a fraction."""
    return eval(re.sub(r"[0-9.]+", r"Fraction('\g<0>')", text), {"Fraction": Fraction})


@given(TEXT)
def test_it_computes_what_pythons_fractions_compute(text: str) -> None:
    assume(len(text) <= MAX_CHARS)
    try:
        reference = python(text)
    except ZeroDivisionError:
        with pytest.raises(CalculationError, match="division by zero"):
            evaluate(text)
        return
    assume(max(reference.numerator.bit_length(), reference.denominator.bit_length()) < 2000)
    value = evaluate(text.replace("**", "^"))
    assert value == reference == evaluate(text)
    assert float(format_number(value)) == float(reference)


@given(st.text() | st.text("0123456789.+-*/%^!(), episqrtlogmx_", max_size=60))
def test_no_text_is_a_crash(text: str) -> None:
    with contextlib.suppress(CalculationError):
        format_number(evaluate(text))


@given(st.decimals(-1000, 1000, places=4), st.integers(0, 3))
def test_round_goes_as_at_school(value: Decimal, num_digits: int) -> None:
    reference = value.quantize(Decimal(1).scaleb(-num_digits), ROUND_HALF_UP)
    assert evaluate(f"round({value}, {num_digits})") == Fraction(reference)


def compute(text: str) -> ToolResult:
    return asyncio.run(calculator.call({"expression": text}))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("0.1 + 0.2", "0.3"),
        ("-2^2", "-4"),
        ("2^3^2", "512"),
        ("2^-2", "0.25"),
        ("3!!", "720"),
        ("2 × 3 ÷ 4 − 1", "0.5"),
        ("sqrt(2)", "1.4142135623730951"),
        ("sqrt(10^400)", "1" + "0" * 200),
        ("sqrt(4/9)", "0.6666666666666666"),
        ("log(1000), ", None),
        ("log(1000)", "3"),
        ("log(81, 3)", "4"),
        ("log(125, 5)", "3"),
        ("log(1/243, 3)", "-5"),
        ("log(126, 5)", "3.0049509021675314"),
        ("cbrt(27)", "3"),
        ("cbrt(-8/27)", "-0.6666666666666666"),
        ("64^(1/3)", "4"),
        ("0^(1/2)", "0"),
        ("2^0.5", "1.4142135623730951"),
        ("ln(e)", "1"),
        ("sin(pi/2)", "1"),
        ("π > 3", None),
        ("max(1, 5/2, 2)", "2.5"),
        ("max(1,000, 5)", None),
        ("1,234,056 + 1", None),
        ("max(1,234)", "234"),
        ("round(1000.056,00)", "1000"),
        ("comb(52, 5)", "2598960"),
        ("gcd(12, 18) + lcm(4, 6)", "18"),
        ("round(2/3, 2) + floor(-0.5) + ceil(0.5)", "0.67"),
        ("(-1)^1000000000001", "-1"),
        ("1.5e3 + .5", "1500.5"),
        ("1/10^400", f"1/1{'0' * 400}"),
    ],
)
def test_known_answers(text: str, answer: str | None) -> None:
    result = compute(text)
    assert (result.observation if result.status is ToolStatus.OK else None) == answer


@given(st.fractions(0, 10**6, max_denominator=10**3), st.integers(2, 9))
def test_a_power_is_undone_exactly(value: Fraction, degree: int) -> None:
    assert evaluate(f"(({value})^{degree})^(1/{degree})") == value
    assert evaluate(f"cbrt(-({value})^3)") == -value


# Each of these did something in a calculator that hands its text to sympify or eval.
ATTACKS = [
    "__import__('os').system('touch /tmp/pwned')",
    "exec('raise SystemExit')",
    "().__class__.__bases__[0].__subclasses__()",
    "(lambda: 1)()",
    "[x for x in (1,)]",
    "open('/etc/passwd').read()",
    "Symbol('x').__class__",
    "1 if 1 else 2",
    "breakpoint()",
    "'a' * 10",
    "f'{1}'",
    "x := 3",
    "1; import os",
    "1\n+\nimport",
    "globals()",
    "pi.real",
    "sqrt.__globals__",
    "\x00",
    "１ + １",  # noqa: RUF001
    "1_000",
    "0x10",
    "1j",
]
LARGE_EXPRESSIONS = [
    "9^9^9^9",
    "9**9**9**9",
    "10^(10^10)",
    "2^(-10^9)",
    "(1/3)^100000",
    "1.0000001^10000000",
    "1e999999999",
    "1e-999999999",
    "10000!",
    "800!!",
    "factorial(10^9)",
    "comb(10^9, 5*10^8)",
    "round(1, 10^9)",
    "round(1, -10^9)",
    "exp(10^9)",
    "2^0.5^-10^3",
    "(" * 900 + "1",
    "-" * 900 + "1",
    "2^" * 400 + "2",
    "9" * 10**6,
    "abs(" * 240 + "1",
]


@pytest.mark.parametrize("text", ATTACKS)
def test_nothing_but_arithmetic_is_read(text: str) -> None:
    result = compute(text)
    assert result.status is ToolStatus.RAISED
    assert result.observation.startswith("calculator: ")


@pytest.mark.parametrize("text", LARGE_EXPRESSIONS, ids=range(len(LARGE_EXPRESSIONS)))
def test_what_is_too_large_is_refused_before_it_is_compute(text: str) -> None:
    start = time.process_time()
    result = compute(text)
    assert result.status is ToolStatus.RAISED, result.observation[:100]
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    "part", ["800!+", "comb(8000,4000)+", "3^5000*1+", "lcm(800!-1,797!+1)+", "(1/797!)+", "sqrt(799!)+"]
)
def test_the_longest_text_takes_a_fraction_of_a_second(part: str) -> None:
    text = part * ((MAX_CHARS - 1) // len(part)) + "1"
    start = time.process_time()
    compute(text)
    assert time.process_time() - start < 2
