"""reasoning-gym: one question, one answer, scored by the data set that made the question.

Questions, answers and scores are the package's. Item `reasoning-gym:<data set>_<N>` is question `N` of the
data set with seed 0; options are its configuration (`reasoning-gym:leg_counting?max_animals=5`). An episode
is one turn: the score, from 0 to 1, is the reward, and a full score is success.

Some scorers pass the answer to Python's `eval`, or to sympy, which evaluates it as well: a policy could run
code here. These scorers only get answers of numbers, words and brackets, or of arithmetic. Three of them need
formulas with names, so their data sets are rejected. So is `game_of_life_halting`, whose scorer compares two
texts as booleans, and so accepts any.

Four data sets iterate over sets of words: their questions depend on Python's hash seed, and they are rejected
unless it is fixed (`PYTHONHASHSEED=0`). Some take long to make a question (`knight_swap` a second, `puzzle24`
and `zebra_puzzles` a tenth), which delays this process's other episodes; questions are cached.
"""

import json
import os
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, TypedDict

from envs.adapters.arguments import import_package, parse_name, unknown_target
from envs.adapters.seeds import EpisodeRandom, seeded_item
from envs.errors import ConfigError
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

FAMILY = "reasoning-gym"
EXAMPLE = "reasoning-gym:leg_counting"
SOURCE = "the reasoning-gym package: questions made from seeds; nothing to download"
PACKAGES = ("reasoning-gym",)
SLOW = ("futoshiki", "knight_swap", "puzzle24", "zebra_puzzles")
"""Data sets whose questions take tenths of a second or more: they would delay a process's other episodes."""
TRAIN_ITEMS, TEST_ITEMS = 500, 100
"""At most: duplicate questions are left out."""
MAX_ANSWER_LENGTH = 10_000

INSTRUCTIONS = """\
You are asked one question and have one try to answer it. Between the lines of an answer that has several, \
\\n may be written."""

_LITERAL = re.compile(r"[\w\s,'\"\[\]-]*")
_ARITHMETIC = re.compile(r"(?:[\d\s+\-/().]|(?<!\*)\*(?!\*))*")
_ALLOWED_ANSWERS = {
    "binary_matrix": _LITERAL,
    "countdown": _ARITHMETIC,
    "n_queens": _LITERAL,
    "puzzle24": _ARITHMETIC,
    "spiral_matrix": _LITERAL,
    "string_insertion": _LITERAL,
}
"""Data sets that evaluate answers → the pattern of answers that they get."""
_REJECTION_REASONS = {
    "game_of_life_halting": "its scorer accepts every answer that is not empty",
    "intermediate_integration": "its scorer evaluates answers as Python",
    "polynomial_multiplication": "its scorer evaluates answers as Python",
    "simple_integration": "its scorer evaluates answers as Python",
    "composite": "it is made of other data sets; name one of them",
}
_HASH_DEPENDENT = ("isomorphic_strings", "knight_swap", "ransom_note", "word_ladder")


class _Entry(TypedDict):
    """A question as its data set has it."""

    question: str
    answer: object
    metadata: Mapping[str, object]


class ReasoningGymEnv:
    """Asks one question per episode."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._entry: _Entry | None = None

    async def reset(self, item: Item) -> str:
        """Ask `item`'s question."""
        self._entry = _entry(self._name, item.index)
        return str(self._entry["question"]).strip()

    async def step(self, action: str) -> StepResult:
        """Take the answer; the episode ends with it."""
        if self._entry is None:
            raise RuntimeError("step before reset")
        entry, self._entry = self._entry, None
        score = _score(self._name, action, entry)
        verdict = "The answer is right." if score >= 1 else "The answer is not right."
        return StepResult(verdict, score, terminated=True, success=score >= 1)

    async def close(self) -> None:
        """Forget the question."""
        self._entry = None


def spec(argument: str) -> EnvSpec:
    """The environment `reasoning-gym:<argument>`."""
    name = f"{FAMILY}:{argument}"
    _dataset(name)
    return EnvSpec(
        name=name,
        make=partial(ReasoningGymEnv, name),
        split=partial(split, name),
        expert=partial(expert, name),
        instructions=INSTRUCTIONS,
        action_hint="your answer",
        packages=PACKAGES,
        source=SOURCE,
        isolation="process" if argument.partition("?")[0] in SLOW else "none",
        preload=("reasoning_gym",),
    )


def split(name: str, split_seed: int) -> Split:
    """Up to 500 training and 100 test questions, without duplicates."""
    indices = list(range(TRAIN_ITEMS + TEST_ITEMS))
    random.Random(f"{name}/split/{split_seed}").shuffle(indices)
    distinct: dict[str, Item] = {}
    for index in indices:
        entry = _entry(name, index)
        distinct.setdefault(entry["question"], seeded_item(name, index, metadata=_facts(entry)))
    items = list(distinct.values())
    num_tests = min(TEST_ITEMS, len(items) // 2)
    return Split(
        train=sorted(items[num_tests:], key=lambda item: item.index),
        test=sorted(items[:num_tests], key=lambda item: item.index),
    )


def expert(name: str, item: Item) -> Sequence[ExpertStep]:
    """The data set's answer, if its scorer gives it the full score; else nothing."""
    entry = _entry(name, item.index)
    if not isinstance(entry["answer"], str):
        return []
    action = entry["answer"].strip("\n").replace("\n", "\\n")
    return [ExpertStep(thought="", action=action)] if _score(name, action, entry) >= 1 else []


def _facts(entry: _Entry) -> dict[str, object]:
    difficulty = entry["metadata"].get("difficulty")
    return {} if difficulty is None else {"difficulty": json.loads(json.dumps(difficulty, default=str))}


@lru_cache(maxsize=2048)
def _entry(name: str, index: int) -> _Entry:
    with EpisodeRandom(index):
        entry: _Entry = _dataset(name)[index]
    return entry


def _score(name: str, action: str, entry: _Entry) -> float:
    dataset = _dataset(name)
    answer = action.strip().replace("\\n", "\n")
    pattern = _ALLOWED_ANSWERS.get(parse_name(name)[0])
    if len(answer) > MAX_ANSWER_LENGTH or (pattern and not pattern.fullmatch(answer)):
        answer = ""
    try:
        with EpisodeRandom(0):
            return float(dataset.score_answer(answer, entry))
    except Exception:  # scorers raise any exception for an answer that they cannot parse
        return 0.0


@cache
def _dataset(name: str) -> "ProceduralDataset":
    package = import_package("reasoning_gym", family=FAMILY)
    target, options = parse_name(name)
    if target in _REJECTION_REASONS:
        raise ConfigError(f"env {name!r} is rejected: {_REJECTION_REASONS[target]}")
    if target not in package.factory.DATASETS:
        raise unknown_target(
            target, family=FAMILY, targets=package.factory.DATASETS.keys() - _REJECTION_REASONS.keys()
        )
    if target in _HASH_DEPENDENT and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise ConfigError(f"env {name!r}: its questions depend on Python's hash seed; set PYTHONHASHSEED=0")
    if reserved_options := options.keys() & {"seed", "size"}:
        raise ConfigError(
            f"env {name!r}: option {min(reserved_options)!r} cannot be set; items are numbered by it"
        )
    try:
        with EpisodeRandom(0):
            return package.create_dataset(target, seed=0, size=TRAIN_ITEMS + TEST_ITEMS, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"env {name!r}: the data set rejects its options: {error}") from None
