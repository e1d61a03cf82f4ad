"""Rewards for short answers to questions: exact match and F1 of words, as SQuAD v1.1 evaluates them
(Rajpurkar et al., arXiv 1606.05250, and its evaluation script). Where several answers are accepted, the best
counts. All take the accepted ones from the field `answer`.
"""

from collections.abc import Sequence

from agents.rewards.formats import tagged_answer, tool_calls, well_formed_answer
from agents.rewards.function import reward
from agents.rewards.text import references
from agents.types import Trajectory
from envs.builtin.searchqa.scoring import Match, compare

Answer = str | Sequence[str]
Value = dict[str, float | bool]


def match(text: str | None, answer: Answer) -> Match:
    """Compare `text` with the accepted answers; None is no answer at all and matches nothing."""
    return compare(text, references(answer))


def _by_exact_match(match_result: Match, **metrics: float) -> Value:
    return {
        "reward": match_result.exact,
        "success": match_result.exact == 1.0,
        "f1": match_result.f1,
        **metrics,
    }


def _by_f1(match_result: Match, **metrics: float) -> Value:
    return {
        "reward": match_result.f1,
        "success": match_result.exact == 1.0,
        "exact_match": match_result.exact,
        **metrics,
    }


@reward
def qa_exact_match(final_response: str, answer: Answer) -> Value:
    """1 if the response is an accepted answer after normalisation, else 0."""
    return _by_exact_match(match(final_response, answer))


@reward
def qa_f1(final_response: str, answer: Answer) -> Value:
    """F1 of the response, in [0, 1]."""
    return _by_f1(match(final_response, answer))


@reward
def qa_exact_match_with_format(final_response: str, answer: Answer) -> Value:
    """Exact match of the answer in `<think>…</think><answer>…</answer>`; 0 for any other form."""
    text = well_formed_answer(final_response)
    return _by_exact_match(match(text, answer), format=float(text is not None))


@reward
def qa_f1_with_format(final_response: str, answer: Answer) -> Value:
    """F1 of the answer in `<think>…</think><answer>…</answer>`; 0 for any other form."""
    text = well_formed_answer(final_response)
    return _by_f1(match(text, answer), format=float(text is not None))


@reward
def qa_exact_match_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """Exact match of the response; 0 where no tool was used."""
    calls = tool_calls(trajectory)
    return _by_exact_match(match(final_response if calls else None, answer), tool_calls=calls)


@reward
def qa_f1_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """F1 of the response; 0 where no tool was used."""
    calls = tool_calls(trajectory)
    return _by_f1(match(final_response if calls else None, answer), tool_calls=calls)


@reward
def searchr1_exact_match(final_response: str, answer: Answer) -> Value:
    """Exact match of what stands in the last `<answer>…</answer>`, whatever is around it; 0 without one.

    The outcome reward of Search-R1 (arXiv 2503.09516).
    """
    text = tagged_answer(final_response)
    return _by_exact_match(match(text, answer), format=float(text is not None))
