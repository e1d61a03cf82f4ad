"""Rewards for short answers to questions: exact match and F1 of words, as SQuAD v1.1 evaluates them
(Rajpurkar et al., arXiv 1606.05250, and its evaluation script). Where several answers are accepted, the best
counts. All take the accepted ones from the field `answer`.

Rewards that look for `<think>` or `<answer>` take all that the policy wrote (`last_text`): a format reads
these marks itself, and a response does not contain them.
"""

from collections.abc import Sequence

from agents.rewards.formats import tagged_answer, tool_calls, well_formed_answer
from agents.rewards.function import reward
from agents.rewards.text import references
from agents.types import Trajectory
from envs.builtin.searchqa.scoring import compare

Answer = str | Sequence[str]
Value = dict[str, float | bool]


def _score(text: str | None, answer: Answer, *, metric: str, **metrics: float) -> Value:
    """Compare `text`, None for no answer, with the accepted ones. `metric`: `exact_match` or `f1`; the other
    one is only recorded."""
    match = compare(text, references(answer))
    scores = {"exact_match": match.exact, "f1": match.f1}
    return {"reward": scores.pop(metric), "success": match.exact == 1.0, **scores, **metrics}


def _score_formatted(last_text: str, answer: Answer, *, metric: str) -> Value:
    text = well_formed_answer(last_text)
    return _score(text, answer, metric=metric, format=float(text is not None))


def _score_with_tool(response: str, answer: Answer, trajectory: Trajectory, *, metric: str) -> Value:
    calls = tool_calls(trajectory)
    return _score(response if calls else None, answer, metric=metric, tool_calls=calls)


@reward
def qa_exact_match(final_response: str, answer: Answer) -> Value:
    """1 if the response is an accepted answer after normalisation, else 0."""
    return _score(final_response, answer, metric="exact_match")


@reward
def qa_exact_match_with_format(last_text: str, answer: Answer) -> Value:
    """Exact match of the answer in `<think>…</think><answer>…</answer>`; 0 for any other form."""
    return _score_formatted(last_text, answer, metric="exact_match")


@reward
def qa_exact_match_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """Exact match of the response; 0 where no tool was used."""
    return _score_with_tool(final_response, answer, trajectory, metric="exact_match")


@reward
def qa_f1(final_response: str, answer: Answer) -> Value:
    """F1 of the response, in [0, 1]."""
    return _score(final_response, answer, metric="f1")


@reward
def qa_f1_with_format(last_text: str, answer: Answer) -> Value:
    """F1 of the answer in `<think>…</think><answer>…</answer>`; 0 for any other form."""
    return _score_formatted(last_text, answer, metric="f1")


@reward
def qa_f1_with_tool(final_response: str, answer: Answer, trajectory: Trajectory) -> Value:
    """F1 of the response; 0 where no tool was used."""
    return _score_with_tool(final_response, answer, trajectory, metric="f1")


@reward
def searchr1_exact_match(last_text: str, answer: Answer) -> Value:
    """Exact match of what stands in the last `<answer>…</answer>`, whatever is around it; 0 without one.

    The outcome reward of Search-R1 (arXiv 2503.09516).
    """
    text = tagged_answer(last_text)
    return _score(text, answer, metric="exact_match", format=float(text is not None))
