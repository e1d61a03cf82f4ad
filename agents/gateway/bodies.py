"""Bodies of requests: how they are validated, those of sessions, and what both of OpenAI's protocols share.

Unsupported fields are rejected by name, never ignored. The bodies that ask for answers are in
`requests.py` (chat completions) and `responses.py` (responses).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from agents.gateway.conversation import ChatTurn, Tool
from agents.gateway.generation import Auto, GenerationRequest, Tools
from agents.gateway.limits import MAX_MESSAGES
from agents.prompting.images import check_image
from agents.types import Label
from envs.network.server import RequestRejected
from envs.types import Image, Item

M = TypeVar("M", bound=BaseModel)

_TEXTS = ("text", "input_text", "output_text")
_IMAGES = ("image_url", "input_image")
_BRANCH = re.compile(r"literal\[.*|list\[.*|str|(?:Chosen|Named)Function")
"""Parts of an error's location that name the alternative of a union."""


class Part(BaseModel):
    """A body, or a part of one, in which a null field counts as missing. No value is converted: `true` is no
    number, and `"0.5"` neither."""

    model_config = ConfigDict(strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data


class Strict(Part):
    """A body, or a part of one, that rejects unknown fields."""

    model_config = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True)
class Content:
    """The content of one message; images are data: URLs."""

    text: str = ""
    images: tuple[Image, ...] = ()
    """The images in order; shown before the text, wherever they stood among the parts."""


def _content(value: object) -> Content:
    if isinstance(value, Content):
        return value
    if isinstance(value, str):
        return Content(value)
    if not isinstance(value, list):
        raise ValueError("it is neither text nor a list of parts")
    parts = [_part(part) for part in value]
    return Content(
        "\n".join(part for part in parts if isinstance(part, str)),
        tuple(part for part in parts if isinstance(part, Image)),
    )


def _part(part: object) -> str | Image:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(part, Mapping) or kind not in (*_TEXTS, *_IMAGES):
        raise ValueError(f"a part of type {kind!r} is not supported; send text and images only")
    if kind in _TEXTS:
        if not isinstance(part.get("text"), str):
            raise ValueError("a part of text has no text")
        return str(part["text"])
    source: Any = part.get("image_url")
    detail = part.get("detail")
    if isinstance(source, Mapping):  # chat completions; in responses it is the URL itself
        source, detail = source.get("url"), source.get("detail")
    if detail not in (None, "auto"):
        raise ValueError(f"detail {detail!r} of an image is not supported; leave it out")
    if not isinstance(source, str):
        raise ValueError("an image has no image_url")
    if not source.startswith("data:"):
        raise ValueError(f"{source[:60]!r}: nothing is downloaded; send the image as a data: URL")
    image = Image.read(source)
    try:
        check_image(image)
    except ValueError as error:
        raise ValueError(f"{source[:40]!r} {error}") from None
    return image


AnyContent = Annotated[Content, BeforeValidator(_content)]
"""Text, or a list of parts; images must be data: URLs."""


def _check_count(messages: object) -> object:
    if isinstance(messages, list) and len(messages) > MAX_MESSAGES:
        raise ValueError(
            f"{len(messages)} are too many for one request, which may have {MAX_MESSAGES}; send a shorter "
            "conversation"
        )
    return messages


MessageLimit = BeforeValidator(_check_count)
"""Refuses a request of more than `MAX_MESSAGES` messages before any is read."""


class ItemBody(Strict):
    """The item of an episode."""

    item_id: str = Field(min_length=1)
    env: str = "program"
    seed: int = 0
    metadata: dict[str, object] = {}
    fields: dict[str, object] = {}

    @property
    def item(self) -> Item:
        """The body as an `Item`."""
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

    reward: float = Field(allow_inf_nan=False)  # without a default: a reward that was forgotten is no 0
    success: bool = False


class TextMessage(Part):
    """A message. Clients send back whatever they received and more, so unknown fields are no errors."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: AnyContent = Content()

    @field_validator("content")
    @classmethod
    def _check_images(cls, content: Content, info: ValidationInfo) -> Content:
        if content.images and info.data.get("role") == "assistant":
            raise ValueError("the policy cannot send images itself; send them as the user's")
        return content

    @property
    def as_turn(self) -> ChatTurn:
        """The message in the form in which conversations are compared."""
        role = "system" if self.role == "developer" else self.role
        return ChatTurn(role, self.content.text, (), self.content.images)


class FunctionType(Strict):
    """A tool or a choice of one: only functions are supported."""

    type: Literal["function"]


class Function(Strict):
    """The description of a tool that the policy may call."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None
    """Frameworks set it by themselves. No grammar is enforced; the policy is shown the schema."""

    @property
    def tool(self) -> Tool:
        """The function as chat templates take it."""
        shown_fields = {"name", "description", "parameters"}
        return {"type": "function", "function": self.model_dump(include=shown_fields, exclude_none=True)}


class TextFormat(Part):
    """The form of an answer, which can only be text."""

    type: Literal["text", "json_object", "json_schema"] = "text"

    @field_validator("type")
    @classmethod
    def _check_grammar(cls, kind: str) -> str:
        if kind != "text":
            raise ValueError(
                "sampling has no grammar that could hold the policy to JSON; ask for it in a message, or as "
                "the arguments of a tool that tool_choice names, and check what comes"
            )
        return kind


class StreamOptions(Strict):
    """How a stream is sent."""

    include_obfuscation: Literal[False] = False


class AnswerRequest(Strict):
    """The fields that requests of both protocols have."""

    model: str
    parallel_tool_calls: bool = True
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    stream: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=0)
    service_tier: Literal["auto", "default"] = "auto"
    user: str | None = None
    """No effect on answers, nor have `metadata`, `safety_identifier` and `prompt_cache_key`."""
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def _generation(
        self,
        messages: Sequence[ChatTurn],
        *,
        last: str,
        functions: Sequence[Function],
        choice: Auto,
        named_function: str | None,
        max_tokens: int | None,
        top_k: int | None = None,
        stop: Sequence[str] = (),
    ) -> GenerationRequest:
        """`last`: the field of the last message."""
        if messages[-1].role == "assistant":
            why = "the last message is the assistant's; end with the message that it is to answer"
            raise RequestRejected(400, why, param=last)
        tools = [function.tool for function in functions]
        return GenerationRequest(
            model=self.model,
            messages=messages,
            tools=Tools.choose(tools, choice=choice, named_function=named_function),
            one_call=named_function is not None or not self.parallel_tool_calls,
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=top_k,
            stop=tuple(stop),
        )


def read(model: type[M], raw: bytes) -> M:
    """A body as a model; an empty one is an empty object. Raises `RequestRejected` 400 that names the first
    wrong field."""
    try:
        data = from_json(raw, allow_inf_nan=False) if raw else {}
    except ValueError as error:
        raise RequestRejected(400, f"the body is not JSON: {error}") from None
    return validate(model, data)


def validate(model: type[M], data: object, *, parent: str = "") -> M:
    """`data` as a model, with the errors of `read`. `parent`: the field of `data`, e.g. `input[2]`."""
    try:
        return model.model_validate(data)
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
