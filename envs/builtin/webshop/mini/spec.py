"""WebShop's engine and reward over a made-up shop (`mini_data.py`), for where nothing was downloaded.

No product that a training goal was written for is the product of a test goal.
"""

import random
from typing import TYPE_CHECKING

from envs.builtin.webshop.data import WEBSHOP_MINI, stock_of
from envs.builtin.webshop.env import PACKAGES, Variant
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.make_spec import Halves, parse_argument, spec_of
from envs.registry import EnvSpec

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "spec"]

if TYPE_CHECKING:
    from envs.builtin.webshop.shop import Shop

FAMILY = "webshop-mini"
EXAMPLE = f"{FAMILY}:text_rich?goals=synthetic"
TEST_PRODUCTS = 100
SOURCE = "a made-up shop in WebShop's formats, generated here; not WebShop's products"


def halves(shop: "Shop", seed: int) -> Halves:
    """Goals of `TEST_PRODUCTS` products to be tested on, those of all others to train on."""
    asins = sorted({goal.asin for goal in shop.goals})
    test_asins = set(random.Random(f"{FAMILY}/split/{seed}").sample(asins, TEST_PRODUCTS))
    numbers = range(len(shop.goals))
    return (
        [n for n in numbers if shop.goals[n].asin not in test_asins],
        [n for n in numbers if shop.goals[n].asin in test_asins],
    )


def spec(argument: str) -> EnvSpec:
    """The environment `webshop-mini:<argument>`."""
    variant = parse_argument(
        argument, family=FAMILY, catalogues={"mini": WEBSHOP_MINI}, goals=(GoalKind.HUMAN, GoalKind.SYNTHETIC)
    )
    return spec_of(variant, halves=halves, source=SOURCE)


SPEC = spec_of(
    Variant(name=FAMILY, stock=stock_of(WEBSHOP_MINI, GoalKind.HUMAN)), halves=halves, source=SOURCE
)
