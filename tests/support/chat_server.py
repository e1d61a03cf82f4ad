"""A server that speaks OpenAI's protocol: it keeps its rules, remembers what was asked and says what a test
tells it to. It runs in a thread of its own, so that whoever asks may block."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Body = dict[str, Any]
Script = Callable[[Body], "Body | web.Response"]
"""From a request's body to the message of the reply, or to a response of another kind."""


def says(content: str | None, **more: Any) -> Body:
    return {"role": "assistant", "content": content, **more}


def calls(*wanted: tuple[str, Any], content: str | None = None) -> Body:
    """A message that calls tools: names, and arguments as JSON or as the text that stands in its place."""
    return says(
        content,
        tool_calls=[
            {
                "id": f"id{place}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for place, (name, arguments) in enumerate(wanted)
        ],
    )


def fails(status: int, text: str, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": text}}, status=status, headers=headers)


@dataclass
class ChatServer:
    """See `chat_server`."""

    script: Script
    key: str | None = None
    models: Sequence[str] = ("toy",)
    tokens: Callable[[Body], int | None] = lambda body: None
    """Of prompt and completion, as it reports them."""
    url: str = ""
    asked: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    async def listed(self, request: web.Request) -> web.Response:
        refused = self._refused(request)
        return refused or web.json_response({"data": [{"id": model} for model in self.models]})

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        refused = self._refused(request)
        if refused is not None:
            return refused
        if body["model"] not in self.models:
            return fails(404, f"The model `{body['model']}` does not exist.")
        if broken := broken_rule(body["messages"]):
            return fails(400, broken)
        said = self.script(body)
        if isinstance(said, web.Response):
            return said
        reply: Body = {"choices": [{"message": said, "finish_reason": said.pop("finish", "stop")}]}
        if (total := self.tokens(body)) is not None:
            reply["usage"] = {"total_tokens": total}
        return web.json_response(reply)

    def _refused(self, request: web.Request) -> web.Response | None:
        if self.key is None or request.headers.get("Authorization") == f"Bearer {self.key}":
            return None
        return fails(401, "Incorrect API key provided.")


def broken_rule(messages: Sequence[Mapping[str, Any]]) -> str | None:
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
    loop = asyncio.new_event_loop()
    ready = threading.Event()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_get("/v1/models", server.listed)
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    def serve() -> None:
        loop.run_until_complete(start())
        loop.call_soon(ready.set)  # not before: a stop that comes during `start` would end only that
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def in_turn(*said: "Body | web.Response") -> Script:
    """One after the other, whoever asks; the last is for ever. A response is sent once only."""
    left = list(said)

    def script(_: Body) -> "Body | web.Response":
        next_one = left.pop(0) if len(left) > 1 else left[0]
        return dict(next_one) if isinstance(next_one, dict) else next_one

    return script
