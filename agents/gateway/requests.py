"""Requests for chat completions: validation, and translation into requests to the policy."""

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from agents.gateway.bodies import Strict, present
from agents.gateway.content import AnyContent, Content
from agents.gateway.conversation import ChatTurn, Tool, WrittenCall, canonical
from agents.gateway.errors import RequestRejected
from agents.gateway.generation import Auto, GenerationRequest, Stop, Tools
from envs.types import Role

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


class CalledFunction(BaseModel):
    """The function of a call."""

    name: str
    arguments: str


class Call(BaseModel):
    """A call in an assistant's message."""

    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message. Frameworks send back whatever they received and more, so unknown fields are no errors."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: AnyContent = Content()
    tool_calls: list[Call] = []
    function_call: None = None
    """The form of calls before tools."""

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: object) -> object:
        return present(data)

    @property
    def as_turn(self) -> ChatTurn:
        """In the form in which conversations are compared."""
        calls = tuple(
            WrittenCall(call.function.name, canonical(call.function.arguments)) for call in self.tool_calls
        )
        return ChatTurn(ROLES[self.role], self.content.text, calls, self.content.images)


class Function(Strict):
    """A tool's description."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = Field(default=None, exclude=True)
    """Frameworks set it by themselves. No grammar is enforced; the policy is shown the schema."""


class ChatTool(Strict):
    """A tool that the policy may call."""

    type: Literal["function"]
    function: Function

    @property
    def schema_shown(self) -> Tool:
        """As the chat template takes it."""
        return self.model_dump(exclude_none=True)


class FunctionName(Strict):
    """Of the tool that is to be called."""

    name: str


class ChosenFunction(Strict):
    """A choice of one tool."""

    type: Literal["function"]
    function: FunctionName


class StreamOptions(Strict):
    """How a stream is sent."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class ResponseFormat(BaseModel):
    """The form of an answer, of which there is one: see `check_format`."""

    type: Literal["text", "json_object", "json_schema"]


class ChatRequest(Strict):
    """Body of `POST /v1/chat/completions`. Fields with a single value exist for clients that send it."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[ChatTool] = Field(default=[])
    tool_choice: Auto | ChosenFunction = "auto"
    parallel_tool_calls: bool = True
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    """Not OpenAI's: vLLM's. 0 keeps all."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    response_format: ResponseFormat | None = None
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    logprobs: Literal[False] = False
    stop: Stop = Field(default=[])
    store: Literal[False] = False
    user: str | None = None
    """No effect on answers, nor has `metadata`."""
    metadata: dict[str, str] | None = None

    def to_generation(self) -> GenerationRequest:
        """The request to the policy. Raises `RequestRejected`."""
        if self.response_format is not None:
            check_format(self.response_format.type, param="response_format.type")
        if self.messages[-1].role == "assistant":
            last = f"messages[{len(self.messages) - 1}]"
            why = "the last message is the assistant's; end with the message that it is to answer"
            raise RequestRejected(400, why, param=f"{last}.role")
        for position, message in enumerate(self.messages):
            if message.role == "assistant" and message.content.images:
                why = "the policy cannot send images itself; send them as the user's"
                raise RequestRejected(400, why, param=f"messages[{position}].content")
        choice = self.tool_choice
        function = choice.function.name if isinstance(choice, ChosenFunction) else None
        return GenerationRequest(
            model=self.model,
            messages=[message.as_turn for message in self.messages],
            tools=Tools.choose(
                [tool.schema_shown for tool in self.tools],
                choice="auto" if isinstance(choice, ChosenFunction) else choice,
                named_function=function,
            ),
            one_call=function is not None or not self.parallel_tool_calls,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            stop=tuple(self.stop),
        )


def check_format(kind: str, *, param: str) -> None:
    """Raise `RequestRejected` for a form of answers that only a grammar could hold the policy to."""
    if kind != "text":
        raise RequestRejected(
            400,
            f"{kind!r}: sampling has no grammar that could hold the policy to JSON; ask for it in a message, "
            "or as the arguments of a tool that tool_choice names, and check what comes",
            param=param,
        )
