"""A scripted buyer that knows the goal and acts on the pages: it repeats the results, word for word and in
order, until a product fits. A thought ends with the text that is searched or clicked.

    Thought: below 50: waterproof wool boots red.
    Action: search[waterproof wool boots red]

    Thought: Next > [SEP] B033 [SEP] light wool boots by nordik [SEP] $35.0 [SEP] B200 [SEP] waterproof wool
    boots by tavora [SEP] $35.0 below 50: B200.
    Action: click[B200]

If the page of a product lacks an option of the goal, the buyer goes back and reads on, beginning with that
product.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envs.builtin.webshop.catalogue import Product
from envs.builtin.webshop.goals import NO_LIMIT, Goal
from envs.builtin.webshop.pages import PER_PAGE, Button
from envs.builtin.webshop.reward import count_options, has_attribute
from envs.builtin.webshop.shop import Shop
from envs.builtin.webshop.views import SEPARATOR
from envs.registry import ExpertStep


@dataclass(frozen=True, slots=True)
class Visit:
    """A product that the buyer opens, after reading the results up to it."""

    product: Product
    texts: tuple[str, ...]
    """Texts of the page of results, up to the product's price."""
    page: int
    """The page of the results; counted from 1."""
    choices: tuple[str, ...] | None
    """Values to click; None if the product lacks one."""


def solve(shop: Shop, goal: Goal) -> Sequence[ExpertStep]:
    """The buyer's turns, the last one a purchase worth 1; empty if it finds no such product."""
    for query in _queries(goal):
        visits = list(_visits(shop, goal, query))
        if visits and visits[-1].choices is not None:
            return list(_turns(goal, query, visits))
    return ()


def _queries(goal: Goal) -> Iterator[str]:
    """Queries to try: the words of the goal, then the title of the product that the goal was written for."""
    values = [value for _, value in goal.options]
    for words in (_words(goal), [goal.product.title], [goal.product.title, *values]):
        yield " ".join(words).replace("[", " ").replace("]", " ").strip()


def _visits(shop: Shop, goal: Goal, query: str) -> Iterator[Visit]:
    """The products to open; the last one is bought if it has all that the goal asks for."""
    texts: tuple[str, ...] = ()
    for number, product in enumerate(shop.search(query.lower())):
        if number % PER_PAGE == 0:  # a page begins
            texts = (Button.NEXT,)
        row = (product.asin, product.title, product.price_tag)
        texts += row
        if not _fits(shop, goal, product):
            continue
        choices = _choices(shop, goal, product)
        yield Visit(product, texts, number // PER_PAGE + 1, choices)
        if choices is not None:
            return
        texts = row


def _fits(shop: Shop, goal: Goal, product: Product) -> bool:
    """Whether the product fits, as far as the page of results shows."""
    return (
        shop.score(product, goal, choices=()).type_factor == 1
        and all(has_attribute(product, attribute) for attribute in goal.attributes)
        and shop.prices[product.asin] <= goal.price_upper
    )


def _choices(shop: Shop, goal: Goal, product: Product) -> tuple[str, ...] | None:
    """One value for each of the goal's options; None if the product lacks one."""
    choices: dict[str, str] = {}
    for option in goal.options:
        option_name, value = option
        offers = [
            (candidate == value, name == option_name, name, candidate)
            for name, values in product.options.items()
            for candidate in values
            if name not in choices and count_options([candidate], replace(goal, options=(option,)))
        ]
        if not offers:
            return None
        _, _, name, best = max(offers, key=lambda offer: offer[:2])
        choices[name] = best
    values = tuple(choices.values())
    return values if shop.score(product, goal, choices=values).reward == 1 else None


def _turns(goal: Goal, query: str, visits: Sequence[Visit]) -> Iterator[ExpertStep]:
    yield ExpertStep(f"{_limit(goal, 'wanted')}: {query}.", f"search[{query}]")
    page = 1
    for visit in visits:
        while page < visit.page:
            yield _click("none fits on this page", Button.NEXT)
            page += 1
        yield ExpertStep(f"{_limit(goal, SEPARATOR.join(visit.texts))}.", f"click[{visit.product.asin}]")
        if visit.choices is None:
            yield _click("an option is missing", Button.PREVIOUS)
    choices = visits[-1].choices
    assert choices is not None
    for number, value in enumerate(choices):
        yield _click(f"{len(choices) - number} to choose", value)
    yield _click("all is chosen", Button.BUY)


def _words(goal: Goal) -> list[str]:
    """The words of the goal, in the order of the instruction; last, those that it does not contain."""
    words = [goal.product.query, *goal.attributes, *(value for _, value in goal.options)]
    matches = {word: re.search(rf"\b{re.escape(word)}\b", goal.instruction, re.IGNORECASE) for word in words}
    return sorted(
        words, key=lambda word: match.start() if (match := matches[word]) else len(goal.instruction)
    )


def _limit(goal: Goal, text: str) -> str:
    return f"{text} below {goal.price_upper:.0f}" if goal.price_upper < NO_LIMIT else text


def _click(reason: str, button: str) -> ExpertStep:
    return ExpertStep(f"{reason}: {button}.", f"click[{button}]")
