"""The questions of `searchqa-mini`, each with the searches that find what it asks for.

Every answer takes two passages or three, and follows from them alone: an airport's passage names its country,
the country's passage the rest. A question is kept only if each of its searches, by BM25, shows the passage
that it is for among the first two. Questions are in groups, and no two groups share a country, nor an
airport: whole groups are held out for tests (`envs/builtin/searchqa/mini/spec.py`).
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from envs.builtin.searchqa.mini.world import Airport, Country, World

GROUPS = 10
AIRPORTS = 6
"""Most of a country that questions for a fact of it begin with."""
CAPITAL_AIRPORTS = 2
"""Most of a country that questions for its capital's airport begin with."""
COMPARISONS = 16
"""Of a group."""


@dataclass(frozen=True, slots=True)
class Hop:
    """One search of a solution."""

    thought: str
    query: str
    evidence: str
    """Id of the passage that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniQuestion:
    """A question with its one answer and the way to it."""

    question: str
    answer: str
    kind: str
    """What is asked for: a relation of a country, `capital airport`, or `higher`."""
    group: int
    hops: Sequence[Hop]
    thought: str
    """Before the answer."""


def questions(world: World, *, shows: Callable[[str, str], bool]) -> list[MiniQuestion]:
    """All of them, in an order that tells nothing; `shows(query, id)` says whether a search finds a
    passage."""
    rng = random.Random("searchqa-mini/questions")
    by_country = {
        country.code: [*_facts(country, world, rng=rng), *_capital_airports(country, world, rng=rng)]
        for country in world.countries
    }
    by_country = {code: [one for one in own if _found(one, shows)] for code, own in by_country.items()}
    group_of = _dealt({code: len(own) for code, own in by_country.items() if own})
    found = [replace(one, group=group_of[code]) for code, own in by_country.items() for one in own]
    for group in range(GROUPS):
        codes = [code for code, its in group_of.items() if its == group]
        compared = _comparisons([one for code in codes for one in world.airports_of[code]], rng=rng)
        found += [replace(one, group=group) for one in compared if _found(one, shows)]
    rng.shuffle(found)
    return found


def _found(question: MiniQuestion, shows: Callable[[str, str], bool]) -> bool:
    return all(shows(hop.query, hop.evidence) for hop in question.hops)


def _dealt(counts: dict[str, int]) -> dict[str, int]:
    """Country → group, the groups of about as many questions each."""
    sums = [0] * GROUPS
    groups = {}
    for code in sorted(counts, key=lambda code: (-counts[code], code)):
        groups[code] = sums.index(min(sums))
        sums[groups[code]] += counts[code]
    return groups


def _facts(country: Country, world: World, *, rng: random.Random) -> Iterator[MiniQuestion]:
    relations = list(country.facts)
    airports = world.airports_of[country.code]
    for airport in rng.sample(airports, min(AIRPORTS, len(airports))) if relations else ():
        relation = rng.choice(relations)
        called = rng.random() < 0.5 and world.names[airport.name] == 1
        subject = airport.name if called else f"airport {airport.code}"
        value = country.facts[relation]
        yield MiniQuestion(
            question=f"What is the {relation} of the country that has {subject}?",
            answer=value,
            kind=relation,
            group=-1,
            hops=(_place(airport, subject), _country(airport)),
            thought=f"The {relation} of {country.name} is {value}.",
        )


def _capital_airports(country: Country, world: World, *, rng: random.Random) -> Iterator[MiniQuestion]:
    airports = world.airports_of[country.code]
    capital = country.facts.get("capital")
    there = [one for one in airports if one.city == capital]
    others = [one for one in airports if one.city != capital]
    if capital is None or len(there) != 1:
        return
    for airport in rng.sample(others, min(CAPITAL_AIRPORTS, len(others))):
        yield MiniQuestion(
            question=f"Which airport has the capital of the country that has airport {airport.code}?",
            answer=there[0].code,
            kind="capital airport",
            group=-1,
            hops=(
                _place(airport, f"airport {airport.code}"),
                _country(airport),
                Hop(
                    f"The capital of {country.name} is {capital}.",
                    f"airport {capital} {country.name}",
                    f"airport-{there[0].code}",
                ),
            ),
            thought=f"The airport of {capital} is {there[0].code}.",
        )


def _comparisons(airports: Sequence[Airport], *, rng: random.Random) -> Iterator[MiniQuestion]:
    drawn = rng.sample(airports, 2 * min(COMPARISONS, len(airports) // 2))
    for one, other in zip(drawn[::2], drawn[1::2], strict=True):
        if one.feet == other.feet:
            continue
        higher = one if one.feet > other.feet else other
        yield MiniQuestion(
            question=f"Which airport is higher, {one.code} or {other.code}?",
            answer=higher.code,
            kind="higher",
            group=-1,
            hops=(
                Hop(f"How high is {one.code}?", f"airport {one.code}", f"airport-{one.code}"),
                Hop(f"{one.code} is {one.feet} feet high.", f"airport {other.code}", f"airport-{other.code}"),
            ),
            thought=f"{one.code} is {one.feet} feet high, {other.code} {other.feet}.",
        )


def _place(airport: Airport, subject: str) -> Hop:
    return Hop(f"Where is {subject}?", subject, f"airport-{airport.code}")


def _country(airport: Airport) -> Hop:
    name = airport.country.name
    return Hop(f"{airport.code} is in {name}.", f"country {name}", f"country-{airport.country.code}")
