"""Requests for chat completions: validation, and translation into requests to the policy."""

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from agents.gateway.bodies import (
    AnswerRequest,
    Function,
    FunctionType,
    MessageLimit,
    Part,
    StreamOptions,
    Strict,
    TextFormat,
    TextMessage,
)
from agents.gateway.conversation import ChatTurn, WrittenCall, canonical
from agents.gateway.generation import Auto, GenerationRequest, Stop
from envs.network.server import RequestRejected


class FunctionCall(Part):
    """The function of a call."""

    name: str
    arguments: str


class AssistantCall(Part):
    """A call in an assistant's message."""

    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(TextMessage):
    """A message, which may have calls."""

    tool_calls: list[AssistantCall] = Field(default=[])
    function_call: None = None
    """The form of calls before tools."""

    @property
    def as_turn(self) -> ChatTurn:
        functions = [call.function for call in self.tool_calls]
        calls = tuple(WrittenCall(function.name, canonical(function.arguments)) for function in functions)
        return replace(super().as_turn, calls=calls)


class ChatTool(FunctionType):
    """A tool that the policy may call."""

    function: Function


class FunctionName(Strict):
    """The name of the tool that is to be called."""

    name: str


class ChosenFunction(FunctionType):
    """A choice of one tool."""

    function: FunctionName


class ChatStreamOptions(StreamOptions):
    """How a stream of chat completions is sent."""

    include_usage: bool = False


class ChatRequest(AnswerRequest):
    """Body of `POST /v1/chat/completions`. Fields with a single value exist for clients that send it."""

    messages: Annotated[list[ChatMessage], Field(min_length=1), MessageLimit]
    tools: list[ChatTool] = Field(default=[])
    tool_choice: Auto | ChosenFunction = "auto"
    top_k: int | None = Field(default=None, ge=0)
    """A parameter of vLLM's, not of OpenAI's. 0 keeps all."""
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    n: int = Field(default=1, ge=1, le=1)
    stream_options: ChatStreamOptions = ChatStreamOptions()
    response_format: TextFormat = TextFormat()
    frequency_penalty: float = Field(default=0, ge=0, le=0)
    presence_penalty: float = Field(default=0, ge=0, le=0)
    logit_bias: dict[str, float] = Field(default={}, max_length=0)
    modalities: list[Literal["text"]] = Field(default=["text"])
    logprobs: Literal[False] = False
    stop: Stop = Field(default=[])
    store: Literal[False] = False

    def to_generation(self) -> GenerationRequest:
        """The request to the policy. Raises `RequestRejected`."""
        choice = self.tool_choice
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            why = f"max_tokens is {self.max_tokens} and max_completion_tokens {self.max_completion_tokens}"
            raise RequestRejected(400, f"{why}; send one of them", param="max_tokens")
        return self._generation(
            [message.as_turn for message in self.messages],
            last=f"messages[{len(self.messages) - 1}].role",
            functions=[tool.function for tool in self.tools],
            choice="auto" if isinstance(choice, ChosenFunction) else choice,
            named_function=choice.function.name if isinstance(choice, ChosenFunction) else None,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            top_k=self.top_k,
            stop=self.stop,
        )
