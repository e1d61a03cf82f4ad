"""Rewards for mathematical answers: equal as mathematics, not as text, by math-verify (Hugging Face, which
reads LaTeX and plain expressions: `\\frac{1}{2}` equals `0.5`).

The accepted answers come from the field `answer`, with or without dollars. An answer that cannot be compared
within `CPU_S` is wrong, with the metric `undecided`: a reward of 0, not a failure.
"""

from collections.abc import Sequence

from agents.rewards.formats import after_thinking, tool_calls
from agents.rewards.function import reward
from agents.rewards.math.process import NEEDS, MathProcesses, MathVerdict
from agents.rewards.text import references
from agents.rewards.text import verdict as verdict_of
from agents.types import Trajectory
from envs.cores import count_cores

Answer = str | float | Sequence[str]
Value = dict[str, float | bool]

WRONG_BY_TOOL = 0.1
"""The reward of `math_equal_with_tool` for a wrong answer after the use of a tool; AgentFly's value."""
TIMEOUT_S = 120.0
"""Seconds of one reward, including the wait for a free process."""

_PROCESSES = MathProcesses(count_cores())


def _compare(response: str | None, answer: Answer) -> MathVerdict:
    gold = references(answer)
    if response is None:
        return MathVerdict(is_correct=False, has_mathematics=False)
    return _PROCESSES.compare(gold, response)


def _value(verdict: MathVerdict, **metrics: float) -> Value:
    metrics |= {"found": float(verdict.has_mathematics), "undecided": float(not verdict.is_decided)}
    return verdict_of(verdict.is_correct, **metrics)


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal(final_response: str, answer: Answer) -> Value:
    """1 if the answer in the response equals an accepted one, else 0; metrics `found`, `undecided`.

    Of several expressions in the response, math-verify takes the boxed one, else the last.
    """
    return _value(_compare(final_response, answer))


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """The value of `math_equal` if a tool was used, but 0.1 for a wrong answer; 0 if no tool was used."""
    calls = tool_calls(trajectory)
    verdict = _compare(final_response if calls else None, answer)
    value = _value(verdict, tool_calls=calls)
    return value if verdict.is_correct or not calls else {**value, "reward": WRONG_BY_TOOL}


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal_with_think(last_text: str, answer: Answer) -> Value:
    """The value of `math_equal` for the text after `<think>…</think>`; 0 for any other form."""
    text = after_thinking(last_text)
    return _value(_compare(text, answer), format=float(text is not None))
