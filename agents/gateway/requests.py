"""Bodies of requests, checked: what is not supported is refused with the field's name, never passed over."""

from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import from_json

from agents.gateway.conversation import Conversation, Said, WrittenCall, canonical
from agents.gateway.refused import Refused
from envs.types import Item, Role

M = TypeVar("M", bound=BaseModel)

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class CalledFunction(BaseModel):
    """Of a call that an assistant's message has."""

    name: str
    arguments: str


class Call(BaseModel):
    """A call in an assistant's message."""

    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message. Frameworks send back all that they were told and more, so further fields are no errors."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[Call] = []
    function_call: None = None
    """The form of calls before tools."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return _present(data)

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: object) -> object:
        if not isinstance(content, list):
            return content
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) < len(texts):
            raise ValueError("only parts of type 'text' are supported; send no images, audio or files")
        return "\n".join(strings)

    @property
    def said(self) -> Said:
        """As conversations are compared."""
        calls = tuple(
            WrittenCall(call.function.name, canonical(call.function.arguments)) for call in self.tool_calls
        )
        return Said(_ROLES[self.role], self.content, calls)


class Function(_Strict):
    """A tool's description."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, exclude=True)
    """Frameworks set it by themselves. No grammar is enforced; the policy is shown the schema."""


class ChatTool(_Strict):
    """A tool that the policy may call."""

    type: Literal["function"]
    function: Function


class StreamOptions(_Strict):
    """How a stream is sent."""

    include_usage: bool = False


class TextFormat(_Strict):
    """The one form of answers that there is."""

    type: Literal["text"]


class ChatRequest(_Strict):
    """Body of `POST /v1/chat/completions`. Fields with one value only are there for clients that send it."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] = []
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: Literal[True] = True
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    """Not OpenAI's: vLLM's. 0 keeps all."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: TextFormat | None = None
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    logprobs: Literal[False] = False
    stop: list[str] = Field(default=[], max_length=0)
    store: Literal[False] = False
    user: str | None = None
    """Whom the client plays for; it has no effect on answers, nor has `metadata`."""
    metadata: dict[str, str] | None = None

    @property
    def wanted_tokens(self) -> int | None:
        """Of the completion, where the request says it."""
        return self.max_completion_tokens or self.max_tokens

    def conversation(self) -> Conversation:
        """What is shown to the policy. Raises `Refused`."""
        names = [tool.function.name for tool in self.tools]
        if len(set(names)) < len(names):
            raise Refused(400, f"tools are called {names}; give each a name of its own", param="tools")
        if self.messages[-1].role == "assistant":
            last = f"messages[{len(self.messages) - 1}]"
            why = "the last message is the assistant's; end with the message that it is to answer"
            raise Refused(400, why, param=f"{last}.role")
        shown = self.tools if self.tool_choice == "auto" else []
        return Conversation(
            messages=[message.said for message in self.messages],
            tools=[tool.model_dump(exclude_none=True) for tool in shown],
        )


class ItemBody(_Strict):
    """What an episode is about."""

    item_id: str = Field(min_length=1)
    env: str = "program"
    seed: int = 0
    metadata: dict[str, Any] = {}
    fields: dict[str, Any] = {}

    @property
    def item(self) -> Item:
        """The domain's."""
        return Item(**self.model_dump())


class OpenSession(_Strict):
    """Body of `POST /sessions`."""

    item: ItemBody
    chain: int = Field(default=0, ge=0)
    max_turns: int | None = Field(default=None, ge=1)
    metadata: dict[str, float | str | bool] = {}
    """Kept among the trajectory's metrics."""


class EndSession(_Strict):
    """Body of `POST /sessions/{id}/end`."""

    reward: float = Field(default=0.0, allow_inf_nan=False)
    success: bool = False


def read(model: type[M], raw: bytes) -> M:
    """A body as a model; an empty one is an empty object. Raises `Refused` 400 that names the first wrong
    field; a field that is null is one that was left out."""
    try:
        data = from_json(raw, allow_inf_nan=False) if raw else {}
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    try:
        return model.model_validate(_present(data))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
        param = param.removeprefix(".")
        why = first["msg"]
        if first["type"] == "extra_forbidden":
            why = "it is not supported; leave it out"
        raise Refused(
            400, f"{param or 'the body'}: {why} (it was {first['input']!r:.80})", param=param
        ) from None


def _present(data: object) -> object:
    return {k: v for k, v in data.items() if v is not None} if isinstance(data, dict) else data
