"""Makes `searchqa-mini`: a corpus and questions, each with the searches that find its answer.

Every answer follows from two or three passages alone: an airport's passage names its country, the country's
passage has the rest. A question is kept only if BM25 finds the evidence of each of its searches among the
first two passages. Questions are in groups that share no country and no airport: whole groups are held out
for tests (`envs/builtin/searchqa/mini/spec.py`).
"""

import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envs.builtin.searchqa.mini.world import Airport, Country, World, load_world
from envs.retrieval.bm25 import Bm25

CORPUS, QUESTIONS = "corpus.jsonl", "questions.jsonl"
TOP_K = 2
"""Passages that a search returns: they make up most of an episode's length."""

GROUPS = 10
FACT_QUESTIONS, CAPITAL_QUESTIONS = 6, 2
"""At most, per country: for a fact of the country, and for the airport of its capital."""
COMPARISONS = 16
"""At most, per group."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One search of a solution."""

    thought: str
    query: str
    evidence: str
    """Id of the passage that the search must find."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniQuestion:
    """A question with its one answer and the searches that lead to it."""

    question: str
    answer: str
    kind: str
    """A relation of a country, `capital airport`, or `higher`."""
    group: int
    hops: Sequence[Hop]
    thought: str
    """The expert's thought before the answer."""


def make_mini(folder: Path) -> None:
    """Write `corpus.jsonl` and `questions.jsonl` into `folder`; takes some seconds."""
    world = load_world()
    corpus = folder / CORPUS
    corpus.write_text("".join(_to_line(id=name, contents=contents) for name, contents in world.passages()))
    with tempfile.TemporaryDirectory() as index_folder:  # an index is not data: its files have random names
        index = Bm25(Path(shutil.copy(corpus, index_folder)))

        def is_found(query: str, passage_id: str) -> bool:
            passages = index.search_sync([query], top_k=TOP_K)[0]
            return passage_id in [passage.passage_id for passage in passages]

        questions = make_questions(world, is_found=is_found)
    (folder / QUESTIONS).write_text("".join(_to_line(**asdict(question)) for question in questions))


def _to_line(**values: object) -> str:
    return json.dumps(values) + "\n"


def make_questions(world: World, *, is_found: Callable[[str, str], bool]) -> list[MiniQuestion]:
    """All questions in random order; `is_found(query, id)` tells whether a search finds a passage."""
    rng = random.Random("searchqa-mini/questions")
    by_country = {
        country.code: [*_facts(country, world, rng=rng), *_capital_airports(country, world, rng=rng)]
        for country in world.countries
    }

    def is_answerable(question: MiniQuestion) -> bool:
        return all(is_found(hop.query, hop.evidence) for hop in question.hops)

    by_country = {code: list(filter(is_answerable, drafts)) for code, drafts in by_country.items()}
    group_of = _assign_groups({code: len(drafts) for code, drafts in by_country.items() if drafts})
    questions = [
        replace(question, group=group_of[code]) for code, drafts in by_country.items() for question in drafts
    ]
    for group in range(GROUPS):
        codes = [code for code in group_of if group_of[code] == group]
        airports = [airport for code in codes for airport in world.airports_of[code]]
        comparisons = _comparisons(airports, rng=rng)
        questions += [replace(question, group=group) for question in comparisons if is_answerable(question)]
    rng.shuffle(questions)
    return questions


def _assign_groups(counts: dict[str, int]) -> dict[str, int]:
    """Country → group, with about the same number of questions in each group."""
    sums = [0] * GROUPS
    groups = {}
    for code in sorted(counts, key=lambda code: (-counts[code], code)):
        groups[code] = sums.index(min(sums))
        sums[groups[code]] += counts[code]
    return groups


def _facts(country: Country, world: World, *, rng: random.Random) -> Iterator[MiniQuestion]:
    relations = list(country.facts)
    airports = world.airports_of[country.code]
    for airport in rng.sample(airports, min(FACT_QUESTIONS, len(airports))) if relations else ():
        relation = rng.choice(relations)
        by_name = rng.random() < 0.5 and world.names[airport.name] == 1
        subject = airport.name if by_name else f"airport {airport.code}"
        value = country.facts[relation]
        yield MiniQuestion(
            question=f"What is the {relation} of the country that has {subject}?",
            answer=value,
            kind=relation,
            group=-1,
            hops=(_airport_hop(airport, subject), _country_hop(airport)),
            thought=f"The {relation} of {country.name} is {value}.",
        )


def _capital_airports(country: Country, world: World, *, rng: random.Random) -> Iterator[MiniQuestion]:
    airports = world.airports_of[country.code]
    capital = country.facts.get("capital")
    capital_airports = [airport for airport in airports if airport.city == capital]
    starts = [airport for airport in airports if airport.city != capital]
    if capital is None or len(capital_airports) != 1:
        return
    answer = capital_airports[0].code
    for airport in rng.sample(starts, min(CAPITAL_QUESTIONS, len(starts))):
        yield MiniQuestion(
            question=f"Which airport has the capital of the country that has airport {airport.code}?",
            answer=answer,
            kind="capital airport",
            group=-1,
            hops=(
                _airport_hop(airport, f"airport {airport.code}"),
                _country_hop(airport),
                Hop(
                    f"The capital of {country.name} is {capital}.",
                    f"airport {capital} {country.name}",
                    f"airport-{answer}",
                ),
            ),
            thought=f"The airport of {capital} is {answer}.",
        )


def _comparisons(airports: Sequence[Airport], *, rng: random.Random) -> Iterator[MiniQuestion]:
    sample = rng.sample(airports, 2 * min(COMPARISONS, len(airports) // 2))
    for left, right in zip(sample[::2], sample[1::2], strict=True):
        if left.feet == right.feet:
            continue
        higher = left if left.feet > right.feet else right
        yield MiniQuestion(
            question=f"Which airport is higher, {left.code} or {right.code}?",
            answer=higher.code,
            kind="higher",
            group=-1,
            hops=(
                Hop(f"How high is {left.code}?", f"airport {left.code}", f"airport-{left.code}"),
                Hop(
                    f"{left.code} is {left.feet} feet high.", f"airport {right.code}", f"airport-{right.code}"
                ),
            ),
            thought=f"{left.code} is {left.feet} feet high, {right.code} {right.feet}.",
        )


def _airport_hop(airport: Airport, subject: str) -> Hop:
    return Hop(f"Where is {subject}?", subject, f"airport-{airport.code}")


def _country_hop(airport: Airport) -> Hop:
    name = airport.country.name
    return Hop(f"{airport.code} is in {name}.", f"country {name}", f"country-{airport.country.code}")
