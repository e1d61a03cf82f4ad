"""Bodies of requests: how they are validated, and those that open and end sessions.

Unsupported fields are rejected by name, never ignored. The bodies that ask for answers are in
`requests.py` (chat completions) and `responses.py` (responses).
"""

import re
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from agents.gateway.errors import RequestRejected
from agents.types import Label
from envs.types import Item

M = TypeVar("M", bound=BaseModel)

_BRANCH = re.compile(r"literal\[.*|list\[.*|str|(?:Chosen|Named)Function")
"""Parts of an error's location that name the alternative of a union."""


class Strict(BaseModel):
    """A body, or a part of one, that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


class ItemBody(Strict):
    """The item of an episode."""

    item_id: str = Field(min_length=1)
    env: str = "program"
    seed: int = 0
    metadata: dict[str, Any] = {}
    fields: dict[str, Any] = {}

    @property
    def item(self) -> Item:
        """As an `Item`."""
        return Item(**self.model_dump())


class OpenSession(Strict):
    """Body of `POST /sessions`."""

    item: ItemBody
    sample_index: int = Field(default=0, ge=0)
    max_turns: int | None = Field(default=None, ge=1)
    metadata: dict[str, Label] = {}
    """Becomes the trajectory's labels."""


class EndSession(Strict):
    """Body of `POST /sessions/{id}/end`."""

    reward: float = Field(default=0.0, allow_inf_nan=False)
    success: bool = False


def read(model: type[M], raw: bytes) -> M:
    """A body as a model; an empty one is an empty object. Raises `RequestRejected` 400 that names the first
    wrong field; a null field counts as missing."""
    try:
        data = from_json(raw, allow_inf_nan=False) if raw else {}
    except ValueError as error:
        raise RequestRejected(400, f"the body is not JSON: {error}") from None
    return validate(model, data)


def validate(model: type[M], data: object, *, parent: str = "") -> M:
    """`data` as a model, with the errors of `read`. `parent`: the field of `data`, e.g. `input[2]`."""
    try:
        return model.model_validate(present(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        parts = [part for part in first["loc"] if not _BRANCH.fullmatch(str(part))]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
        param = f"{parent}{path}".removeprefix(".")
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            why = "it is not supported; leave it out"
        raise RequestRejected(
            400, f"{param or 'the body'}: {why} (it was {first['input']!r:.80})", param=param
        ) from None


def present(data: object) -> object:
    """`data` without its null fields."""
    return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data
