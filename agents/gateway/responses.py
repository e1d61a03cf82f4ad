"""Requests of OpenAI's Responses API: validation, and translation into requests to the policy.

Its items are merged into the messages of chat completions, so that both protocols have the same
conversations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from agents.gateway.bodies import (
    AnswerRequest,
    AnyContent,
    Content,
    Function,
    FunctionType,
    MessageLimit,
    Part,
    StreamOptions,
    Strict,
    TextFormat,
    TextMessage,
    validate,
)
from agents.gateway.conversation import ChatTurn, WrittenCall, canonical
from agents.gateway.generation import Auto, GenerationRequest
from envs.network.server import RequestRejected


class MessageItem(TextMessage):
    """A message."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: AnyContent


class CallItem(Part):
    """A call by the policy."""

    type: Literal["function_call"]
    name: str
    arguments: str


class OutputItem(Part):
    """The output of a call."""

    type: Literal["function_call_output"]
    output: AnyContent = Content()


_ITEMS: dict[str, type[MessageItem | CallItem | OutputItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
}


class FunctionTool(Function, FunctionType):
    """A tool that the policy may call."""


class NamedFunction(FunctionType):
    """A choice of one tool."""

    name: str


class Text(Strict):
    """How answers are written."""

    format: TextFormat = TextFormat()
    verbosity: None = None


class Reasoning(Strict):
    """Options of reasoning, none of which can be set."""

    effort: None = None
    summary: None = None
    generate_summary: None = None


class ResponsesRequest(AnswerRequest):
    """Body of `POST /v1/responses`. Fields with a single value exist for clients that send it."""

    input: Annotated[str | list[dict[str, object]], Field(min_length=1), MessageLimit]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool] = Field(default=[])
    tool_choice: Auto | NamedFunction = "auto"
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: Text = Text()
    reasoning: Reasoning = Reasoning()
    store: bool = True
    """Whether a later request of the session may name this one's answer as its `previous_response_id`."""
    stream_options: StreamOptions = StreamOptions()
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    include: list[str] = Field(default=[], max_length=0)

    def to_generation(self, histories: Mapping[str, Sequence[ChatTurn]] | None) -> GenerationRequest:
        """The request to the policy. `histories`: the session's conversations up to each answer, by the
        answer's id; None outside sessions. Raises `RequestRejected`."""
        system = [ChatTurn("system", self.instructions)] if self.instructions is not None else []
        messages = [ChatTurn("user", self.input)] if isinstance(self.input, str) else _messages(self.input)
        choice = self.tool_choice
        return self._generation(
            [*system, *self._history(histories), *messages],
            last=f"input[{len(self.input) - 1}]",
            functions=self.tools,
            choice="auto" if isinstance(choice, NamedFunction) else choice,
            named_function=choice.name if isinstance(choice, NamedFunction) else None,
            max_tokens=self.max_output_tokens,
        )

    def history_after(self, generation: GenerationRequest, answer: ChatTurn) -> Sequence[ChatTurn]:
        """The history for requests that continue `answer`; instructions hold for one request only."""
        return [*generation.messages[self.instructions is not None :], answer]

    def _history(self, histories: Mapping[str, Sequence[ChatTurn]] | None) -> Sequence[ChatTurn]:
        previous_id = self.previous_response_id
        if previous_id is None:
            return ()
        if histories is not None and previous_id in histories:
            return histories[previous_id]
        why = f"this session has no response {previous_id!r}, or it was not to be stored"
        if histories is None:
            why = "answers are not stored outside sessions; open one (docs/gateway.md)"
        why += ", or send the whole input"
        raise RequestRejected(400, why, param="previous_response_id", code="previous_response_not_found")


def _messages(items: Sequence[dict[str, object]]) -> list[ChatTurn]:
    """One message for a message of the policy and the calls that follow it."""
    messages: list[ChatTurn] = []
    takes_calls = False  # whether calls that follow belong to the last message
    for position, data in enumerate(items):
        field = f"input[{position}]"
        kind = data.get("type")
        kind = "message" if kind is None else kind
        if not isinstance(kind, str) or kind not in _ITEMS:
            why = f"{field}: items of type {kind!r} are not supported"
            raise RequestRejected(400, why, param=f"{field}.type")
        item = validate(_ITEMS[kind], data, parent=field)
        if isinstance(item, CallItem):
            turn = messages.pop() if takes_calls else ChatTurn("assistant", "")
            call = WrittenCall(item.name, canonical(item.arguments))
            messages.append(replace(turn, calls=(*turn.calls, call)))
        elif isinstance(item, OutputItem):
            messages.append(ChatTurn("tool", item.output.text, (), item.output.images))
        else:
            messages.append(item.as_turn)
        takes_calls = messages[-1].role == "assistant"
    return messages
