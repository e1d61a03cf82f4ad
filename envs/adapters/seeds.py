"""Items numbered by seed, and random generators that belong to one episode."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from envs.registry import Split
from envs.types import Item

TRAIN_ITEMS, TEST_ITEMS = 1000, 100
"""The numbers of items of an environment that makes its problems from seeds, which has any number of them."""

_NUMPY: Any = np.random
"""Typed as `Any`: the stubs lack the functions that swap the global generator."""


def seeded_item(name: str, index: int, *, metadata: Mapping[str, object] | None = None) -> Item:
    """The item `<name>_<index>`, whose problem comes from seed `index`."""
    return Item(item_id=f"{name}_{index}", env=name, seed=index, metadata=metadata or {})


def seeded_split(name: str, split_seed: int) -> Split:
    """1,000 training and 100 test items out of the seeds from 0 to 1,099; no seed is in both."""
    indices = list(range(TRAIN_ITEMS + TEST_ITEMS))
    random.Random(f"{name}/split/{split_seed}").shuffle(indices)
    return Split(
        train=[seeded_item(name, i) for i in sorted(indices[TEST_ITEMS:])],
        test=[seeded_item(name, i) for i in sorted(indices[:TEST_ITEMS])],
    )


class EpisodeRandom:
    """The global generators of `random` and numpy, as one episode sees them.

    Packages that use the global generators would otherwise disturb each other's episodes. Within the block
    the generators are this episode's; after it they are restored. The block must not await.
    """

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy: np.random.BitGenerator = np.random.MT19937(seed)
        self._outer: tuple[tuple[object, ...], np.random.BitGenerator] | None = None

    def __enter__(self) -> None:
        self._outer = random.getstate(), _NUMPY.get_bit_generator()
        random.setstate(self._python)
        _NUMPY.set_bit_generator(self._numpy)

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        self._python = random.getstate()
        python, numpy = self._outer
        random.setstate(python)
        _NUMPY.set_bit_generator(numpy)
