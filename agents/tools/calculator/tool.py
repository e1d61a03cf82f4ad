"""The tool for arithmetic, which runs no code."""

from agents.tools.calculator.arithmetic import evaluate, format_number
from agents.tools.calculator.functions import CalculationError
from agents.tools.tool import tool
from agents.tools.types import ToolError


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
