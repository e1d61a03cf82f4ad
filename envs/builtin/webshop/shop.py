"""A shop: its products, what they cost, its search engine and its goals; loaded once for all of a process."""

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from envs.builtin.webshop.catalogue import Product, load_attributes, load_products
from envs.builtin.webshop.data import HUMANS, Stock
from envs.builtin.webshop.goals import Goal, GoalKind, draw_prices, human_goals, synthetic_goals
from envs.builtin.webshop.pages import RESULTS
from envs.builtin.webshop.reward import Score, score_of
from envs.builtin.webshop.search import Index, document
from envs.errors import ConfigError
from envs.requirements.data_sets import DataSet

SEARCHES = 2048
"""Queries whose results are kept, for each shop."""


class Shop:
    """One shop; it never changes, so all can share it."""

    def __init__(
        self, products: Mapping[str, Product], prices: Mapping[str, float], goals: Sequence[Goal]
    ) -> None:
        self.products = products
        self.prices = prices
        self.goals = goals
        # pyserini orders what is found equally well by its number
        self._shelf = tuple(sorted(products.values(), key=lambda product: product.asin))
        self._index = Index(map(document, self._shelf))
        self.search: Callable[[str], tuple[Product, ...]] = lru_cache(SEARCHES)(self._search)
        """The products that a query finds, at most `RESULTS`, the best first."""

    def goal(self, number: int) -> Goal:
        """The goal of session `number`; raises `ConfigError` where there is none."""
        if not 0 <= number < len(self.goals):
            raise ConfigError(
                f"goal {number} is not there: this shop has {len(self.goals)}, 0 to {len(self.goals) - 1}"
            )
        return self.goals[number]

    def score(self, product: Product, goal: Goal, *, chosen: Sequence[str]) -> Score:
        """What it is worth to buy `product` with the options `chosen`, when asked for `goal`."""
        return score_of(product, goal, price=self.prices[product.asin], chosen=chosen)

    def _search(self, query: str) -> tuple[Product, ...]:
        return tuple(self._shelf[number] for number in self._index.search(query, limit=RESULTS))


_SHOPS: dict[tuple[str, str, GoalKind], Shop] = {}
_LOADING = threading.Lock()


def loaded(stock: Stock) -> Shop | None:
    """The shop, if this process has it already."""
    return _SHOPS.get(_key(stock))


def shop_of(stock: Stock) -> Shop:
    """The shop, loaded if need be: half a second for 1,000 products.

    Raises `ConfigError` for files that are not what they should be, `MissingDependency` where they are
    not here.
    """
    with _LOADING:
        key = _key(stock)
        if key not in _SHOPS:
            _SHOPS[key] = load(stock)
        return _SHOPS[key]


def load(stock: Stock) -> Shop:
    """The shop, from its files."""
    files, remedy = stock.data.path, f"get it anew: {_command(stock.data)}"
    attributes, synthetic = load_attributes(files(stock.attributes), remedy=remedy)
    products = load_products(files(stock.items), attributes, remedy=remedy)
    prices = draw_prices(products)
    if stock.goals is GoalKind.HUMAN:
        goals = human_goals(files(HUMANS), products, prices, remedy=remedy)
    else:
        goals = synthetic_goals(synthetic, products, prices)
    return Shop(products, prices, goals)


def _key(stock: Stock) -> tuple[str, str, GoalKind]:
    return str(stock.data.folder), stock.items, stock.goals


def _command(data: DataSet) -> str:
    return f"wingspan data {'pull' if data.make is None else 'make'} {data.name}"
