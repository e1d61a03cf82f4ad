"""The items of a pipeline, the order in which training samples them, and the turns that each may have.

A pipeline's data are parts (`tasks.config.data.PartSettings`), each of one environment; an item belongs to
one. `tasks/data/files.py` reads the items of a user's files.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import count

from envs.errors import ConfigError
from envs.registry import Split, get_env
from envs.types import Item
from tasks.config.data import DataSettings
from tasks.config.settings import Pipeline
from tasks.data.files import check_data, read_parts


def split(data: DataSettings) -> Split:
    """Training and test items of all parts, part by part.

    Raises `ConfigError` for a part without items, for an item that two parts claim, and for invalid files.
    """
    check_data(data)
    user_splits = read_parts(data)
    envs = {part.env for name, part in data.parts.items() if name not in user_splits}
    splits = {env: get_env(env).split(data.split_seed) for env in envs}
    owners: dict[str, str] = {}
    train: list[Item] = []
    test: list[Item] = []
    for name, part in data.parts.items():
        part_split = user_splits[name] if name in user_splits else splits[part.env]
        for side, items, selection in (
            ("training", part_split.train, train),
            ("test", part_split.test, test),
        ):
            part_items = [item for item in items if part.has(item)]
            if not part_items:
                like = f"; their metadata is like {dict(items[0].metadata)}" if items else ""
                raise ConfigError(
                    f"data.parts.{name} has no {side} items: where {part.where} leaves none of its "
                    f"{len(items)}{like}"
                )
            for item in part_items:
                owner = owners.setdefault(item.item_id, name)
                if owner != name:
                    raise ConfigError(
                        f"item {item.item_id} is in data.parts.{owner} and in data.parts.{name}; let their "
                        "`where`, or their files, exclude each other"
                    )
            selection += part_items
    return Split(train=train, test=test)


def training_order(items: Sequence[Item], data: DataSettings, *, seed: int | str) -> Iterator[int]:
    """The indices into `items` in the order in which training samples them, without end.

    Parts take turns so that at every moment each has had its share, to within one item; within a part each
    item comes once before any comes again. A pure function: the same arguments give the same order.
    """
    indices: dict[str, list[int]] = {name: [] for name in data.parts}
    for index, item in enumerate(items):
        name = data.part_of(item)
        assert name is not None
        indices[name].append(index)
    sources = {name: _shuffle_forever(part, seed=f"draws/{seed}/{name}") for name, part in indices.items()}
    total = sum(part.weight for part in data.parts.values())
    shares = {name: part.weight / total for name, part in data.parts.items()}
    counts = dict.fromkeys(shares, 0)
    for number in count(1):
        due = {name: share * number - counts[name] for name, share in shares.items()}
        name = max(due, key=due.__getitem__)
        counts[name] += 1
        yield next(sources[name])


def training_turns(pipeline: Pipeline, *, step: int) -> dict[str, int]:
    """Turns that an episode of each part may have at training step `step` (from 1)."""
    schedules = {name: part.horizon or pipeline.horizon for name, part in pipeline.data.parts.items()}
    return {name: schedule.max_turns_at(step) for name, schedule in schedules.items()}


def evaluation_turns(pipeline: Pipeline) -> dict[str, int]:
    """Turns that an episode of each part may have in evaluation."""
    return {name: part.max_turns or pipeline.evaluate.max_turns for name, part in pipeline.data.parts.items()}


def _shuffle_forever(indices: Sequence[int], *, seed: str) -> Iterator[int]:
    rng = random.Random(seed)
    order = list(indices)
    while True:
        rng.shuffle(order)
        yield from order
