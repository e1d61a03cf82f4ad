"""Rewards that read text: by hand, and by the evaluation of SQuAD v1.1 worked out by hand."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.rewards import REWARDS, RewardResult
from agents.rewards.formats import after_thinking, tagged_answer, tool_calls, well_formed_answer
from agents.rewards.text import last_number
from envs.builtin.searchqa.scoring import f1, normalize
from envs.errors import RewardFailed
from tests.support.reward_toy import make_reward_input, make_trajectory


def value_of(name: str, *texts: str, **fields: Any) -> RewardResult:
    metrics = fields.pop("metrics", None)
    return asyncio.run(REWARDS[name].score(make_reward_input(*texts, fields=fields, metrics=metrics)))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("The Cat", "cat"),
        ("  a  cat,\nan owl & the dog. ", "cat owl dog"),
        ("the-cat", "thecat"),  # punctuation goes first: no article is left
        ("U.S.A.", "usa"),
        ("theatre and banana", "theatre and banana"),
        ("A.", ""),
        ("«é»", "«é»"),  # ASCII punctuation only
    ],
)
def test_normalisation_of_squad(text: str, result: str) -> None:
    assert normalize(text) == result


@pytest.mark.parametrize(
    ("text", "reference", "result"),
    [
        ("the Denver Broncos", "Denver Broncos", 1.0),
        ("Broncos", "Denver Broncos", 2 / 3),  # precision 1, recall 1/2
        ("it was Denver Broncos", "Denver Broncos", 2 / 3),  # precision 2/4, recall 1
        ("cat cat dog", "cat dog dog", 2 / 3),  # common as multisets: cat, dog
        ("owl", "cat", 0.0),
        ("the", "a", 0.0),  # nothing on either side: the script gives 0
        ("", "cat", 0.0),
    ],
)
def test_f1_of_squad(text: str, reference: str, result: float) -> None:
    assert f1(text, reference) == pytest.approx(result)


@given(st.text(max_size=40), st.text(max_size=40))
def test_f1_is_symmetric_and_one_for_equal_words(first: str, second: str) -> None:
    assert f1(first, second) == pytest.approx(f1(second, first))
    assert 0.0 <= f1(first, second) <= 1.0
    assert f1(first, first) == (1.0 if normalize(first) else 0.0)


def test_questions() -> None:
    best = value_of("qa_f1", "Broncos", answer=["Carolina", "Denver Broncos"])
    assert best.reward == pytest.approx(2 / 3)
    assert best.success is False
    exact = value_of("qa_exact_match", "The Broncos!", answer=["Panthers", "broncos"])
    assert (exact.reward, exact.success, exact.metrics["f1"]) == (1.0, True, 1.0)
    assert value_of("qa_exact_match", "Broncos of Denver", answer="Broncos").reward == 0.0


WELL_FORMED = "<think>It is\nBroncos.</think>\n<answer> The Broncos </answer>"


@pytest.mark.parametrize("name", ["qa_exact_match_with_format", "qa_f1_with_format", "searchr1_exact_match"])
def test_answers_in_tags(name: str) -> None:
    assert value_of(name, WELL_FORMED, answer="broncos").reward == 1.0
    assert value_of(name, WELL_FORMED, answer="panthers").reward == 0.0
    bare = value_of(name, "Broncos", answer="broncos")
    assert (bare.reward, bare.metrics["format"], bare.success) == (0.0, 0.0, False)


def test_searchr1_takes_the_last_answer_whatever_is_around_it() -> None:
    text = "I would say <answer>Panthers</answer>, no: <answer>Broncos</answer> it is"
    assert value_of("searchr1_exact_match", text, answer="Broncos").reward == 1.0
    assert value_of("qa_exact_match_with_format", text, answer="Broncos").reward == 0.0


@pytest.mark.parametrize("name", ["qa_exact_match_with_tool", "qa_f1_with_tool"])
def test_without_a_tool_an_answer_is_worth_nothing(name: str) -> None:
    assert value_of(name, "Broncos", answer="Broncos").reward == 0.0
    program = {"other_sampling": 0}
    assert value_of(name, "search", "Broncos", answer="Broncos", metrics=program).reward == 1.0
    no_calls = {"tool_calls/search": 0, "tool_failures/search": 0}
    assert value_of(name, "hm", "Broncos", answer="Broncos", metrics=no_calls).reward == 0.0


def test_tool_calls() -> None:
    program = {"other_sampling": 0}
    assert tool_calls(make_trajectory(metrics=program)) == 0
    assert tool_calls(make_trajectory("a", metrics=program)) == 0
    assert tool_calls(make_trajectory("a", "b", "c", metrics=program)) == 2
    assert tool_calls(make_trajectory("a", "b", "c")) == 0  # of an agent without tools
    two = {"tool_calls/search": 3, "tool_failures/search": 1}
    two |= {"tool_calls/answer": 1, "tool_failures/answer": 0}
    assert tool_calls(make_trajectory("a", metrics=two)) == 2
    assert tool_calls(make_trajectory("a", "b", metrics={"tool_calls/x": 0, "tool_failures/x": 0})) == 0
    assert value_of("tool_use", "a", "b", metrics=program).metrics == {"calls": 1.0}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("<think>t</think> a ", "a"),
        ("t</think>a", "a"),  # the template has opened it
        ("<think>t</think>", None),
        ("<think></think>a", None),
        ("<think>t</think>a</think>b", None),
        ("<think>t<think>u</think>a", None),
        ("hello <think>t</think>a", None),
        ("a", None),
        ("", None),
    ],
)
def test_think_format(text: str, result: str | None) -> None:
    assert after_thinking(text) == result
    assert value_of("think_format", text).reward == float(result is not None)


def test_forms_are_found_in_time_linear_in_the_text() -> None:
    """Quadratic time would take hours."""
    assert after_thinking("\n" * 500_000) is None
    assert after_thinking("\n" * 500_000 + "<think>t</think>a") == "a"
    assert tagged_answer("<answer>" * 60_000) is None


@pytest.mark.parametrize(
    ("text", "answer", "answer_alone", "ends"),
    [
        ("<think>t</think><answer>a</answer>", "a", "a", 1.0),
        ("<think>t</think>so <answer>a</answer>", "a", None, 1.0),
        ("<answer>a</answer>", "a", None, 1.0),
        ("<answer>a</answer> and more", "a", None, 0.0),
        ("<answer>a</answer> and more</answer>", "a", None, 0.0),
        ("<answer>a</answer><answer>b</answer>", "b", None, 0.0),
        ("<answer> </answer>", None, None, 0.0),
        ("<answer>a", None, None, 0.0),
    ],
)
def test_answer_format(text: str, answer: str | None, answer_alone: str | None, ends: float) -> None:
    assert tagged_answer(text) == answer
    assert well_formed_answer(text) == answer_alone
    assert value_of("think_answer_format", text).reward == float(answer_alone is not None)
    assert value_of("answer_format", text).reward == ends


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("it is 1,234.50 dollars", 1234.5),
        ("12, 13.", 13.0),
        ("= -.5", -0.5),
        ("x=-7", -7.0),
        ("9-4", 4.0),
        ("2e-3", 0.002),
        ("x = \u22127", -7.0),
        ("2e\u22123", 0.002),
        ("1,23", 23.0),
        ("none", None),
        ("- . ,", None),
    ],
)
def test_the_last_number(text: str, result: float | None) -> None:
    assert last_number(text) == result


@pytest.mark.parametrize("name", ["qa_exact_match", "qa_f1", "string_equal", "number_equal"])
def test_a_whole_number_of_the_data_has_no_decimal_point(name: str) -> None:
    for answer in (5, 5.0, [7, 5.0]):
        assert value_of(name, "5", answer=answer).reward == 1.0
        assert value_of(name, "50", answer=answer).reward == 0.0
    assert value_of(name, "5.5", answer=5.5).reward == 1.0
    assert value_of(name, "1e+22", answer=1e22).reward == 1.0


def test_numbers_within_a_tolerance() -> None:
    assert value_of("number_equal", "so 3.1416", answer=3.1415926, relative_tolerance=1e-4).reward == 1.0
    assert value_of("number_equal", "so 3.1416", answer=3.1415926).reward == 0.0
    assert value_of("number_equal", "1,000", answer=["7", "1000"]).success is True
    assert value_of("number_equal", "many", answer=0).reward == 0.0
    with pytest.raises(RewardFailed, match="'many', which contains no number; use string_equal"):
        value_of("number_equal", "7", answer="many")


@pytest.mark.parametrize(
    "answer", ["1/2", r"\frac{1}{2}", r"-\dfrac12", "3^2", r"10^{-2}", r"3\sqrt{2}", "1 / 2"]
)
def test_an_answer_that_ends_with_a_part_of_a_term_has_no_last_number(answer: str) -> None:
    """`7/2` would equal `1/2`, because both end with 2."""
    with pytest.raises(RewardFailed, match="ends with a fraction, a power or a root; use math_equal"):
        value_of("number_equal", "7/2", answer=answer)
    assert value_of("number_equal", "6", answer=f"It is {answer}, and so\n#### 6").reward == 1.0


def test_strings() -> None:
    assert value_of("string_equal", " Paris\n", answer="Paris").reward == 1.0
    assert value_of("string_equal", "paris", answer="Paris").reward == 0.0
    values: list[Any] = [[], {"a": 1}, None, True]
    for bad in values:
        with pytest.raises(RewardFailed, match="answer"):
            value_of("string_equal", "x", answer=bad)
