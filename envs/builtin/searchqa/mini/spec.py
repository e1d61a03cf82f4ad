"""`searchqa-mini`: SearchQA on a small synthetic corpus, for machines without wiki-18.

Environment and scoring are `searchqa`'s; questions and corpus are made here
(`envs/builtin/searchqa/mini/questions.py`). Item `searchqa-mini_N` is line N of the questions.
"""

import json
import random
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from envs.builtin.searchqa.data import SEARCHQA_MINI
from envs.builtin.searchqa.env import INSTRUCTIONS, SearchQAEnv
from envs.builtin.searchqa.mini.questions import CORPUS, GROUPS, QUESTIONS, TOP_K, Hop, MiniQuestion
from envs.builtin.searchqa.questions import Question
from envs.errors import ConfigError, check_index
from envs.registry import EnvSpec, ExpertStep, Split
from envs.retrieval.selection import retriever_for
from envs.retrieval.types import Retriever
from envs.types import Item

NAME = "searchqa-mini"
TEST_GROUPS = 2


def read_mini(path: Path) -> list[MiniQuestion]:
    """The questions of a file; raises `ConfigError` with the number of a malformed line."""
    questions = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            values: dict[str, Any] = json.loads(line)
            hops = tuple(Hop(**hop) for hop in values.pop("hops"))
            questions.append(MiniQuestion(**values, hops=hops))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: expected a question with answer, kind, group, hops and thought "
                f"({error}); run: wingspan data make {NAME}"
            ) from None
    return questions


@cache
def _questions() -> Sequence[MiniQuestion]:
    return read_mini(SEARCHQA_MINI.path(QUESTIONS))


def _retriever() -> Retriever:
    return retriever_for(NAME, corpus=lambda: SEARCHQA_MINI.path(CORPUS))


def _find_question(index: int) -> MiniQuestion:
    check_index(NAME, index, count=len(_questions()))
    return _questions()[index]


def ask(item: Item) -> Question:
    """The question of `item`; raises `ConfigError` if there is none."""
    question = _find_question(item.index)
    return Question(question.question, [question.answer])


def make_item(index: int) -> Item:
    """The item `searchqa-mini_<index>`."""
    with SPEC.explain_missing():
        question = _find_question(index)
    return Item(
        item_id=f"{NAME}_{index}",
        env=NAME,
        metadata={"kind": question.kind, "hops": len(question.hops)},
        fields={"answer": question.answer},
    )


def split(seed: int) -> Split:
    """Two of the ten groups are for tests: no country or airport occurs in both splits."""
    with SPEC.explain_missing():
        questions = _questions()
    held_out = random.Random(f"{NAME}/split/{seed}").sample(range(GROUPS), TEST_GROUPS)
    train: list[Item] = []
    test: list[Item] = []
    for index, question in enumerate(questions):
        (test if question.group in held_out else train).append(make_item(index))
    return Split(train=train, test=test)


def expert(item: Item) -> Sequence[ExpertStep]:
    """The searches that find the evidence, then the answer."""
    with SPEC.explain_missing():
        question = _find_question(item.index)
    searches = [ExpertStep(hop.thought, f"<search>{hop.query}</search>") for hop in question.hops]
    return [*searches, ExpertStep(question.thought, f"<answer>{question.answer}</answer>")]


SPEC = EnvSpec(
    name=NAME,
    make=partial(SearchQAEnv, ask, _retriever, top_k=TOP_K),
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    action_hint="",
    packages=("tantivy", "airportsdata", "countryinfo"),
    requirements=(SEARCHQA_MINI,),
    source="made here of the packages airportsdata and countryinfo (MIT); nothing to download",
)
