"""Goals: instructions and what they ask for, numbered as in upstream and AgentGym.

Human goals are instructions by crowd workers; synthetic goals are composed from attributes, one for each
combination of a product's options. Price limits are sampled. Upstream samples those of human goals, and the
prices of products that have a range, from an unseeded generator; here both generators are seeded, so that a
number means the same problem everywhere. AgentGym seeds its synthetic goals as is done here.
"""

import itertools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, RootModel

from envs.builtin.webshop.catalogue import Product, Synthetic, validate
from envs.builtin.webshop.reading import read_entries

SEED = 233
"""Upstream's seed for the order of the goals."""
LIMITS = [10.0 * tens for tens in range(1, 100)]
"""Possible price limits in dollars. The limit is the larger of two sampled from the next four above the
price."""
NEXT_LIMITS = 4
NO_LIMIT = 1_000_000.0


class GoalKind(StrEnum):
    """Where instructions come from."""

    HUMAN = "human"
    SYNTHETIC = "synthetic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One instruction, and the criteria by which a purchase is scored."""

    product: Product
    """The product that the instruction was written for; others may be worth as much."""
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    """(name, value); the options of human goals have no name."""
    price_upper: float
    """Dollars."""


class _Human(BaseModel):
    instruction: str
    instruction_attributes: list[str]
    instruction_options: list[str] | dict[str, str]


class _Humans(RootModel[list[_Human]]):
    """An entry of `items_human_ins.json`: people's instructions for one product."""


def draw_prices(products: Mapping[str, Product]) -> dict[str, float]:
    """The price of each product in dollars, sampled where it has a range."""
    rng = random.Random(SEED)
    return {
        asin: product.prices[0] if len(product.prices) == 1 else rng.uniform(*product.prices)
        for asin, product in products.items()
    }


def human_goals(path: Path, products: Mapping[str, Product], prices: Mapping[str, float]) -> list[Goal]:
    """The goals of `items_human_ins.json` for these products, in upstream's order."""
    instructions = {
        entry.key: validate(_Humans, entry).root for entry in read_entries(path, "{") if entry.key in products
    }
    rng = random.Random(SEED)
    goals = []
    for asin, product in products.items():
        for human in instructions.get(asin, ()):
            if not human.instruction_attributes:
                continue
            limit, words = _limit(prices[asin], rng)
            options = human.instruction_options
            goals.append(
                Goal(
                    product=product,
                    instruction=human.instruction.strip(".") + words,
                    attributes=tuple(human.instruction_attributes),
                    options=tuple(
                        options.items() if isinstance(options, dict) else (("", value) for value in options)
                    ),
                    price_upper=limit,
                )
            )
    return _shuffle(goals)


def synthetic_goals(
    synthetic: Mapping[str, Synthetic], products: Mapping[str, Product], prices: Mapping[str, float]
) -> list[Goal]:
    """One goal for each combination of options of each product with an instruction, in AgentGym's order."""
    rng = random.Random(SEED)
    goals = []
    for asin, product in products.items():
        if asin not in synthetic:
            continue
        limit, words = _limit(prices[asin], rng)
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            options = tuple(zip(names, values, strict=True))
            option_text = ", and ".join(f"{name}: {value}" for name, value in options)
            with_options = f" with {option_text}" if option_text else ""
            goals.append(
                Goal(
                    product=product,
                    instruction=synthetic[asin].instruction + with_options + words,
                    attributes=synthetic[asin].attributes,
                    options=options,
                    price_upper=limit,
                )
            )
    return _shuffle(goals)


def _limit(price: float, rng: random.Random) -> tuple[float, str]:
    """(limit in dollars, its words in the instruction)"""
    above = [limit for limit in LIMITS if limit > price][:NEXT_LIMITS]
    if len(above) < 2:
        return NO_LIMIT, ""
    limit = max(rng.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def _shuffle(goals: list[Goal]) -> list[Goal]:
    """Put `goals` in upstream's order, in which session `N` has goal `N`."""
    random.Random(SEED).shuffle(goals)
    return goals
