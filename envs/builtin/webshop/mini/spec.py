"""WebShop's engine and reward over a generated shop (`mini/data.py`), which needs no download.

No product that a training goal was written for is the product of a test goal.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from envs.builtin.webshop.data import WEBSHOP_MINI
from envs.builtin.webshop.env import PACKAGES, Variant
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.spec import make_spec, parse_argument
from envs.registry import EnvSpec

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "spec"]

if TYPE_CHECKING:
    from envs.builtin.webshop.shop import Shop

FAMILY = "webshop-mini"
EXAMPLE = f"{FAMILY}:text_rich?goals=synthetic"
TEST_PRODUCTS = 100
SOURCE = "a made-up shop in WebShop's formats, generated here; not WebShop's products"


def split_goals(shop: "Shop", seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Tests have the goals of `TEST_PRODUCTS` products, training those of all others."""
    asins = [goal.product.asin for goal in shop.goals]
    test_asins = set(random.Random(f"{FAMILY}/split/{seed}").sample(sorted(set(asins)), TEST_PRODUCTS))
    return (
        [number for number, asin in enumerate(asins) if asin not in test_asins],
        [number for number, asin in enumerate(asins) if asin in test_asins],
    )


def spec(argument: str) -> EnvSpec:
    """The environment `webshop-mini:<argument>`."""
    variant = parse_argument(
        argument, family=FAMILY, catalogues={"mini": WEBSHOP_MINI}, goals=(GoalKind.HUMAN, GoalKind.SYNTHETIC)
    )
    return make_spec(variant, split_goals=split_goals, source=SOURCE)


SPEC = make_spec(
    Variant(name=FAMILY, data=WEBSHOP_MINI, goals=GoalKind.HUMAN), split_goals=split_goals, source=SOURCE
)
