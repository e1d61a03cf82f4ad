"""Rewards for mathematical answers: equal as mathematics, not as text, by math-verify (Hugging Face, which
reads LaTeX and plain expressions: `\\frac{1}{2}` equals `0.5`).

The accepted answers come from the field `answer`, with or without dollars. An answer too large to be compared
within `CPU_S` is the policy's, and wrong: it is a reward of 0 with the metric `undecided`, not a failure.
"""

import os
from collections.abc import Sequence

from agents.rewards.formats import after_thinking, tool_calls
from agents.rewards.function import reward
from agents.rewards.math.process import NEEDS, MathProcesses, Verdict
from agents.rewards.text import references
from agents.rewards.text import verdict as verdict_of
from agents.types import Trajectory

Answer = str | float | Sequence[str]
Value = dict[str, float | bool]

WRONG_BY_TOOL = 0.1
"""Of `math_equal_with_tool`, where a tool was used to no avail; AgentFly's value."""
TIMEOUT_S = 120.0
"""Seconds of one reward, waiting for a free process included."""

_PROCESSES = MathProcesses(os.cpu_count() or 1)


def _compare(response: str | None, answer: Answer) -> Verdict:
    gold = references(answer)
    if response is None:
        return Verdict(correct=False, found=False)
    return _PROCESSES.compare(gold, response)


def _value(verdict: Verdict, **metrics: float) -> Value:
    found, undecided = float(verdict.found), float(not verdict.decided)
    return verdict_of(verdict.correct, found=found, undecided=undecided, **metrics)


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal(final_response: str, answer: Answer) -> Value:
    """1 if the answer in the response equals an accepted one, else 0; metrics `found`, `undecided`.

    Of several expressions in the response math-verify takes the boxed one, else the last.
    """
    return _value(_compare(final_response, answer))


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """As `math_equal` where a tool was used, but 0.1 for a wrong answer; 0 where none was used."""
    calls = tool_calls(trajectory)
    verdict = _compare(final_response if calls else None, answer)
    value = _value(verdict, tool_calls=calls)
    return value if verdict.correct or not calls else {**value, "reward": WRONG_BY_TOOL}


@reward(needs=NEEDS, timeout_s=TIMEOUT_S)
def math_equal_with_think(final_response: str, answer: Answer) -> Value:
    """As `math_equal`, of what follows `<think>…</think>`; 0 for a response of any other form."""
    text = after_thinking(final_response)
    return _value(_compare(text, answer), format=float(text is not None))
