"""`searchqa-mini`: SearchQA on a small corpus of our own, for machines without wiki-18.

Environment and scorer are `searchqa`'s; questions and corpus are made here
(`envs/builtin/searchqa/making.py`). Item
`searchqa-mini_N` is line N of the questions.
"""

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from envs.builtin.searchqa.data import SEARCHQA_MINI
from envs.builtin.searchqa.env import INSTRUCTIONS, SearchQAEnv
from envs.builtin.searchqa.making import CORPUS, QUESTIONS, TOP_K
from envs.builtin.searchqa.mini.questions import GROUPS, Hop, MiniQuestion
from envs.builtin.searchqa.questions import Question
from envs.errors import ConfigError, unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.retrieval.selection import retriever_for
from envs.retrieval.types import Retriever
from envs.types import Item

NAME = "searchqa-mini"
TEST_GROUPS = 2


def read_mini(path: Path) -> list[MiniQuestion]:
    """The questions of a file; raises `ConfigError` for a line that is none, with its number."""
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            values: dict[str, Any] = json.loads(line)
            hops = tuple(Hop(**hop) for hop in values.pop("hops"))
            found.append(MiniQuestion(**values, hops=hops))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number}: expected a question with answer, kind, group, hops and thought "
                f"({error}); run: wingspan data make {NAME}"
            ) from None
    return found


@cache
def _questions() -> Sequence[MiniQuestion]:
    return read_mini(SEARCHQA_MINI.path(QUESTIONS))


def _retriever() -> Retriever:
    return retriever_for(NAME, corpus=lambda: SEARCHQA_MINI.path(CORPUS))


def _of(index: int) -> MiniQuestion:
    if not 0 <= index < len(_questions()):
        raise unknown_item(NAME, index, count=len(_questions()))
    return _questions()[index]


def ask(item: Item) -> Question:
    """What `item` asks; raises `ConfigError` for a number that there is not."""
    found = _of(item.index)
    return Question(found.question, [found.answer])


def make_env() -> SearchQAEnv:
    """A new instance."""
    return SearchQAEnv(ask, _retriever, top_k=TOP_K)


def make_item(index: int) -> Item:
    """The item `searchqa-mini_<index>`."""
    with SPEC.explain_missing():
        found = _of(index)
    return Item(
        item_id=f"{NAME}_{index}",
        env=NAME,
        metadata={"kind": found.kind, "hops": len(found.hops)},
        fields={"answer": found.answer},
    )


def split(seed: int) -> Split:
    """Two of the ten groups are for tests: no country or airport is asked for in both splits."""
    with SPEC.explain_missing():
        questions = _questions()
    held_out = random.Random(f"{NAME}/split/{seed}").sample(range(GROUPS), TEST_GROUPS)
    train = [index for index, one in enumerate(questions) if one.group not in held_out]
    test = [index for index, one in enumerate(questions) if one.group in held_out]
    return Split(train=[make_item(i) for i in train], test=[make_item(i) for i in test])


def expert(item: Item) -> Sequence[ExpertStep]:
    """The searches that find the evidence, then the answer."""
    with SPEC.explain_missing():
        found = _of(item.index)
    searches = [ExpertStep(hop.thought, f"<search>{hop.query}</search>") for hop in found.hops]
    return [*searches, ExpertStep(found.thought, f"<answer>{found.answer}</answer>")]


SPEC = EnvSpec(
    name=NAME,
    make=make_env,
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    action_hint="",
    packages=("tantivy", "airportsdata", "countryinfo"),
    requirements=(SEARCHQA_MINI,),
    source="made here of the packages airportsdata and countryinfo (MIT); nothing to download",
)
