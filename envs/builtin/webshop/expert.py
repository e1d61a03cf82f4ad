"""A buyer that knows the goal and acts on what it sees: it reads the results aloud, word for word and in
order, until a product fits. A thought ends with what is searched or clicked.

    Thought: below 50: waterproof wool boots red.
    Action: search[waterproof wool boots red]

    Thought: Next > [SEP] B033 [SEP] light wool boots by nordik [SEP] $35.0 [SEP] B200 [SEP] waterproof wool
    boots by tavora [SEP] $35.0 below 50: B200.
    Action: click[B200]

A product whose page lacks an option that is wanted is left again, and the reading begins with it again.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envs.builtin.webshop.catalogue import Product
from envs.builtin.webshop.goals import NO_LIMIT, Goal
from envs.builtin.webshop.pages import PER_PAGE, Button
from envs.builtin.webshop.reward import has_attribute, options_met
from envs.builtin.webshop.shop import Shop
from envs.builtin.webshop.views import SEPARATOR
from envs.registry import ExpertStep


@dataclass(frozen=True, slots=True)
class Visit:
    """A product that is opened, after those that were read and left."""

    product: Product
    read: tuple[str, ...]
    """What stands on the page of results up to its price."""
    page: int
    """Which of the results' pages, counted from 1."""
    choices: tuple[str, ...] | None
    """Values to click; None where it lacks one that is wanted."""


def solve(shop: Shop, goal: Goal) -> Sequence[ExpertStep]:
    """The buyer's turns, the last one a purchase worth 1; empty where it finds no such product."""
    for query in _queries(shop, goal):
        visits = list(_visits(shop, goal, query))
        if visits and visits[-1].choices is not None:
            return list(_turns(goal, query, visits))
    return ()


def _queries(shop: Shop, goal: Goal) -> Iterator[str]:
    """What to search for: the words of the goal, then the title that the instruction was written for."""
    values = [value for _, value in goal.options]
    for words in (_words(goal), [goal.title], [goal.title, *values]):
        yield " ".join(words).replace("[", " ").replace("]", " ").strip()


def _visits(shop: Shop, goal: Goal, query: str) -> Iterator[Visit]:
    """The products that are opened, the last one to be bought if it has all that is wanted."""
    read: tuple[str, ...] = ()
    for number, product in enumerate(shop.search(query.lower())):
        if number % PER_PAGE == 0:  # a page begins
            read = (Button.NEXT,)
        row = (product.asin, product.title, product.price_tag)
        read += row
        if not _fits(shop, goal, product):
            continue
        choices = _choices(shop, goal, product)
        yield Visit(product, read, number // PER_PAGE + 1, choices)
        if choices is not None:
            return
        read = row


def _fits(shop: Shop, goal: Goal, product: Product) -> bool:
    """As far as the results tell."""
    return (
        shop.score(product, goal, chosen=()).type_factor == 1
        and all(has_attribute(product, attribute) for attribute in goal.attributes)
        and shop.prices[product.asin] <= goal.price_upper
    )


def _choices(shop: Shop, goal: Goal, product: Product) -> tuple[str, ...] | None:
    """One value for each option that is wanted; None where one is not to be had."""
    chosen: dict[str, str] = {}
    for wanted in goal.options:
        option_name, value = wanted
        offers = [
            (candidate == value, name == option_name, name, candidate)
            for name, values in product.options.items()
            for candidate in values
            if name not in chosen and options_met([candidate], _only(goal, wanted))
        ]
        if not offers:
            return None
        _, _, name, best = max(offers, key=lambda offer: offer[:2])
        chosen[name] = best
    values = tuple(chosen.values())
    return values if shop.score(product, goal, chosen=values).reward == 1 else None


def _only(goal: Goal, wanted: tuple[str, str]) -> Goal:
    return replace(goal, options=(wanted,))


def _turns(goal: Goal, query: str, visits: Sequence[Visit]) -> Iterator[ExpertStep]:
    yield ExpertStep(f"{_limit(goal, 'wanted')}: {query}.", f"search[{query}]")
    page = 1
    for visit in visits:
        while page < visit.page:
            yield _click("none fits on this page", Button.NEXT)
            page += 1
        yield ExpertStep(f"{_limit(goal, SEPARATOR.join(visit.read))}.", f"click[{visit.product.asin}]")
        if visit.choices is None:
            yield _click("an option is missing", Button.PREVIOUS)
    last_page = visits[-1]
    assert last_page.choices is not None
    for number, value in enumerate(last_page.choices):
        yield _click(f"{len(last_page.choices) - number} to choose", value)
    yield _click("all is chosen", Button.BUY)


def _words(goal: Goal) -> list[str]:
    """What is asked for, in the order in which the instruction says it; last, what it does not say so."""
    words = [goal.query, *goal.attributes, *(value for _, value in goal.options)]
    matches = {word: re.search(rf"\b{re.escape(word)}\b", goal.instruction, re.IGNORECASE) for word in words}
    return sorted(
        words, key=lambda word: match.start() if (match := matches[word]) else len(goal.instruction)
    )


def _limit(goal: Goal, text: str) -> str:
    return f"{text} below {goal.price_upper:.0f}" if goal.price_upper < NO_LIMIT else text


def _click(why: str, button: str) -> ExpertStep:
    return ExpertStep(f"{why}: {button}.", f"click[{button}]")
