"""A buyer that knows the goal and acts on what it sees: it reads the results in order, says why not, and
takes the first product that fits.

    Thought: boots waterproof wool red, below 50.
    Action: search[boots waterproof wool red]

    Thought: B417 not wool, B033 $75.0 above 50, B200 $35.0 below 50.
    Action: click[B200]

A product whose page lacks an option that is wanted is left again, and the reading goes on after it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envs.registry import ExpertStep
from envs.webshop.catalogue import Product
from envs.webshop.goals import NO_LIMIT, Goal
from envs.webshop.pages import PER_PAGE, Button
from envs.webshop.reward import has_attribute, options_met
from envs.webshop.shop import Shop


@dataclass(frozen=True, slots=True)
class Visit:
    """A product that is opened, after those that were read and left."""

    product: Product
    thought: str
    page: int
    """Of the results, counted from 1."""
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
    said: list[str] = []
    at = 1
    for number, product in enumerate(shop.search(query.lower())):
        page = number // PER_PAGE + 1
        if page != at:
            at, said = page, []
        fault = _fault(shop, goal, product)
        if fault:
            said.append(f"{product.asin} {fault}")
            continue
        choices = _choices(shop, goal, product)
        said.append(f"{product.asin} {_price(product, goal, 'below')}")
        yield Visit(product, ", ".join(said) + ".", page, choices)
        if choices is not None:
            return
        said = []


def _fault(shop: Shop, goal: Goal, product: Product) -> str:
    """What is wrong with a product of the results; empty where nothing is."""
    lacks = next((one for one in goal.attributes if not has_attribute(product, one)), None)
    if shop.score(product, goal, chosen=()).type_factor < 1:
        return f"not {goal.query}"
    if lacks is not None:
        return f"not {lacks}"
    if shop.prices[product.asin] > goal.price_upper:
        return _price(product, goal, "above")
    return ""


def _price(product: Product, goal: Goal, compared: str) -> str:
    return f"{product.price_tag} {compared} {goal.price_upper:.0f}" if goal.price_upper < NO_LIMIT else "fits"


def _choices(shop: Shop, goal: Goal, product: Product) -> tuple[str, ...] | None:
    """One value for each option that is wanted; None where one is not to be had."""
    chosen: dict[str, str] = {}
    for wanted in goal.options:
        named, value = wanted
        offered = [
            (one == value, name == named, name, one)
            for name, values in product.options.items()
            for one in values
            if name not in chosen and options_met([one], _only(goal, wanted))
        ]
        if not offered:
            return None
        _, _, name, one = max(offered, key=lambda offer: offer[:2])
        chosen[name] = one
    values = tuple(chosen.values())
    return values if shop.score(product, goal, chosen=values).reward == 1 else None


def _only(goal: Goal, wanted: tuple[str, str]) -> Goal:
    return replace(goal, options=(wanted,))


def _turns(goal: Goal, query: str, visits: Sequence[Visit]) -> Iterator[ExpertStep]:
    yield ExpertStep(_wanted(goal), f"search[{query}]")
    page = 1
    for visit in visits:
        while page < visit.page:
            yield ExpertStep("none fits on this page.", _click(Button.NEXT))
            page += 1
        yield ExpertStep(visit.thought, _click(visit.product.asin))
        if visit.choices is None:
            yield ExpertStep("an option is missing.", _click(Button.PREVIOUS))
    bought = visits[-1]
    assert bought.choices is not None
    for number, value in enumerate(bought.choices):
        left = ", ".join(bought.choices[number:])
        yield ExpertStep(f"{left} to choose.", _click(value))
    yield ExpertStep("all is chosen.", _click(Button.BUY))


def _words(goal: Goal) -> list[str]:
    return [goal.query, *goal.attributes, *(value for _, value in goal.options)]


def _wanted(goal: Goal) -> str:
    limit = f", below {goal.price_upper:.0f}" if goal.price_upper < NO_LIMIT else ""
    return f"{' '.join(_words(goal))}{limit}."


def _click(what: str) -> str:
    return f"click[{what}]"
