"""The environments of WebShop's own products and instructions; `mini/spec.py` shares what builds a spec.

webshop                    the subset of 1,000 products and its synthetic goals, as AgentGym serves them
webshop:text_rich          the same in another view
webshop:text?catalogue=full&goals=human      the paper's: 1.18 million products, instructions by crowd workers

The other environments are named `<family>:<view>?option=value&…`; options are `actions` (whether observations
list the available actions; true by default), `goals` and `catalogue`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from envs.adapters.arguments import parse_name, unknown_target
from envs.builtin.webshop.data import WEBSHOP, WEBSHOP_FULL
from envs.builtin.webshop.env import INSTRUCTIONS, PACKAGES, Variant, WebShopEnv, load_shop
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.views import View
from envs.errors import ConfigError, check_index
from envs.registry import EnvSpec, ExpertStep, Split
from envs.requirements.data_sets import DataSet
from envs.types import Item

__all__ = ["EXAMPLE", "PACKAGES", "SOURCE", "SPEC", "spec"]

if TYPE_CHECKING:
    from envs.builtin.webshop.shop import Shop

FAMILY = "webshop"
EXAMPLE = f"{FAMILY}:html?goals=human&catalogue=full"
SOURCE = f"upstream's download: {WEBSHOP.about}"
TEST_GOALS, DEV_GOALS = 500, 1000
"""Upstream's split: the first goals are for tests, the next for development, the others for training."""

SplitGoals = Callable[["Shop", int], tuple[Sequence[int], Sequence[int]]]
"""(shop, seed) → numbers of the training goals, and of the test goals."""


def split_goals(shop: "Shop", seed: int) -> tuple[Sequence[int], Sequence[int]]:
    """Upstream's training and test goals, whatever the seed."""
    num_reserved = TEST_GOALS + DEV_GOALS
    if len(shop.goals) <= num_reserved:
        raise ConfigError(
            f"this shop has {len(shop.goals)} goals, of which upstream reserves {num_reserved} for tests and "
            "development; nothing is left to train on: take goals=synthetic or catalogue=full"
        )
    return range(num_reserved, len(shop.goals)), range(TEST_GOALS)


def spec(argument: str) -> EnvSpec:
    """The environment `webshop:<argument>`."""
    variant = parse_argument(
        argument,
        family=FAMILY,
        catalogues={"small": WEBSHOP, "full": WEBSHOP_FULL},
        goals=(GoalKind.SYNTHETIC, GoalKind.HUMAN),
    )
    return make_spec(variant, split_goals=split_goals, source=f"upstream's download: {variant.data.about}")


def parse_argument(
    argument: str, *, family: str, catalogues: Mapping[str, DataSet], goals: Sequence[GoalKind]
) -> Variant:
    """The environment `<family>:<argument>`; the first catalogue and kind of goals are the defaults."""
    name = f"{family}:{argument}"
    view, options = parse_name(name)
    if view not in list(View):
        raise unknown_target(view, family=family, targets=View)
    catalogue = _pop_choice(options, "catalogue", tuple(catalogues), name)
    kind = _pop_choice(options, "goals", goals, name)
    lists_actions = options.pop("actions", True)
    if not isinstance(lists_actions, bool):
        raise ConfigError(f"env {name!r}: actions is {lists_actions!r}, not true or false")
    if options:
        raise ConfigError(
            f"env {name!r}: no option {', '.join(options)}; there are actions, catalogue and goals"
        )
    return Variant(
        name=name,
        data=catalogues[catalogue],
        goals=GoalKind(kind),
        view=View(view),
        lists_actions=lists_actions,
    )


def _pop_choice(options: dict[str, object], option: str, choices: Sequence[str], name: str) -> str:
    value = options.pop(option, choices[0])
    if value not in choices:
        raise ConfigError(f"env {name!r}: {option} is {value!r}; there is {', '.join(choices)}")
    return str(value)


def make_spec(variant: Variant, *, split_goals: SplitGoals, source: str) -> EnvSpec:
    """The spec of an environment of this package."""
    return EnvSpec(
        name=variant.name,
        make=partial(WebShopEnv, variant),
        split=partial(_split, variant, split_goals),
        make_item=partial(_make_item, variant),
        expert=partial(_solve, variant),
        instructions=INSTRUCTIONS,
        packages=PACKAGES,
        requirements=(variant.data,),
        source=source,
        preload=("envs.builtin.webshop.session",),
        has_states=True,
    )


def _make_item(variant: Variant, number: int) -> Item:
    goals = load_shop(variant).goals
    check_index(variant.name, number, count=len(goals))
    goal = goals[number]
    metadata = {
        "category": goal.product.category,
        "attributes": len(goal.attributes),
        "options": len(goal.options),
    }
    return Item(item_id=f"{variant.name}_{number}", env=variant.name, metadata=metadata)


def _split(variant: Variant, split_goals: SplitGoals, seed: int) -> Split:
    train, test = split_goals(load_shop(variant), seed)
    return Split(train=[_make_item(variant, n) for n in train], test=[_make_item(variant, n) for n in test])


def _solve(variant: Variant, item: Item) -> Sequence[ExpertStep]:
    shop = load_shop(variant)
    from envs.builtin.webshop.expert import solve

    return solve(shop, shop.find_goal(item.index))


SPEC = make_spec(
    Variant(name=FAMILY, data=WEBSHOP, goals=GoalKind.SYNTHETIC), split_goals=split_goals, source=SOURCE
)
