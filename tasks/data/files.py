"""A user's own data as items: rows of files, checked one by one (docs/data.md).

A row with `question` or `messages` becomes an item; one with `item_id` names an item that its environment
has. An invalid row raises a `ConfigError` that names the row and the field. Leaves out how rows are read
(`sources.py`) and how a pipeline mixes its parts (`items.py`).
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import PIL.Image

from agents.prompting.images import check_image
from envs.errors import ConfigError, suggest
from envs.registry import EnvSpec, Split, get_env
from envs.types import IMAGE_FIELDS, Image, Item, Role
from tasks.config.data import DataSettings
from tasks.data.sources import SourceRow, check_exists, find_foreign, read_rows

KINDS = ("question", "messages", "item_id")
"""A row has exactly one of these columns."""
ROLES = get_args(Role)


def check_data(data: DataSettings) -> None:
    """Check, without reading the rows, that every part has items.

    Raises `ConfigError` for a file that is not there, and where neither the part nor its environment says
    which items there are.
    """
    for name, part in data.parts.items():
        if part.train is not None and part.test is not None:
            check_exists(part.train, key=f"data.parts.{name}.train")
            check_exists(part.test, key=f"data.parts.{name}.test")
        elif not get_env(part.env).has_items:
            raise ConfigError(
                f"data.parts.{name}: environment {part.env!r} has no items of its own; give train and test "
                "(docs/data.md)"
            )


def read_parts(data: DataSettings) -> dict[str, Split]:
    """Items of those parts that have `train` and `test`, by name; `where` is not applied.

    Ids of made items are `<part>_<row>` and `<part>-test_<row>`, rows counted from 0. Raises `ConfigError`
    for an invalid row, and for a row that is in a `train` and in a `test`, of any parts.
    """
    read = {
        name: (
            _items(part.train, part=name, data=data, prefix=name),
            _items(part.test, part=name, data=data, prefix=f"{name}-test"),
        )
        for name, part in data.parts.items()
        if part.train is not None and part.test is not None
    }
    training_locations = {_content(item): location for train, _ in read.values() for location, item in train}
    for _, test in read.values():
        for location, item in test:
            if (twin := training_locations.get(_content(item))) is not None:
                raise ConfigError(
                    f"{location} and {twin} are the same, and test items must not be trained on; remove one"
                )
    return {
        name: Split(train=[item for _, item in train], test=[item for _, item in test])
        for name, (train, test) in read.items()
    }


def _items(source: str, *, part: str, data: DataSettings, prefix: str) -> list[tuple[str, Item]]:
    """The items of `source`, each with the place of its row."""
    spec = get_env(data.parts[part].env)
    known_items: dict[str, Item] = {}
    if spec.has_items and spec.make_item is None:
        split = spec.make_split(data.split_seed)
        known_items = {item.item_id: item for item in (*split.train, *split.test)}
    locations: dict[str, str] = {}
    items = []
    for row in read_rows(source):
        kind, columns = _check_row(_rename_columns(row, data.parts[part].columns), folder=Path(source).parent)
        if (kind == "item_id") != spec.has_items:
            raise ConfigError(f"{row.location}: {_explain_kind(kind, env=spec.name)}")
        if kind == "item_id":
            item = _find_item(columns.pop("item_id"), known_items, location=row.location, spec=spec)
        else:
            item = Item(item_id=f"{prefix}_{row.number}", env=spec.name)
            _check_fields(columns, spec=spec, location=row.location)
        earlier = locations.setdefault(item.item_id, row.location)
        if earlier != row.location:
            raise ConfigError(f"{row.location} and {earlier} are both {item.item_id}; take one out")
        metadata = {**item.metadata, **_metadata(columns.pop("metadata", None), location=row.location)}
        items.append((row.location, replace(item, part=part, metadata=metadata, fields=columns)))
    return items


def _rename_columns(row: SourceRow, names: Mapping[str, str]) -> SourceRow:
    """`row` with its columns called as `names` (name here → name in the row) say."""
    if not isinstance(row.value, dict) or not names:
        return row
    columns: dict[str, object] = row.value
    for name, column in names.items():
        if column not in columns:
            raise ConfigError(
                f"{row.location}: columns.{name} is {column!r}; {suggest(column, columns)}its columns "
                f"are {_join_names(columns) or 'none'}"
            )
        if name in columns and name not in names.values():
            raise ConfigError(
                f"{row.location}: columns.{name} is {column!r}, but a column {name!r} is there, too; leave "
                "columns out, or drop that column"
            )
    rest = {column: value for column, value in columns.items() if column not in names.values()}
    return replace(row, value=rest | {name: columns[column] for name, column in names.items()})


def _check_row(row: SourceRow, *, folder: Path) -> tuple[str, dict[str, Any]]:
    """What kind of row it is, and its columns without those of the other kinds; `folder` is the file's."""
    if not isinstance(row.value, dict):
        raise ConfigError(
            f"{row.location} is {_show_value(row.value)}; give an object with one of {_join_names(KINDS)}"
        )
    columns: dict[str, object] = row.value
    if columns.get("item_id") is None:  # else these columns are as free as any other
        columns = _load_images(columns, folder=folder, location=row.location)
    for column, value in columns.items():
        if (foreign := find_foreign(value)) is not None:
            raise ConfigError(
                f"{row.location}: column {column!r} holds {foreign}, which is not a JSON value; write it as "
                "text or a number, or leave the column out"
            )
    kinds = [kind for kind in KINDS if columns.get(kind) is not None]
    if len(kinds) != 1:
        summary = (
            f"it has {_join_names(kinds)}" if kinds else f"its columns are {_join_names(columns) or 'none'}"
        )
        raise ConfigError(f"{row.location}: a row has exactly one of {_join_names(KINDS)}, and {summary}")
    (kind,) = kinds
    if kind == "messages":
        _check_messages(columns[kind], location=row.location)
    else:
        _check_text(columns[kind], location=f"{row.location}: {kind}")
    return kind, {name: value for name, value in columns.items() if name not in KINDS or name == kind}


def _check_fields(columns: Mapping[str, object], *, spec: EnvSpec, location: str) -> None:
    try:
        spec.check_fields(columns)
    except ConfigError as error:
        raise ConfigError(f"{location}: {error}") from None


def _check_messages(messages: object, *, location: str) -> None:
    if not isinstance(messages, list) or not messages:
        raise ConfigError(
            f"{location}: messages is {_show_value(messages)}; give a list of at least one message"
        )
    for number, message in enumerate(messages):
        where = f"{location}: messages[{number}]"
        if not isinstance(message, dict):
            raise ConfigError(f"{where} is {_show_value(message)}; give an object with role and content")
        if message.get("role") not in ROLES:
            raise ConfigError(f"{where}.role is {message.get('role')!r}; give one of {_join_names(ROLES)}")
        _check_text(message.get("content"), location=f"{where}.content")
        extra_keys = [
            key for key, value in message.items() if key not in ("role", "content") and value is not None
        ]
        if extra_keys:
            raise ConfigError(
                f"{where} has {_join_names(extra_keys)}; a message is its role and its content, as text"
            )
    if messages[-1]["role"] != "user":
        raise ConfigError(
            f"{location}: messages ends with one of role {messages[-1]['role']!r}; the last one is "
            "the user's, which is to be answered"
        )


def _load_images(columns: Mapping[str, Any], *, folder: Path, location: str) -> dict[str, Any]:
    """`columns` with images instead of file names, so that an item is complete and changes with its files."""
    single, several = IMAGE_FIELDS
    loaded_columns = {**columns}
    if loaded_columns.get(single) is not None:
        loaded_columns[single] = _load_image(
            loaded_columns[single], folder=folder, location=f"{location}: {single}"
        )
    if loaded_columns.get(several) is not None:
        if not isinstance(loaded_columns[several], list):
            raise ConfigError(
                f"{location}: {several} is {_show_value(loaded_columns[several])}; give a list of images"
            )
        loaded_columns[several] = [
            _load_image(source, folder=folder, location=f"{location}: {several}[{number}]")
            for number, source in enumerate(loaded_columns[several])
        ]
    return loaded_columns


def _load_image(source: object, *, folder: Path, location: str) -> str:
    try:
        match source:
            case str():
                image = Image.read(source, folder=folder)
            case {"bytes": bytes(data)}:  # of Parquet, as Hugging Face writes it
                image = Image.recognize(data)
            case PIL.Image.Image():  # of Hugging Face's datasets
                image = Image(_png(source), "image/png")
            case _:
                raise ConfigError(
                    f"{location} is {_show_value(source)}; give a file's path, or data:MEDIA_TYPE;base64,…"
                )
        check_image(image)
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from None
    return image.data_uri


def _png(image: PIL.Image.Image) -> bytes:
    file = io.BytesIO()
    image.convert("RGB").save(file, "PNG")
    return file.getvalue()


def _check_text(value: object, *, location: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{location} is {_show_value(value)}; give text")


def _find_item(item_id: str, known_items: Mapping[str, Item], *, location: str, spec: EnvSpec) -> Item:
    if spec.make_item is not None:
        env, _, number = item_id.rpartition("_")
        if env != spec.name or not number.isdecimal():
            raise ConfigError(
                f"{location}: item_id {item_id!r} is none of {spec.name}; write {spec.name}_NUMBER"
            )
        try:
            item = spec.make_item(int(number))
        except ConfigError as error:
            raise ConfigError(f"{location}: {error}") from None
        if item.item_id != item_id:  # 007
            raise ConfigError(f"{location}: item_id {item_id!r} is {item.item_id}; write it so")
        return item
    if item_id not in known_items:
        raise ConfigError(
            f"{location}: item_id {item_id!r} is none of the {len(known_items)} items of {spec.name}; "
            f"{suggest(item_id, known_items)}".rstrip("; ")
        )
    return known_items[item_id]


def _explain_kind(kind: str, *, env: str) -> str:
    if kind == "item_id":
        return f"{kind}, but environment {env!r} has no items of its own; give question or messages"
    return f"{kind}, but environment {env!r} has items of its own; give item_id, or env: question"


def _metadata(value: object, *, location: str) -> Mapping[str, object]:
    """The metadata of a row without its nulls, which Parquet writes for missing values."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(
            f"{location}: metadata is {_show_value(value)}; give an object of numbers and texts"
        )
    for key, fact in value.items():
        if isinstance(fact, list | dict):
            raise ConfigError(f"{location}: metadata.{key} is {_show_value(fact)}; give a number or a text")
    return {key: fact for key, fact in value.items() if fact is not None}


def _content(item: Item) -> str:
    """A key that is equal for items with the same prompt."""
    if "question" in item.fields:
        messages = [{"role": "user", "content": item.fields["question"]}]
    elif "messages" in item.fields:
        messages = item.fields["messages"]
    else:
        return item.item_id
    texts = [[message["role"], message["content"].strip()] for message in messages]
    return json.dumps([texts, item.image_sources])


def _join_names(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(str, names))


def _show_value(value: object) -> str:
    return "not there" if value is None else f"a {type(value).__name__}, {repr(value)[:60]}"
