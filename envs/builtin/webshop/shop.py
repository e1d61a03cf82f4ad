"""A shop: products, prices, goals and the search over them. All visits of a process share it."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from envs.builtin.webshop.catalogue import Product, load_attributes, load_products
from envs.builtin.webshop.goals import Goal, GoalKind, draw_prices, human_goals, synthetic_goals
from envs.builtin.webshop.pages import RESULTS
from envs.builtin.webshop.reward import Score, score_purchase
from envs.builtin.webshop.search import Index, document
from envs.errors import ConfigError
from envs.requirements.data_sets import DataSet

CACHED_SEARCHES = 2048
"""Queries of each shop whose results are cached."""


class Shop:
    """One shop; immutable."""

    def __init__(
        self, products: Mapping[str, Product], prices: Mapping[str, float], goals: Sequence[Goal]
    ) -> None:
        self.products = products
        self.prices = prices
        self.goals = goals
        # pyserini breaks ties by asin
        self._indexed_products = tuple(sorted(products.values(), key=lambda product: product.asin))
        self._index = Index(map(document, self._indexed_products))
        self.search: Callable[[str], tuple[Product, ...]] = lru_cache(CACHED_SEARCHES)(self._search)
        """The products that a query finds, at most `RESULTS`, best first."""

    def find_goal(self, number: int) -> Goal:
        """The goal of session `number`; raises `ConfigError` if the shop has no such goal."""
        if not 0 <= number < len(self.goals):
            raise ConfigError(
                f"goal {number} does not exist: this shop has {len(self.goals)}, 0 to {len(self.goals) - 1}"
            )
        return self.goals[number]

    def score(self, product: Product, goal: Goal, *, choices: Sequence[str]) -> Score:
        """The score of buying `product` with the option values `choices` when asked for `goal`."""
        return score_purchase(product, goal, price=self.prices[product.asin], choices=choices)

    def _search(self, query: str) -> tuple[Product, ...]:
        return tuple(self._indexed_products[number] for number in self._index.search(query, limit=RESULTS))


def load(data: DataSet, goal_kind: GoalKind) -> Shop:
    """Load the shop of a data set; half a second for 1,000 products.

    Raises `ConfigError` for malformed files, `MissingDependency` for missing ones.
    """
    items, synthetic_file, human_file = map(data.path, data.required_paths)
    remedy = f"get it anew: wingspan data {'pull' if data.make is None else 'make'} {data.name}"
    try:
        attributes, synthetic = load_attributes(synthetic_file)
        products = load_products(items, attributes)
        prices = draw_prices(products)
        if goal_kind is GoalKind.HUMAN:
            goals = human_goals(human_file, products, prices)
        else:
            goals = synthetic_goals(synthetic, products, prices)
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from None
    return Shop(products, prices, goals)
