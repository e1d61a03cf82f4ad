"""What every environment of this package has in its spec, whichever its shop and its view.

Names of other views and shops than the plain environments' are `<family>:<view>?option=value&…`; options
are `actions` (whether those of a page are listed: by default they are), `goals` and `catalogue`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from envs.adapters.arguments import parse, unknown
from envs.builtin.webshop.data import stock_of
from envs.builtin.webshop.env import INSTRUCTIONS, PACKAGES, Variant, WebShopEnv, needing_packages
from envs.builtin.webshop.goals import GoalKind
from envs.errors import ConfigError, unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.requirements.data_sets import DataSet
from envs.types import Item

if TYPE_CHECKING:
    from envs.builtin.webshop.shop import Shop

VIEWS = ("text", "text_rich", "html")
Halves = tuple[Sequence[int], Sequence[int]]
"""Numbers of goals: to train on, to be tested on."""


def parse_argument(
    argument: str,
    *,
    family: str,
    catalogues: dict[str, DataSet],
    goals: Sequence[GoalKind],
) -> Variant:
    """The environment `<family>:<argument>`; the first catalogue and kind of goals where none is named."""
    view, options = parse(argument, family=family)
    if view not in VIEWS:
        raise unknown(view, family=family, known=VIEWS)
    name = f"{family}:{argument}"
    catalogue = _choice(options.pop("catalogue", next(iter(catalogues))), catalogues, name, "catalogue")
    kind = _choice(options.pop("goals", goals[0]), goals, name, "goals")
    lists_actions = options.pop("actions", True)
    if not isinstance(lists_actions, bool):
        raise ConfigError(f"env {name!r}: actions is {lists_actions!r}, not true or false")
    if options:
        raise ConfigError(
            f"env {name!r}: no option {', '.join(options)}; there are actions, catalogue and goals"
        )
    return Variant(
        name=name,
        stock=stock_of(catalogues[catalogue], GoalKind(kind)),
        view=view,
        lists_actions=lists_actions,
    )


def _choice(value: object, choices: Sequence[str] | dict[str, DataSet], name: str, option: str) -> str:
    if value not in choices:
        raise ConfigError(f"env {name!r}: {option} is {value!r}; there is {', '.join(choices)}")
    return str(value)


def spec_of(variant: Variant, *, halves: "Callable[[Shop, int], Halves]", source: str) -> EnvSpec:
    """The spec of an environment; `halves(shop, seed)` splits its goals."""
    return EnvSpec(
        name=variant.name,
        make=partial(WebShopEnv, variant),
        split=partial(_split, variant, halves),
        make_item=partial(_item, variant),
        expert=partial(_expert, variant),
        instructions=INSTRUCTIONS,
        packages=PACKAGES,
        requirements=(variant.stock.data,),
        source=source,
        preload=("envs.builtin.webshop.session",),
    )


def _shop(variant: Variant) -> "Shop":
    with needing_packages(variant.name):
        from envs.builtin.webshop.shop import shop_of
    return shop_of(variant.stock)


def _item(variant: Variant, number: int) -> Item:
    goals = _shop(variant).goals
    if not 0 <= number < len(goals):
        raise unknown_item(variant.name, number, count=len(goals))
    goal = goals[number]
    facts = {"category": goal.category, "attributes": len(goal.attributes), "options": len(goal.options)}
    return Item(item_id=f"{variant.name}_{number}", env=variant.name, metadata=facts)


def _split(variant: Variant, halves: "Callable[[Shop, int], Halves]", seed: int) -> Split:
    train, test = halves(_shop(variant), seed)
    return Split(train=[_item(variant, n) for n in train], test=[_item(variant, n) for n in test])


def _expert(variant: Variant, item: Item) -> Sequence[ExpertStep]:
    shop = _shop(variant)
    from envs.builtin.webshop.expert import solve

    return solve(shop, shop.goal(item.index))
