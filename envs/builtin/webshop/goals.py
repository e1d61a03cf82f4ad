"""What is to be bought: instructions with what they ask for, numbered as upstream and AgentGym number them.

Human goals are the crowd's instructions, synthetic ones are put together from attributes, one for each
combination of a product's options. Limits of price are drawn: upstream draws those of human goals, and
prices of products that have a range, from a generator that it does not seed; here both come from generators
of our own, so that a number means the same problem everywhere. AgentGym's synthetic goals are seeded as ours.
"""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, RootModel

from envs.builtin.webshop.catalogue import Product, Synthetic, validate
from envs.builtin.webshop.reading import members

SEED = 233
"""Upstream's, for the order of the goals."""
LIMITS = [10.0 * tens for tens in range(1, 100)]
"""Dollars, from which a limit of price is drawn: two of the next four above the price, the larger one."""
NEXT_LIMITS = 4
NO_LIMIT = 1_000_000.0


class GoalKind(StrEnum):
    """Where instructions come from."""

    HUMAN = "human"
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One instruction, and what the product bought is held against."""

    asin: str
    """Of the product that the instruction was written for; others may do as well."""
    title: str
    category: str
    query: str
    product_category: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value); a human goal's have no name."""
    price_upper: float


class _Human(BaseModel):
    instruction: str
    instruction_attributes: list[str]
    instruction_options: list[str] | dict[str, str]


class _Humans(RootModel[list[_Human]]):
    """An entry of `items_human_ins.json`: what people asked for of one product."""


def draw_prices(products: Mapping[str, Product]) -> dict[str, float]:
    """What each product costs, in dollars; drawn where it has a range."""
    rng = random.Random(SEED)
    return {
        asin: one.prices[0] if len(one.prices) == 1 else rng.uniform(*one.prices)
        for asin, one in products.items()
    }


def human_goals(
    path: Path, products: Mapping[str, Product], prices: Mapping[str, float], *, remedy: str
) -> list[Goal]:
    """The goals of `items_human_ins.json` for these products, in upstream's order."""
    told = {
        entry.key: validate(_Humans, entry, entry.value, remedy=remedy).root
        for entry in members(path, remedy=remedy)
        if entry.key in products
    }
    rng = random.Random(SEED)
    goals = []
    for asin, product in products.items():
        for human in told.get(asin, ()):
            if not human.instruction_attributes:
                continue
            limit, words = _limit(prices[asin], rng)
            wanted = human.instruction_options
            options = wanted.items() if isinstance(wanted, dict) else (("", value) for value in wanted)
            goals.append(
                _goal(
                    product,
                    instruction=human.instruction.strip(".") + words,
                    attributes=tuple(human.instruction_attributes),
                    options=tuple(options),
                    price_upper=limit,
                )
            )
    return _shuffle(goals)


def synthetic_goals(
    told: Mapping[str, Synthetic], products: Mapping[str, Product], prices: Mapping[str, float]
) -> list[Goal]:
    """One goal for each combination of options of each product with an instruction, in AgentGym's order."""
    rng = random.Random(SEED)
    goals = []
    for asin, product in products.items():
        if asin not in told:
            continue
        limit, words = _limit(prices[asin], rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            option_text = ", and ".join(f"{name}: {value}" for name, value in options)
            goals.append(
                _goal(
                    product,
                    instruction=told[asin].instruction
                    + (f" with {option_text}" if option_text else "")
                    + words,
                    attributes=told[asin].attributes,
                    options=options,
                    price_upper=limit,
                )
            )
    return _shuffle(goals)


def _goal(
    product: Product,
    *,
    instruction: str,
    attributes: tuple[str, ...],
    options: tuple[tuple[str, str], ...],
    price_upper: float,
) -> Goal:
    return Goal(
        asin=product.asin,
        title=product.title,
        category=product.category,
        query=product.query,
        product_category=product.product_category,
        instruction=instruction,
        attributes=attributes,
        options=options,
        price_upper=price_upper,
    )


def _limit(price: float, rng: random.Random) -> tuple[float, str]:
    """(limit in dollars, how the instruction says it)."""
    above = [limit for limit in LIMITS if limit > price][:NEXT_LIMITS]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _shuffle(goals: Sequence[Goal]) -> list[Goal]:
    """In upstream's order: goal `N` is the one of session `N`."""
    shuffled = list(goals)
    random.Random(SEED).shuffle(shuffled)
    return shuffled
