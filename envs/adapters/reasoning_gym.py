"""reasoning-gym: one question, one answer, scored by the data set that made the question.

Questions, answers and scores are the package's own. Item `reasoning-gym:<data set>_<N>` is question `N` of
the data set with seed 0; options are its configuration (`reasoning-gym:leg_counting?max_animals=5`). An
episode is one turn: the score, from 0 to 1, is the reward, and a full score is success.

Some scorers give the answer to Python's `eval` or to sympy, which evaluates, too: a policy could run code
here. To those no answer is given that is more than numbers, words and brackets, or than arithmetic; three
of them take formulas with names, so their data sets are refused.

Four data sets walk over sets of words: their questions depend on Python's hash seed, and they are refused
unless it is fixed (`PYTHONHASHSEED=0`). Some take long to make a question (`knight_swap` a second, `puzzle24`
and `zebra_puzzles` a tenth), which holds up this process's other episodes; questions made are kept.
"""

import json
import os
import random
import re
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from typing import Any

from envs.adapters.arguments import load, parse, unknown
from envs.adapters.seeds import OwnRandom, seeded_item
from envs.errors import ConfigError
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item, StepResult

FAMILY = "reasoning-gym"
EXAMPLE = "reasoning-gym:leg_counting"
SOURCE = "the reasoning-gym package: questions made from seeds; nothing to download"
PACKAGES = ("reasoning-gym",)
SLOW = ("futoshiki", "knight_swap", "puzzle24", "zebra_puzzles")
"""Data sets whose questions take tenths of a second and more: they would hold up others in one process."""
TRAIN_ITEMS, TEST_ITEMS = 500, 100
"""At most: questions that are asked twice are left out."""
MAX_ANSWER_LENGTH = 10_000

INSTRUCTIONS = """\
You are asked one question and have one try to answer it. Your answer stands on one line; where it must \
have several lines, write \\n between them."""

_LITERAL = re.compile(r"[\w\s,'\"\[\]-]*")
_ARITHMETIC = re.compile(r"(?:[\d\s+\-/().]|(?<!\*)\*(?!\*))*")
_EVALUATED = {
    "binary_matrix": _LITERAL,
    "countdown": _ARITHMETIC,
    "n_queens": _LITERAL,
    "puzzle24": _ARITHMETIC,
    "spiral_matrix": _LITERAL,
    "string_insertion": _LITERAL,
}
"""Data sets that evaluate an answer → what such an answer may be made of."""
_REFUSED = {
    "intermediate_integration": "its scorer evaluates answers as Python",
    "polynomial_multiplication": "its scorer evaluates answers as Python",
    "simple_integration": "its scorer evaluates answers as Python",
    "composite": "it is made of other data sets; name one of them",
}
_HASHED = ("isomorphic_strings", "knight_swap", "ransom_note", "word_ladder")


class ReasoningGymEnv:
    """One question."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._entry: dict[str, Any] | None = None

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
    """Up to 500 training and 100 test questions, no two of them alike."""
    indices = list(range(TRAIN_ITEMS + TEST_ITEMS))
    random.Random(f"{name}/split/{split_seed}").shuffle(indices)
    distinct: dict[str, Item] = {}
    for index in indices:
        entry = _entry(name, index)
        distinct.setdefault(entry["question"], seeded_item(name, index, metadata=_facts(entry)))
    items = list(distinct.values())
    tested = min(TEST_ITEMS, len(items) // 2)
    return Split(train=_sorted(items[tested:]), test=_sorted(items[:tested]))


def expert(name: str, item: Item) -> Sequence[ExpertStep]:
    """The data set's own answer, where its scorer gives that full marks; else nothing."""
    entry = _entry(name, item.index)
    if not isinstance(entry["answer"], str):
        return []
    said = entry["answer"].strip("\n").replace("\n", "\\n")
    return [ExpertStep(thought="", action=said)] if _score(name, said, entry) >= 1 else []


def _sorted(items: Sequence[Item]) -> list[Item]:
    return sorted(items, key=lambda item: item.index)


def _facts(entry: dict[str, Any]) -> dict[str, Any]:
    difficulty = entry["metadata"].get("difficulty")
    return {} if difficulty is None else {"difficulty": json.loads(json.dumps(difficulty, default=str))}


@lru_cache(maxsize=2048)
def _entry(name: str, index: int) -> dict[str, Any]:
    with OwnRandom(index):
        entry: dict[str, Any] = _dataset(name)[index]
    return entry


def _score(name: str, said: str, entry: dict[str, Any]) -> float:
    dataset = _dataset(name)
    answer = said.strip().replace("\\n", "\n")
    allowed = _EVALUATED.get(_target(name))
    if len(answer) > MAX_ANSWER_LENGTH or (allowed and not allowed.fullmatch(answer)):
        answer = ""
    try:
        with OwnRandom(0):
            return float(dataset.score_answer(answer, entry))
    except Exception:  # what scorers raise on an answer that they cannot read is as various as they are
        return 0.0


def _target(name: str) -> str:
    return name.removeprefix(f"{FAMILY}:").partition("?")[0]


@cache
def _dataset(name: str) -> Any:
    package = load("reasoning_gym", family=FAMILY, package="reasoning-gym")
    target, options = parse(name.removeprefix(f"{FAMILY}:"), family=FAMILY)
    if target in _REFUSED:
        raise ConfigError(f"env {name!r} is refused: {_REFUSED[target]}")
    if target not in package.factory.DATASETS:
        raise unknown(target, family=FAMILY, known=package.factory.DATASETS.keys() - _REFUSED.keys())
    if target in _HASHED and os.environ.get("PYTHONHASHSEED", "random") == "random":
        raise ConfigError(f"env {name!r}: its questions depend on Python's hash seed; set PYTHONHASHSEED=0")
    if fixed := options.keys() & {"seed", "size"}:
        raise ConfigError(f"env {name!r}: option {min(fixed)!r} cannot be set; items are numbered by it")
    try:
        with OwnRandom(0):
            return package.create_dataset(target, seed=0, size=TRAIN_ITEMS + TEST_ITEMS, **options)
    except (TypeError, ValueError, AssertionError) as error:
        raise ConfigError(f"env {name!r}: the data set refuses its options: {error}") from None
