"""The environment: one visit to a shop.

An observation is a page in one view. If the variant lists the available actions, the last line is the prefix
`ACTIONS` and, as JSON, AgentGym's answer to `/available_actions`.
"""

import asyncio
import json
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.pages import Page, PageKind
from envs.builtin.webshop.views import View, render
from envs.errors import ConfigError
from envs.remote.agentgym import ACTIONS
from envs.requirements.data_sets import DataSet
from envs.requirements.detection import Package, require
from envs.types import Item, StepResult, hash_state

if TYPE_CHECKING:
    from envs.builtin.webshop.session import Session
    from envs.builtin.webshop.shop import Shop

PACKAGES = ("bm25s", "pystemmer", "rapidfuzz")

INSTRUCTIONS = """\
You are web shopping. An instruction tells you what to buy. Every round I will give you a page of the \
shop, and you take one action. You can search for products on any page: \
search[keywords], with keywords of your choice. You can click what can be clicked on the page, e.g. \
click[Buy Now]: a product's number in the results opens the product, a value of an option chooses it, \
"Buy Now" buys the product with the options chosen and is your last action. Choose every option that the \
instruction asks for before you buy. What is no action on the page changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One environment of this package: a shop and a view of it."""

    name: str
    data: DataSet
    goals: GoalKind
    view: View = View.TEXT
    lists_actions: bool = True
    """Whether observations end with the available actions."""

    @property
    def shop_key(self) -> tuple[Path, GoalKind]:
        """Identifies the shop in this process."""
        return self.data.folder, self.goals


_SHOPS: "dict[tuple[Path, GoalKind], Shop]" = {}
_LOADING = threading.Lock()


def load_shop(variant: Variant) -> "Shop":
    """The shop of `variant`; the first call in a process loads it.

    Raises `ConfigError` for malformed files, `MissingDependency` for missing files or packages.
    """
    with _LOADING:
        if variant.shop_key not in _SHOPS:
            try:
                from envs.builtin.webshop.shop import load
            except ImportError:
                require(f"environment {variant.name!r}", map(Package, PACKAGES))
                raise
            _SHOPS[variant.shop_key] = load(variant.data, variant.goals)
        return _SHOPS[variant.shop_key]


class WebShopEnv:
    """One visit to a shop."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._session: Session | None = None  # kept after the purchase, for `inspect`

    async def reset(self, item: Item) -> str:
        """Start session `item`; the first one in a process loads the shop."""
        shop = _SHOPS.get(self._variant.shop_key)
        if shop is None:
            shop = await asyncio.to_thread(load_shop, self._variant)
        from envs.builtin.webshop.session import Session

        self._session = Session(shop, shop.find_goal(item.index))
        return self._observe(self._session)

    async def step(self, action: str) -> StepResult:
        """Carry out `search[…]` or `click[…]`; any other action shows the same page again."""
        session = self._session
        if session is None or session.score is not None:
            raise RuntimeError("step before reset, or after the end")
        session.act(action.strip())
        observation, score = self._observe(session), session.score
        if score is None:
            return StepResult(observation)
        return StepResult(
            observation, score.reward, terminated=True, success=score.reward == 1.0, metrics=score.shares
        )

    async def close(self) -> None:
        """Leave the shop."""
        self._session = None

    def state_key(self) -> str | None:
        """The key of the page, the options chosen, and in a view that marks them the products visited."""
        session = self._session
        if session is None or session.score is not None:
            return None
        pages = () if self._variant.view is View.TEXT else sorted(session.clicks.products)
        return hash_state(session.state, pages)

    async def inspect(self, name: str) -> Any:
        """A fact that AgentGym's server has: `observation` (upstream's text, whatever the view), `html`,
        `available_actions` or `instruction_text`."""
        session = self._session
        if session is None:
            raise RuntimeError("inspect before reset")
        match name:
            case "observation":
                return render(session.page, View.TEXT, session.clicks)
            case "html":
                return render(session.page, View.HTML, session.clicks)
            case "available_actions":
                return _describe_actions(session.page)
            case "instruction_text":
                return session.goal.instruction
        raise ConfigError(
            f"webshop has no fact {name!r}; it has observation, html, available_actions and instruction_text"
        )

    def _observe(self, session: "Session") -> str:
        text = render(session.page, self._variant.view, session.clicks)
        if not self._variant.lists_actions:
            return text
        return f"{text}\n{ACTIONS}{json.dumps(_describe_actions(session.page), ensure_ascii=False)}"


def _describe_actions(page: Page) -> dict[str, object]:
    return {"has_search_bar": page.kind is PageKind.SEARCH, "clickables": [*page.clickables]}
