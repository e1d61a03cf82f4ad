"""The base of every block of settings, how an invalid one is described, and blocks of endpoints and judges.

A block is declared once, beside the code that it is given to, and is the type of its block in
`pipelines.yaml` (`tasks/config/pipelines.py`). Configuration is read without importing `agents.rewards`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from envs.errors import ConfigError, list_names, suggest
from envs.files import read_path

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""The seed of every random number generator; steps are added to it."""
Seconds = Annotated[float, Field(gt=0)]


def _expand_path(path: Path) -> Path:
    try:
        return read_path(path)
    except ConfigError as error:  # pydantic adds the place to a ValueError alone
        raise ValueError(str(error)) from None


def _expand_folder(name: str) -> str:
    return str(_expand_path(Path(name))) if name.startswith("~") else name


UserPath = Annotated[Path, AfterValidator(_expand_path)]
"""A path that a user writes; `~` is the home folder."""
ModelName = Annotated[str, AfterValidator(_expand_folder)]
"""A model's folder, in which `~` is the home folder, or its name on a hub."""

_NO_NUMBER = "no_number"
"""The type of the error for a boolean in the place of a number."""


class Settings(BaseModel):
    """A block of settings: unknown keys, infinite numbers and booleans in place of numbers are errors, and
    values never change.

    Raises pydantic's `ValidationError`, a `ValueError`, for values out of bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _has_no_boolean_as_number(cls, values: object) -> object:
        """pydantic takes `true` for 1 and `false` for 0."""
        if isinstance(values, Mapping):
            for name in _numbers(cls):
                _refuse_boolean(values.get(name), place=name)
        return values


@cache
def _numbers(model: type[BaseModel]) -> list[str]:
    """The fields of `model` that hold numbers and neither booleans nor texts."""
    types = {name: set(_types(field.annotation)) for name, field in _fields(model).items()}
    return [name for name, kinds in types.items() if kinds & {int, float} and not kinds & {bool, str}]


def _types(annotation: object) -> Iterator[object]:
    """The types of values in `annotation`, those within unions and collections included; keys are texts."""
    inner = get_args(annotation)
    inner = inner[1:] if get_origin(annotation) in (dict, Mapping) else inner
    yield from chain.from_iterable(map(_types, inner)) if inner else [annotation]


def _refuse_boolean(value: object, *, place: str) -> None:
    """Raise pydantic's `PydanticCustomError` for a boolean in `value`, at `place` of its block."""
    if isinstance(value, bool):
        raise PydanticCustomError(
            _NO_NUMBER, "{place}: {value} is no number; give one", {"place": place, "value": str(value)}
        )
    inner: Mapping[object, object] = {}
    if isinstance(value, Mapping):
        inner = value
    elif isinstance(value, list | tuple):
        inner = dict(enumerate(value))
    for key, part in inner.items():
        _refuse_boolean(part, place=f"{place}.{key}")


def describe_invalid(
    error: ValidationError,
    model: type[BaseModel],
    *,
    location: str = "",
    others: Mapping[str, type[BaseModel]] = MappingProxyType({}),
) -> str:
    """One line for what is wrong with the block `model` at `location`: the key, and why it is refused.

    For an unknown key, it names a known one that is spelt like it, and the blocks of `model` that have it. If
    none has it and it stands in `model` itself, it names those of `others`, which could stand in the place
    of `model`, by name.
    """
    first, *rest = error.errors()
    where = ".".join([*filter(None, [location]), *map(str, first["loc"])])
    reason = first["msg"].removeprefix("Value error, ")
    if first["type"] == _NO_NUMBER:
        place, _, reason = reason.partition(": ")
        where = f"{where}.{place}" if where else place
    elif first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        hint = suggest(key, _keys_at(model, first["loc"]))
        if owners := _owners(key, model, others=others if len(first["loc"]) == 1 else {}):
            hint += f"{key!r} is a key of {list_names(owners)}"
        reason = f"unknown key; {hint}".rstrip("; ")
    elif first["type"] == "missing":
        reason = "this key is missing"
    elif first["type"] != "value_error":
        reason = f"{reason.replace('valid tuple', 'valid list')}, but it is {first['input']!r}"
    more = f" (and {len(rest)} more)" if rest else ""
    return f"{where}: {reason}{more}" if where else f"{reason}{more}"


def _keys_at(model: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """The keys that the block at `location` (without its last part) of `model` may have."""
    options: list[type[BaseModel]] = [model]
    in_dict = False
    for part in location[:-1]:
        if in_dict:  # `part` is a name that the user chose
            in_dict = False
            continue
        named_options = [o for o in options if part == getattr(o.model_fields.get("name"), "default", None)]
        if named_options:  # `part` is the name by which one of several blocks is chosen
            options = named_options
            continue
        field = _fields(options[0])[str(part)]
        in_dict = get_origin(field.annotation) is dict
        options = _blocks(field)
    return list(_fields(options[0]))


def _owners(key: str, model: type[BaseModel], *, others: Mapping[str, type[BaseModel]]) -> list[str]:
    """The blocks in `model` that have `key`; without any, those of `others`."""
    blocks = {
        name: _blocks(field)
        for name, field in _fields(model).items()
        if get_origin(field.annotation) is not dict  # else users choose the names of the blocks
    }
    inner = [name for name, options in blocks.items() if any(key in _fields(option) for option in options)]
    return inner or [name for name, other in others.items() if key in _fields(other)]


def _blocks(field: FieldInfo) -> list[type[BaseModel]]:
    """The types of block that `field` may have."""
    types = [field.annotation, *get_args(field.annotation)]
    return [t for t in types if isinstance(t, type) and issubclass(t, BaseModel)]


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of `model` by the names that users write."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


class EndpointSettings(Settings):
    """An OpenAI-compatible endpoint, and limits on its use (`agents.clients.endpoint.Endpoint`)."""

    url: str
    """Up to the version, e.g. `http://127.0.0.1:8000/v1`."""
    model: str
    key_from: str | None = None
    """Name of the environment variable that holds the key; no file holds the key itself."""
    request_timeout_s: Seconds = 60.0
    max_attempts: Positive = 5
    """The most attempts at one request, the first included."""
    requests_per_s: Annotated[float, Field(gt=0)] | None = None
    """The most requests per second of each process; None does not limit them."""
    max_concurrency: Positive = 16
    """Requests at the same time."""


class JudgeSettings(Settings):
    """How a judge is sampled, how its scores are read, and what it may cost."""

    min_score: float = 0.0
    max_score: float = 10.0
    """The range of scores, which is scaled to [0, 1]."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    reply_tokens: Positive = 1024
    max_requests: Positive | None = None
    max_tokens: Positive | None = None
    """The budget of each process or, with `store`, of all together; the run ends when it is spent."""
    store: UserPath | None = None
    """A file that keeps replies and spending, for all processes and later runs."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> "JudgeSettings":
        if self.min_score >= self.max_score:
            raise ValueError(
                f"scores from {self.min_score} to {self.max_score}; give a min_score below a max_score"
            )
        return self
