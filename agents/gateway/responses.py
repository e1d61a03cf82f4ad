"""Requests of OpenAI's Responses API: validation, and translation into requests to the policy.

Its items are merged into the messages of chat completions, so that both protocols have the same
conversations.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from agents.gateway.bodies import Strict, validate
from agents.gateway.content import AnyContent, Content
from agents.gateway.conversation import ChatTurn, Tool, WrittenCall, canonical
from agents.gateway.errors import RequestRejected
from agents.gateway.generation import Auto, GenerationRequest, Tools
from agents.gateway.requests import ROLES, check_format
from agents.gateway.response_store import ResponseStore


class MessageItem(BaseModel):
    """A message. Clients send back whatever they received, so unknown fields are no errors."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: AnyContent


class CallItem(BaseModel):
    """A call by the policy."""

    type: Literal["function_call"]
    name: str
    arguments: str


class OutputItem(BaseModel):
    """The output of a call."""

    type: Literal["function_call_output"]
    output: AnyContent = Content()


_ITEMS: dict[str, type[MessageItem | CallItem | OutputItem]] = {
    "message": MessageItem,
    "function_call": CallItem,
    "function_call_output": OutputItem,
}


class FunctionTool(Strict):
    """A tool that the policy may call."""

    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """As in chat completions: no grammar is enforced."""

    @property
    def schema_shown(self) -> Tool:
        """As chat completions have it, and chat templates take it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {
            "type": "function",
            "function": {key: value for key, value in function.items() if value is not None},
        }


class NamedFunction(Strict):
    """A choice of one tool."""

    type: Literal["function"]
    name: str


class Format(BaseModel):
    """The form of an answer, of which there is one."""

    type: Literal["text", "json_object", "json_schema"]


class Text(Strict):
    """How answers are written."""

    format: Format = Format(type="text")
    verbosity: None = None


class Reasoning(Strict):
    """Options of reasoning, none of which can be set."""

    effort: None = None
    summary: None = None
    generate_summary: None = None


class StreamOptions(Strict):
    """How a stream is sent."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(Strict):
    """Body of `POST /v1/responses`. Fields with a single value exist for clients that send it."""

    model: str
    input: str | list[dict[str, Any]] = Field(min_length=1)
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool] = Field(default=[])
    tool_choice: Auto | NamedFunction = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    text: Text = Text()
    reasoning: Reasoning = Reasoning()
    store: bool = True
    """Whether a later request of the session may name this one's answer as its `previous_response_id`."""
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    background: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"
    include: list[str] = Field(default=[], max_length=0)
    top_logprobs: Literal[0] = 0
    service_tier: Literal["auto", "default"] = "auto"
    user: str | None = None
    """No effect on answers, nor have the three below."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    def to_generation(self, store: ResponseStore) -> GenerationRequest:
        """The request to the policy; `store`: answers that it may continue. Raises `RequestRejected`."""
        check_format(self.text.format.type, param="text.format.type")
        before = store.history(self.previous_response_id) if self.previous_response_id is not None else ()
        system = [ChatTurn("system", self.instructions)] if self.instructions is not None else []
        messages = [ChatTurn("user", self.input)] if isinstance(self.input, str) else _messages(self.input)
        if messages[-1].role == "assistant":
            why = "the last item is the assistant's; end with the one that it is to answer"
            raise RequestRejected(400, why, param=f"input[{len(self.input) - 1}]")
        choice = self.tool_choice
        function = choice.name if isinstance(choice, NamedFunction) else None
        return GenerationRequest(
            model=self.model,
            messages=[*system, *before, *messages],
            tools=Tools.choose(
                [tool.schema_shown for tool in self.tools],
                choice="auto" if isinstance(choice, NamedFunction) else choice,
                named_function=function,
            ),
            one_call=function is not None or not self.parallel_tool_calls,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
        )

    def history_after(self, generation: GenerationRequest, answer: ChatTurn) -> Sequence[ChatTurn]:
        """The history for requests that continue `answer`; instructions hold for one request only."""
        return [*generation.messages[self.instructions is not None :], answer]


def _messages(items: Sequence[dict[str, Any]]) -> list[ChatTurn]:
    """One message for a message of the policy and the calls that follow it."""
    messages: list[ChatTurn] = []
    speaking = False  # whether calls that follow belong to the last message
    for position, data in enumerate(items):
        field = f"input[{position}]"
        kind = data.get("type", "message")
        if kind not in _ITEMS:
            raise RequestRejected(
                400, f"{field}: items of type {kind!r} are not supported", param=f"{field}.type"
            )
        item = validate(_ITEMS[kind], data, parent=field)
        if isinstance(item, CallItem):
            turn = messages.pop() if speaking else ChatTurn("assistant", "")
            call = WrittenCall(item.name, canonical(item.arguments))
            messages.append(ChatTurn("assistant", turn.content, (*turn.calls, call)))
            speaking = True
        elif isinstance(item, OutputItem):
            messages.append(ChatTurn("tool", item.output.text, (), item.output.images))
            speaking = False
        else:
            if item.role == "assistant" and item.content.images:
                why = "the policy cannot send images itself; send them as the user's"
                raise RequestRejected(400, why, param=f"{field}.content")
            messages.append(ChatTurn(ROLES[item.role], item.content.text, (), item.content.images))
            speaking = item.role == "assistant"
    return messages
