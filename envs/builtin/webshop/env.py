"""WebShop as an environment: one live visit, and what the environments of this package have in common.

What an episode sees is a page in one view. Where actions are listed, its last line is the prefix `ACTIONS`
and, as JSON, what AgentGym answers to `/available_actions`.
"""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.builtin.webshop.data import Stock
from envs.errors import ConfigError
from envs.remote.agentgym import ACTIONS
from envs.requirements.detection import Package, require
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from envs.builtin.webshop.pages import AvailableActions
    from envs.builtin.webshop.session import Session
    from envs.builtin.webshop.shop import Shop

PACKAGES = ("bm25s", "pystemmer", "rapidfuzz")

_VIEWS = {"observation": "text", "html": "html"}
"""What can be asked for → the view that tells it."""

INSTRUCTIONS = """\
You are web shopping. An instruction tells you what to buy. Every round I will give you a page of the \
shop, and you answer with your thought and one action. You can search for products on any page: \
search[keywords], with keywords of your choice. You can click what can be clicked on the page, e.g. \
click[Buy Now]: a product's number in the results opens the product, a value of an option chooses it, \
"Buy Now" buys the product with the options chosen and is your last action. Choose every option that the \
instruction asks for before you buy. What is no action on the page changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One environment of this package."""

    name: str
    stock: Stock
    """What its shop is made of."""
    view: str = "text"
    lists_actions: bool = True
    """Whether what is seen ends with the actions."""


class WebShopEnv:
    """One visit to a shop."""

    def __init__(self, variant: Variant) -> None:
        self._variant = variant
        self._session: Session | None = None  # kept after the purchase, to be looked at

    async def reset(self, item: Item) -> str:
        """Start session `item`; the first in a process loads the shop."""
        with needing_packages(self._variant.name):
            from envs.builtin.webshop.shop import loaded, shop_of
        stock = self._variant.stock
        shop = loaded(stock)
        if shop is None:
            shop = await asyncio.to_thread(shop_of, stock)
        return self.start(shop, item.index)

    def start(self, shop: "Shop", number: int) -> str:
        """`reset`, for callers that are not asynchronous and have the shop."""
        from envs.builtin.webshop.session import Session

        self._session = Session(shop, shop.goal(number))
        return self._render(self._session)

    async def step(self, action: str) -> StepResult:
        """Carry out `search[…]` or `click[…]`; anything else shows the same page again."""
        return self.act(action)

    def act(self, action: str) -> StepResult:
        """`step`, for callers that are not asynchronous."""
        session = self._session
        if session is None or session.score is not None:
            raise RuntimeError("step before reset, or after the end")
        session.act(action.strip())
        seen = self._render(session)
        score = session.score
        if score is None:
            return StepResult(seen)
        return StepResult(
            seen, score.reward, terminated=True, success=score.reward == 1.0, metrics=score.shares
        )

    async def close(self) -> None:
        """Leave the shop."""
        self._session = None

    async def inspect(self, what: str) -> Any:
        """What AgentGym's server answers: `observation` (upstream's text, whatever the view), `html`,
        `available_actions` and `instruction_text`."""
        from envs.builtin.webshop.views import View, show

        session = self._session
        if session is None:
            raise RuntimeError("there is nothing to see before reset")
        if what == "available_actions":
            return _describe_actions(session.page.actions)
        if what == "instruction_text":
            return session.goal.instruction
        if what in _VIEWS:
            return show(session.page, View(_VIEWS[what]), session.past)
        names = ", ".join([*_VIEWS, "available_actions", "instruction_text"])
        raise ConfigError(f"a shop tells no {what!r}; it tells {names}")

    def _render(self, session: "Session") -> str:
        from envs.builtin.webshop.views import View, show

        page = show(session.page, View(self._variant.view), session.past)
        if not self._variant.lists_actions:
            return page
        return f"{page}\n{ACTIONS}{json.dumps(_describe_actions(session.page.actions), ensure_ascii=False)}"


def _describe_actions(actions: "AvailableActions") -> dict[str, Any]:
    return {"has_search_bar": actions.has_search_bar, "clickables": [*actions.clickables]}


@contextmanager
def needing_packages(name: str) -> Iterator[None]:
    """Within, an import that fails because a package is missing is a `MissingDependency`."""
    try:
        yield
    except ImportError:
        require(f"environment {name!r}", map(Package, PACKAGES))
        raise
