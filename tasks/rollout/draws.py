"""Draws items at random, with weights and without replacement."""

import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from envs.types import Item
from tasks.config.data import DataSettings

Weigh = Callable[[Item], float]
"""The weight of an item, above 0."""


class ItemDraws:
    """The items of the training split by part, to be drawn from.

    The items of a part come in a random order in which each next one is drawn with a probability in
    proportion to its weight (Efraimidis & Spirakis 2006). All draws are pure functions of their arguments.
    """

    def __init__(self, items: Sequence[Item], data: DataSettings) -> None:
        """`items`: each once, in an order that depends on nothing but the pipeline."""
        self._items: dict[str | None, list[Item]] = {}
        for item in items:
            self._items.setdefault(data.part_of(item), []).append(item)
        self._data = data

    def draw(self, places: Sequence[Item], *, seed: str, weigh: Weigh) -> list[Item]:
        """For each place an item of the same part as the one that it has; within a part each item comes once
        before any comes again."""
        parts = [self._data.part_of(place) for place in places]
        orders = {part: self._repeat_order(part, seed=seed, weigh=weigh) for part in dict.fromkeys(parts)}
        return [next(orders[part]) for part in parts]

    def draw_others(
        self, places: Sequence[Item], *, seed: str, weigh: Weigh, excluded_ids: Collection[str]
    ) -> list[Item | None]:
        """As `draw`, without the items of `excluded_ids` and without repetition; None for a place whose part
        has no item left."""
        parts = [self._data.part_of(place) for place in places]
        orders: dict[str | None, Iterator[Item]] = {}
        for part in dict.fromkeys(parts):
            order = self._order(part, seed=seed, weigh=weigh)
            orders[part] = iter([item for item in order if item.item_id not in excluded_ids])
        return [next(orders[part], None) for part in parts]

    def _repeat_order(self, part: str | None, *, seed: str, weigh: Weigh) -> Iterator[Item]:
        for lap in count():
            yield from self._order(part, seed=f"{seed}/{lap}", weigh=weigh)

    def _order(self, part: str | None, *, seed: str, weigh: Weigh) -> list[Item]:
        rng = random.Random(f"{seed}/{part}")
        # Each item has an exponential clock of its weight's rate, and the first to ring comes first.
        clocks = [(-math.log(1.0 - rng.random()) / weigh(item), item) for item in self._items[part]]
        return [item for _, item in sorted(clocks, key=lambda clock: clock[0])]
