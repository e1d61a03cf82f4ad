"""Rewards for the form of a text and the use of tools, and the parsers that other rewards share."""

import re

from agents.rewards.function import reward
from agents.types import OTHER_SAMPLING, Trajectory

_THINKING = re.compile(r"\A\s*+(?:<think>)?((?:(?!</?think>).)*+)</think>((?:(?!</?think>).)*+)\Z", re.DOTALL)
_ANSWER = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
_NOT_COUNTED = ("answer", "summarize")
"""Tools that end or cut a conversation."""


def after_thinking(text: str) -> str | None:
    """The stripped text after `<think>…</think>`; None for any other form.

    Neither part may be empty, each tag occurs once, and nothing precedes it. The opening tag may be missing,
    because some chat templates put it into the prompt.
    """
    match = _THINKING.match(text)
    if match is None or not match[1].strip():
        return None
    return match[2].strip() or None


def tagged_answer(text: str) -> str | None:
    """The stripped text of the last `<answer>…</answer>`; None if there is none or it is empty."""
    matches = _ANSWER.findall(text)
    return (matches[-1].strip() or None) if matches else None


def well_formed_answer(text: str) -> str | None:
    """The answer of `<think>…</think><answer>…</answer>` and nothing else; None for any other form.

    The form of DeepSeek-R1-Zero (arXiv 2501.12948, table 1).
    """
    rest = after_thinking(text)
    match = _ANSWER.fullmatch(rest) if rest is not None else None
    return (match[1].strip() or None) if match else None


def tool_calls(trajectory: Trajectory) -> int:
    """The number of successful tool calls, without those of `answer` and `summarize`.

    The counts are the episode's (`agents/rollout/episode.py`). Nothing counts the tools of a program, whose
    requests the gateway records: there, each turn before the last counts as a call.
    """
    metrics = trajectory.metrics
    if OTHER_SAMPLING in metrics:
        return max(0, len(trajectory.turns) - 1)
    names = [name.partition("/")[2] for name in metrics if name.startswith("tool_calls/")]
    helpful = [name for name in names if name not in _NOT_COUNTED]
    return int(sum(metrics[f"tool_calls/{name}"] - metrics[f"tool_failures/{name}"] for name in helpful))


@reward
def think_format(last_text: str) -> float:
    """1 for `<think>…</think>` and an answer after it, else 0."""
    return float(after_thinking(last_text) is not None)


@reward
def answer_format(last_text: str) -> float:
    """1 if the text ends with its only `<answer>…</answer>`, else 0."""
    matches = list(_ANSWER.finditer(last_text))
    if len(matches) != 1 or not matches[0][1].strip():
        return 0.0
    return float(not last_text[matches[0].end() :].strip())


@reward
def think_answer_format(last_text: str) -> float:
    """1 for `<think>…</think><answer>…</answer>` and nothing else, else 0."""
    return float(well_formed_answer(last_text) is not None)


@reward
def tool_use(trajectory: Trajectory) -> dict[str, float]:
    """1 if a tool call succeeded, else 0; metric `calls`."""
    calls = tool_calls(trajectory)
    return {"reward": float(calls > 0), "calls": calls}
