"""`searchqa`: the questions of Search-R1 and AgentGym on Wikipedia of 2018.

Items are numbered as in AgentGym: `searchqa_0` to `searchqa_51712` are its tests, `searchqa_51713` to
`searchqa_221327` its training items. BM25 finds passages in wiki-18, unless `WINGSPAN_RETRIEVER_SEARCHQA`
names a server (`docs/search.md`).
"""

import random
from collections.abc import Sequence
from functools import cache, partial

from envs.builtin.searchqa.data import SEARCHQA, WIKI_18
from envs.builtin.searchqa.env import INSTRUCTIONS, SearchQAEnv
from envs.builtin.searchqa.questions import TEST, TRAIN, Question, QuestionFile, ranges
from envs.errors import check_index
from envs.registry import EnvSpec, ExpertStep, Split
from envs.requirements.detection import CheckedRequirement
from envs.retrieval.selection import configured_location, retriever_for
from envs.retrieval.types import Retriever
from envs.types import Item

NAME = "searchqa"
TOP_K = 3
"""Passages that a search returns, as in the references."""
FIRST_TRAIN = sum(source.count for source in TEST)
END = FIRST_TRAIN + sum(source.count for source in TRAIN)
_RANGES = (*ranges(TEST, first=0), *ranges(TRAIN, first=FIRST_TRAIN))
TEST_ITEMS = 400
"""The number of items of all tests, in equal parts from each data set. AgentGym-RL does not publish the items
that it evaluates on."""


def _find_corpus_remedy() -> str | None:
    """The corpus is only needed if no other retriever is configured."""
    return None if configured_location(NAME) is not None else WIKI_18.find_remedy()


def _retriever() -> Retriever:
    return retriever_for(NAME, corpus=lambda: WIKI_18.path("wiki-18.jsonl"))


@cache
def read_test() -> QuestionFile:
    return QuestionFile(SEARCHQA.path("test.parquet"), sources=TEST)


@cache
def read_train() -> QuestionFile:
    return QuestionFile(SEARCHQA.path("train.parquet"), sources=TRAIN)


def ask(item: Item) -> Question:
    """The question of `item`; raises `ConfigError` if there is none."""
    with SPEC.explain_missing():
        return _question(item.index)


def _question(index: int) -> Question:
    check_index(NAME, index, count=END)
    return read_test()[index] if index < FIRST_TRAIN else read_train()[index - FIRST_TRAIN]


def make_item(index: int) -> Item:
    """The item `searchqa_<index>`."""
    with SPEC.explain_missing():
        return _item(index, _question(index))


def _item(index: int, question: Question) -> Item:
    source = next(source.name for source, numbers in _RANGES if index in numbers)
    fields = {"answer": list(question.answers)}
    return Item(item_id=f"{NAME}_{index}", env=NAME, metadata={"source": source}, fields=fields)


def held_out(seed: int) -> list[int]:
    """The numbers of the test items for a seed, ascending."""
    rng = random.Random(f"{NAME}/split/{seed}")
    samples = [rng.sample(numbers, len(numbers)) for _, numbers in ranges(TEST, first=0)]
    share, remainder = divmod(TEST_ITEMS, len(TEST))
    return sorted(
        index for order, indices in enumerate(samples) for index in indices[: share + (order < remainder)]
    )


def split(seed: int) -> Split:
    """All training items of AgentGym and 400 of its tests, in equal parts from the seven data sets."""
    with SPEC.explain_missing():
        train = [_item(FIRST_TRAIN + row, question) for row, question in enumerate(read_train())]
    return Split(train=train, test=[make_item(index) for index in held_out(seed)])


def expert(item: Item) -> Sequence[ExpertStep]:
    """Search for the question itself, then give the first accepted answer: its passages are not known."""
    question = ask(item)
    return [
        ExpertStep("I look the question up.", f"<search>{question.question}</search>"),
        ExpertStep("That is enough.", f"<answer>{question.answers[0]}</answer>"),
    ]


SPEC = EnvSpec(
    name=NAME,
    make=partial(SearchQAEnv, ask, _retriever, top_k=TOP_K),
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    action_hint="",
    packages=("tantivy", "pyarrow"),
    requirements=(SEARCHQA, CheckedRequirement("wiki-18", _find_corpus_remedy)),
    source="Search-R1's questions over Wikipedia of 2018: wingspan data pull searchqa and wiki-18",
)
