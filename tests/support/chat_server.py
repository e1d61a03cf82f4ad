"""A server that speaks OpenAI's protocol: it keeps its rules, remembers what was asked and says what a test
tells it to. It runs in a thread of its own, so that whoever asks may block."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.http_server import serving_in_thread

Body = dict[str, Any]
Script = Callable[[Body], "Body | Response"]
"""From a request's body to the message of the reply, or to a response of another kind."""


def says(content: str | None, **more: object) -> Body:
    return {"role": "assistant", "content": content, **more}


def calls(*wanted: tuple[str, object], content: str | None = None) -> Body:
    """A message that calls tools: names, and arguments as JSON or as the text that stands in its place."""
    return says(
        content,
        tool_calls=[
            {
                "id": f"id{index}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for index, (name, arguments) in enumerate(wanted)
        ],
    )


def fails(status: int, text: str, **headers: str) -> Response:
    return JSONResponse({"error": {"message": text}}, status_code=status, headers=headers)


@dataclass
class ChatServer:
    """What the server of `chat_server` answers, and the requests that it has received."""

    script: Script
    key: str | None = None
    models: Sequence[str] = ("toy",)
    tokens: Callable[[Body], int | None] = lambda body: None
    """Of prompt and completion, as it reports them."""
    url: str = ""
    requests: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def list_models(self, request: Request) -> Response:
        refusal = self._find_refusal(request)
        return refusal or JSONResponse({"data": [{"id": model} for model in self.models]})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization"))
        refusal = self._find_refusal(request)
        if refusal is not None:
            return refusal
        if body["model"] not in self.models:
            return fails(404, f"The model `{body['model']}` does not exist.")
        if violation := broken_rule(body["messages"]):
            return fails(400, violation)
        answer = self.script(body)
        if isinstance(answer, Response):
            return answer
        reply: Body = {"choices": [{"message": answer, "finish_reason": answer.pop("finish", "stop")}]}
        if (total := self.tokens(body)) is not None:
            reply["usage"] = {"total_tokens": total}
        return JSONResponse(reply)

    def _find_refusal(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        return fails(401, "Incorrect API key provided.")


def broken_rule(messages: Sequence[Body]) -> str | None:
    """As OpenAI checks them: each call has its reply before anybody else speaks, and no reply is without."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return f"tool_call_id {message.get('tool_call_id')} answers no call"
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {waiting}"
        for call in message.get("tool_calls", []):
            if not isinstance(json.loads(call["function"]["arguments"]), dict):
                return "arguments are no object"
            waiting.add(call["id"])
    return f"calls without replies: {waiting}" if waiting else None


@contextmanager
def chat_server(script: Script, **facts: Any) -> Iterator[ChatServer]:
    """A `ChatServer` that listens while the context is open."""
    server = ChatServer(script, **facts)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", server.answer, methods=["POST"]),
            Route("/v1/models", server.list_models),
        ]
    )
    with serving_in_thread(app) as url:
        server.url = f"{url}/v1"
        yield server


def in_turn(*answer: "Body | Response") -> Script:
    """One after the other, whoever asks; the last is for ever. A response is sent once only."""
    left = list(answer)

    def script(_: Body) -> "Body | Response":
        next_one = left.pop(0) if len(left) > 1 else left[0]
        return dict(next_one) if isinstance(next_one, dict) else next_one

    return script
