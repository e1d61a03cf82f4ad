"""reasoning-gym's own data sets: questions, answers, scores, and what a policy's answer must not do."""

import asyncio
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from envs.adapters.seeds import seeded_item
from envs.errors import ConfigError
from envs.registry import get_env
from envs.types import Item, StepResult
from tasks.data.items import item_from_json, item_to_json
from tests.support.openings import read_opening

pytestmark = pytest.mark.skipif(
    find_spec("reasoning_gym") is None, reason="needs a C compiler: pip install reasoning-gym==0.1.25"
)

EVALUATING = ("binary_matrix", "countdown", "n_queens", "puzzle24", "spiral_matrix", "string_insertion")


def ask(item: Item, answer: str) -> tuple[str, StepResult]:
    async def episode() -> tuple[str, StepResult]:
        env = get_env(item.env).make()
        question = await read_opening(env, item)
        result = await env.step(answer)
        await env.close()
        return question, result

    return asyncio.run(episode())


def test_sums_are_answered_by_arithmetic_and_wrong_answers_are_recognized() -> None:
    spec = get_env("reasoning-gym:chain_sum?max_terms=3")
    for item in spec.split(0).test[:10]:
        question, _ = ask(item, "")
        sum_ = re.search(r"[\d+\- ]*\d(?= =)", question)
        assert sum_ is not None
        right = sum(int(term) for term in re.findall(r"[+-]?\d+", sum_[0].replace(" ", "")))
        assert ask(item, str(right))[1] == StepResult(
            "The answer is right.", 1.0, terminated=True, success=True
        )
        _, wrong = ask(item, str(right + 1))
        assert (wrong.terminated, wrong.success) == (True, False)
        assert wrong.reward < 1


def test_queens_are_placed_on_several_lines_by_the_packages_own_answer() -> None:
    spec = get_env("reasoning-gym:n_queens")
    item = seeded_item(spec.name, 5)
    (message,) = spec.solve(item)
    action = message.resolve("")
    assert "\n" not in action
    board = [line.split() for line in action.split("\\n")]
    queens = [(row, line.index("Q")) for row, line in enumerate(board)]
    for sign in (-1, 0, 1):
        assert len({column + sign * row for row, column in queens}) == 8
    assert ask(item, action)[1].success
    # The package gives half for the same board in another form: a reward, and no success.
    assert ask(item, str(board))[1] == StepResult("The answer is not right.", 0.5, terminated=True)


@pytest.mark.parametrize("name", ["leg_counting", "spiral_matrix", "caesar_cipher", "mini_sudoku"])
def test_the_expert_is_right(name: str) -> None:
    spec = get_env(f"reasoning-gym:{name}")
    for index in range(4):
        item = seeded_item(spec.name, index)
        assert ask(item, spec.solve(item)[0].resolve(""))[1].success


def test_no_question_is_asked_twice() -> None:
    spec = get_env("reasoning-gym:coin_flip?min_trials=2&max_trials=2")
    split = spec.split(0)
    questions = [ask(item, "")[0] for item in (*split.train, *split.test)]
    assert 1 < len(questions) == len(set(questions)) < 100  # of a data set with few questions
    assert split == spec.split(0)
    large = get_env("reasoning-gym:leg_counting").split(0)
    assert (len(large.train), len(large.test)) == (500, 100)
    item = large.test[0]
    assert item_from_json(item_to_json(item), location="") == item
    assert item.index == item.seed
    assert item.metadata["difficulty"]["num_animals"] == [3, 10]


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    spelling = "+".join(f"chr({ord(letter)})" for letter in f"open({str(mark)!r}, 'w')")
    item = seeded_item(f"reasoning-gym:{name}", 0)
    for answer in (
        f"open({str(mark)!r}, 'w')",
        f"exec({spelling})",
        f"[{spelling}]",
        "9**9**9**9",
        "[" * 5000,
    ):
        _, result = ask(item, answer)
        assert (result.terminated, result.success) == (True, False)
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("leg_countin", "did you mean 'reasoning-gym:leg_counting'"),
        ("simple_integration", "rejected: its scorer evaluates answers as Python"),
        ("game_of_life_halting", "rejected: its scorer accepts every answer"),
        ("leg_counting?min_animals=0", "min_animals must be positive"),
        ("leg_counting?animals=3", "unexpected keyword argument 'animals'"),
        ("leg_counting?seed=3", "option 'seed' cannot be set"),
        ("", "names no environment after the colon"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_env(f"reasoning-gym:{name}")


def test_questions_that_depend_on_the_hash_seed_need_it_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ConfigError, match="set PYTHONHASHSEED=0"):
        get_env("reasoning-gym:ransom_note")
