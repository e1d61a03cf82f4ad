"""WebShop's own products and instructions.

webshop                    the subset of 1,000 products, its synthetic goals: what AgentGym serves
webshop:text_rich          the same, seen otherwise
webshop:text?catalogue=full&goals=human      the paper's: 1.18 million products, the crowd's instructions
"""

from typing import TYPE_CHECKING

from envs.builtin.webshop.data import WEBSHOP, WEBSHOP_FULL, stock_of
from envs.builtin.webshop.env import PACKAGES, Variant
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.make_spec import Halves, parse_argument, spec_of
from envs.errors import ConfigError
from envs.registry import EnvSpec

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "spec"]

if TYPE_CHECKING:
    from envs.builtin.webshop.shop import Shop

FAMILY = "webshop"
EXAMPLE = f"{FAMILY}:html?goals=human&catalogue=full"
SOURCE = f"upstream's download: {WEBSHOP.about}"
TEST_GOALS, DEV_GOALS = 500, 1000
"""Upstream's: the first goals are tested on, the next are for development, the others are trained on."""


def halves(shop: "Shop", seed: int) -> Halves:
    """Upstream's test and training goals, whatever the seed."""
    held_out = TEST_GOALS + DEV_GOALS
    if len(shop.goals) <= held_out:
        raise ConfigError(
            f"this shop has {len(shop.goals)} goals, and the first {held_out} are upstream's for tests and "
            "development: none is left to train on; take goals=synthetic or catalogue=full"
        )
    return range(held_out, len(shop.goals)), range(TEST_GOALS)


def spec(argument: str) -> EnvSpec:
    """The environment `webshop:<argument>`."""
    variant = parse_argument(
        argument,
        family=FAMILY,
        catalogues={"small": WEBSHOP, "full": WEBSHOP_FULL},
        goals=(GoalKind.SYNTHETIC, GoalKind.HUMAN),
    )
    return spec_of(variant, halves=halves, source=f"upstream's download: {variant.stock.data.about}")


SPEC = spec_of(
    Variant(name=FAMILY, stock=stock_of(WEBSHOP, GoalKind.SYNTHETIC)),
    halves=halves,
    source=SOURCE,
)
