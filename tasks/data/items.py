"""Item files: one `Item` a line, JSON. What `prepare` writes and every later stage reads."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from envs.errors import ConfigError
from envs.types import Item
from tasks.config.data import DataSettings


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item_id: str
    env: str
    seed: int = 0
    metadata: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    part: str = ""


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write `items` to `path`, replacing it; the same items give the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(item_to_json(item) + "\n" for item in items))


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


def item_to_json(item: Item) -> str:
    """One line of an item file."""
    values = {**asdict(item), "metadata": dict(item.metadata)}
    for name in ("fields", "part"):  # most items have none
        if not values[name]:
            del values[name]
    return json.dumps(values, sort_keys=True)


def item_from_json(line: str, *, location: str) -> Item:
    """The item of one line; `place` is named in the `ConfigError` for a malformed one."""
    try:
        fields = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{location}: not an item: {where + ': ' if where else ''}{first['msg']}") from None
    return Item(**dict(fields))
