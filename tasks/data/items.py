"""The items of a pipeline: their files, the order in which training samples them, and the turns of each.

A pipeline's data are parts (`tasks.config.data.PartSettings`), each of one environment; an item belongs to
one. `tasks/data/files.py` reads the items of a user's files. An item file, which `prepare` writes and every
later stage reads, has one `Item` a line, as JSON.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from agents.horizon import Horizon, HorizonEvidence
from envs.errors import ConfigError, suggest
from envs.files import write_atomically
from envs.registry import Split, get_env
from envs.types import Item
from tasks.config.data import DataSettings
from tasks.config.pipelines import Pipeline
from tasks.data.files import check_data, read_parts
from tasks.data.hashes import text_md5
from tasks.data.sources import find_foreign

SPLITS = ("test", "train")


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item_id: str
    env: str
    seed: int = 0
    metadata: dict[str, object] = {}
    fields: dict[str, object] = {}
    part: str = ""


_NAMES = tuple(_Line.model_fields)
_ENCODER = json.JSONEncoder(sort_keys=True)


def check_split(name: str) -> None:
    """Raise `ConfigError` unless it is a split's."""
    if name not in SPLITS:
        raise ConfigError(f"--split {name!r}; {suggest(name, SPLITS)}there are: {', '.join(SPLITS)}")


def split(data: DataSettings) -> Split:
    """Training and test items of all parts, part by part.

    Raises `ConfigError` for a part without items, for an item that two parts claim, for a split that
    `EnvSpec.make_split` refuses, and for invalid files.
    """
    check_data(data)
    user_splits = read_parts(data)
    envs = {part.env for name, part in data.parts.items() if name not in user_splits}
    splits = {env: get_env(env).make_split(data.split_seed) for env in envs}
    owners: dict[str, str] = {}
    train: list[Item] = []
    test: list[Item] = []
    for name, part in data.parts.items():
        part_split = user_splits[name] if name in user_splits else splits[part.env]
        for side, items, selection in (
            ("training", part_split.train, train),
            ("test", part_split.test, test),
        ):
            if selection is test and not part.evaluate:
                continue
            part_items = [item for item in items if part.has(item)]
            if not part_items:
                if not items:
                    raise ConfigError(
                        f"data.parts.{name} has no {side} items: environment {part.env!r} has none; let its "
                        "split return some, or set evaluate: false"
                    )
                raise ConfigError(
                    f"data.parts.{name} has no {side} items: where {part.where} leaves none of its "
                    f"{len(items)}; their metadata is like {dict(items[0].metadata)}"
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

    Parts take turns: next is the part that is furthest behind its share. None is ever a whole item ahead of
    it; of many parts with very unequal weights, one may be a little more than an item behind. Within a part
    each item comes once before any comes again. A pure function: the same arguments give the same order.
    Raises `ConfigError` for a part without items.
    """
    indices: dict[str, list[int]] = {name: [] for name in data.parts}
    for index, item in enumerate(items):
        name = data.part_of(item)
        assert name is not None
        indices[name].append(index)
    for name, part in indices.items():
        if not part:
            raise ConfigError(
                f"data.parts.{name} has none of the {len(items)} training items; run the prepare stage again"
            )
    sources = {name: _shuffle_forever(part, seed=f"draws/{seed}/{name}") for name, part in indices.items()}
    total = sum(part.weight for part in data.parts.values())
    shares = {name: part.weight / total for name, part in data.parts.items()}
    counts = dict.fromkeys(shares, 0)
    for number in count(1):
        due = {name: share * number - counts[name] for name, share in shares.items()}
        name = max(due, key=due.__getitem__)
        counts[name] += 1
        yield next(sources[name])


def spread(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of `items`, evenly over their order: test items come sorted, by depth for example."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def horizons(pipeline: Pipeline) -> dict[str, Horizon]:
    """The horizon of each part."""
    return {name: part.horizon or pipeline.horizon for name, part in pipeline.data.parts.items()}


def training_turns(
    pipeline: Pipeline, *, step: int, evidence: Mapping[str, Sequence[HorizonEvidence]]
) -> dict[str, int]:
    """Turns that an episode of each part may have at training step `step` (from 1).

    `evidence`: by part, of the steps before it.
    """
    return {
        name: horizon.max_turns_at(step, evidence.get(name, ()))
        for name, horizon in horizons(pipeline).items()
    }


def planned_turns(pipeline: Pipeline) -> Callable[[int], int] | None:
    """The longest horizon of each training step (from 1); None if it depends on the episodes (`adaptive`)."""
    schedules = horizons(pipeline).values()
    if any(horizon.type == "adaptive" for horizon in schedules):
        return None
    return lambda step: max(horizon.max_turns_at(step) for horizon in schedules)


def evaluation_turns(pipeline: Pipeline) -> dict[str, int]:
    """Turns that an episode of each part may have in evaluation."""
    return {name: part.max_turns or pipeline.evaluate.max_turns for name, part in pipeline.data.parts.items()}


def evaluation_way(pipeline: Pipeline) -> dict[str, object]:
    """How policies are evaluated, by key: what must be the same of two that are compared."""
    turns = evaluation_turns(pipeline)
    evaluated_turns = {name: turns[name] for name, part in pipeline.data.parts.items() if part.evaluate}
    return {
        "evaluate.max_turns": describe_turns(evaluated_turns),
        "evaluate.temperature": pipeline.evaluate.temperature,
    }


def describe_turns(turns: Mapping[str, object]) -> str:
    """The turns of `evaluation_turns` in one text, which is the same if every item has the same."""
    counts = {str(count) for count in turns.values()}
    return counts.pop() if len(counts) == 1 else ", ".join(f"{k} {v}" for k, v in sorted(turns.items()))


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write `items` to `path`, replacing it; the same items give the same bytes."""
    write_atomically(path, _to_lines(items))


def items_md5(items: Iterable[Item]) -> str:
    """The MD5 of the file that `write_items` would write."""
    return text_md5(_to_lines(items))


def _to_lines(items: Iterable[Item]) -> str:
    return "".join(item_to_json(item) + "\n" for item in items)


def read_items(path: Path, *, data: DataSettings | None = None) -> list[Item]:
    """The items of `path`, in order.

    Raises `ConfigError` for a missing or empty file, a malformed line, or (where `data` is given) an
    item that belongs to none of its parts.
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise ConfigError(f"no item file {path}; run the prepare stage first") from None
    items = []
    for number, line in enumerate(lines, start=1):
        item = item_from_json(line, location=f"{path}:{number}")
        if data is not None and data.part_of(item) is None:
            raise ConfigError(
                f"{path}:{number}: item {item.item_id!r} of environment {item.env!r} is in none of "
                f"data.parts ({', '.join(data.parts)}); run the prepare stage again"
            )
        items.append(item)
    if not items:
        raise ConfigError(f"{path} holds no items; run the prepare stage again")
    return items


def read_split(workspace: Path, *, data: DataSettings) -> Split:
    """The items that the prepare stage has written to `workspace`. Raises as `read_items` does."""
    train, test = (read_items(workspace / "data" / f"{side}.jsonl", data=data) for side in ("train", "test"))
    return Split(train=train, test=test)


def training_items(pipeline: Pipeline, workspace: Path) -> list[Item]:
    """The items in the order in which training samples them, `rollout.items_per_step` a step, and after
    them those that this order does not reach."""
    items = read_items(workspace / "data" / "train.jsonl", data=pipeline.data)
    order = training_order(items, pipeline.data, seed=pipeline.seed)
    numbers = list(islice(order, pipeline.train.steps * pipeline.rollout.items_per_step))
    rest = sorted(set(range(len(items))) - set(numbers))
    return [items[number] for number in (*numbers, *rest)]


def item_to_json(item: Item) -> str:
    """One line of an item file. Raises `ConfigError` for an item that JSON cannot hold."""
    values = {name: getattr(item, name) for name in _NAMES} | {"metadata": dict(item.metadata)}
    for name in ("fields", "part"):  # most items have none
        if not values[name]:
            del values[name]
    try:
        return _ENCODER.encode(values)
    except TypeError:
        for kind, facts, remedy in (
            ("metadata", item.metadata, "a number or a text"),
            ("fields", item.fields, "a JSON value"),
        ):
            for key, fact in facts.items():
                if (foreign := find_foreign(fact)) is not None:
                    raise ConfigError(
                        f"environment {item.env!r}: item {item.item_id}: {kind}.{key} holds {foreign}; give "
                        f"{remedy}"
                    ) from None
        raise


def item_from_json(line: str, *, location: str) -> Item:
    """The item of one line; `location` is named in the `ConfigError` for a malformed one."""
    try:
        fields = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{location}: not an item: {where + ': ' if where else ''}{first['msg']}") from None
    return Item(**vars(fields))


def _shuffle_forever(indices: Sequence[int], *, seed: str) -> Iterator[int]:
    rng = random.Random(seed)
    order = list(indices)
    while True:
        rng.shuffle(order)
        yield from order
