"""The body of a request to OpenAI's Responses API, checked, and what it asks of the policy.

Its items are put together into the messages that chat completions have, so that a conversation is the same by
either protocol.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from agents.gateway.bodies import Strict, validated
from agents.gateway.content import AnyContent, Content
from agents.gateway.conversation import Said, Tool, WrittenCall, canonical
from agents.gateway.errors import RequestRejected
from agents.gateway.generation import Auto, Tools, Wanted
from agents.gateway.requests import ROLES, check_format
from agents.gateway.response_store import Kept


class MessageItem(BaseModel):
    """A message, of whoever's. Clients send back all that they were told, so further fields are no errors."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: AnyContent


class CallItem(BaseModel):
    """A call of the policy's."""

    type: Literal["function_call"]
    name: str
    arguments: str


class OutputItem(BaseModel):
    """What came of a call."""

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
    """How the policy thinks, which is its own affair."""

    effort: None = None
    summary: None = None
    generate_summary: None = None


class StreamOptions(Strict):
    """How a stream is sent."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(Strict):
    """Body of `POST /v1/responses`. Fields with one value only are there for clients that send it."""

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
    """Whom the client plays for; it has no effect on answers, nor have the three below."""
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: dict[str, str] | None = None

    def wanted(self, kept: Kept) -> Wanted:
        """What it asks for; `kept` has the answers that it may go on from. Raises `Refused`."""
        check_format(self.text.format.type, param="text.format.type")
        before = kept.before(self.previous_response_id) if self.previous_response_id is not None else ()
        told = [Said("system", self.instructions)] if self.instructions is not None else []
        given = [Said("user", self.input)] if isinstance(self.input, str) else _messages(self.input)
        if given[-1].role == "assistant":
            why = "the last item is the assistant's; end with the one that it is to answer"
            raise RequestRejected(400, why, param=f"input[{len(self.input) - 1}]")
        choice = self.tool_choice
        named = choice.name if isinstance(choice, NamedFunction) else None
        return Wanted(
            model=self.model,
            messages=[*told, *before, *given],
            tools=Tools.of(
                [tool.schema_shown for tool in self.tools],
                choice="auto" if isinstance(choice, NamedFunction) else choice,
                named=named,
            ),
            one_call=named is not None or not self.parallel_tool_calls,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
        )

    def stored(self, wanted: Wanted, answer: Said) -> Sequence[Said]:
        """What a request that goes on from `answer` goes on from; instructions hold for one request."""
        return [*wanted.messages[self.instructions is not None :], answer]


def _messages(items: Sequence[dict[str, Any]]) -> list[Said]:
    """A message of the policy's and the calls that follow it are one message."""
    messages: list[Said] = []
    speaking = False  # whether calls that follow belong to the last message
    for place, data in enumerate(items):
        within = f"input[{place}]"
        kind = data.get("type", "message")
        if kind not in _ITEMS:
            raise RequestRejected(
                400, f"{within}: items of type {kind!r} are not supported", param=f"{within}.type"
            )
        item = validated(_ITEMS[kind], data, within=within)
        if isinstance(item, CallItem):
            said = messages.pop() if speaking else Said("assistant", "")
            call = WrittenCall(item.name, canonical(item.arguments))
            messages.append(Said("assistant", said.content, (*said.calls, call)))
            speaking = True
        elif isinstance(item, OutputItem):
            messages.append(Said("tool", item.output.text, (), item.output.images))
            speaking = False
        else:
            if item.role == "assistant" and item.content.images:
                why = "the policy shows no pictures itself; send them as the user's"
                raise RequestRejected(400, why, param=f"{within}.content")
            messages.append(Said(ROLES[item.role], item.content.text, (), item.content.images))
            speaking = item.role == "assistant"
    return messages
