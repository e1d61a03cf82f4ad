"""Answers in the form of OpenAI's Responses API: in one piece, or as a stream of its events."""

import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from agents.gateway.policy import Answer
from agents.gateway.responses import ResponsesRequest
from agents.types import FinishReason


class ResponseAnswer:
    """An answer, of which either the body or the events are sent."""

    def __init__(self, answer: Answer, request: ResponsesRequest, *, created_at: float) -> None:
        """`created_at`: Unix time of the request, in seconds."""
        self.response_id = f"resp_{secrets.token_hex(24)}"
        """The name by which later requests continue it."""
        self._answer = answer
        self._request = request
        self._created_at = created_at
        self._cut = answer.completion.finish_reason is FinishReason.LENGTH
        self._output = list(self._items())

    def body(self) -> dict[str, object]:
        """The body of a `response`."""
        details = {"reason": "max_output_tokens"} if self._cut else None
        return {
            **self._head("incomplete" if self._cut else "completed", self._output),
            "completed_at": None if self._cut else int(time.time()),
            "incomplete_details": details,
            "usage": self._usage(),
        }

    def events(self) -> Iterator[str]:
        """The same as a stream. Samplers return whole completions, so all events come at once."""
        for number, (kind, event) in enumerate(self._events()):
            body = {"type": kind, "sequence_number": number, **event}
            yield f"event: {kind}\ndata: {json.dumps(body)}\n\n"

    def _events(self) -> Iterator[tuple[str, dict[str, object]]]:
        head = self._head("in_progress", [])
        yield "response.created", {"response": head}
        yield "response.in_progress", {"response": head}
        for index, item in enumerate(self._output):
            position = {"output_index": index}
            empty: dict[str, object] = {"content": []} if item["type"] == "message" else {"arguments": ""}
            empty_item = {**item, **empty, "status": "in_progress"}
            yield "response.output_item.added", {**position, "item": empty_item}
            yield from _item_events(item, {**position, "item_id": item["id"]})
            yield "response.output_item.done", {**position, "item": item}
        whole = self.body()
        yield f"response.{whole['status']}", {"response": whole}

    def _head(self, status: str, output: list[dict[str, object]]) -> dict[str, object]:
        request = self._request
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": int(self._created_at),
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": request.model,
            "output": output,
            "parallel_tool_calls": request.parallel_tool_calls,
            "previous_response_id": request.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "service_tier": "default",
            "store": request.store,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": request.model_dump()["tool_choice"],
            "tools": [tool.model_dump() for tool in request.tools],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
            "user": request.user,
            # Chat completions' field for the version of the weights; this API has none.
            "system_fingerprint": f"policy_version={self._answer.completion.policy_version}",
        }

    def _items(self) -> Iterator[dict[str, Any]]:
        reading = self._answer.reading
        status = "incomplete" if self._cut else "completed"
        if reading.content or not reading.calls:
            text = {"type": "output_text", "text": reading.content, "annotations": [], "logprobs": []}
            yield {
                "id": f"msg_{secrets.token_hex(24)}",
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": [text],
            }
        for call in reading.calls:
            yield {
                "id": f"fc_{secrets.token_hex(24)}",
                "type": "function_call",
                "call_id": f"call_{secrets.token_hex(12)}",
                "name": call.name,
                "arguments": call.arguments,
                "status": status,
            }

    def _usage(self) -> dict[str, object]:
        num_sampled = len(self._answer.completion.token_ids)
        return {
            "input_tokens": self._answer.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self._answer.prompt_tokens + num_sampled,
        }


def _item_events(
    item: dict[str, Any], position: dict[str, object]
) -> Iterator[tuple[str, dict[str, object]]]:
    if item["type"] == "function_call":
        arguments = item["arguments"]
        yield "response.function_call_arguments.delta", {**position, "delta": arguments}
        done = {**position, "name": item["name"], "arguments": arguments}
        yield "response.function_call_arguments.done", done
        return
    (part,) = item["content"]
    position = {**position, "content_index": 0}
    yield "response.content_part.added", {**position, "part": {**part, "text": ""}}
    if part["text"]:
        yield "response.output_text.delta", {**position, "delta": part["text"], "logprobs": []}
    yield "response.output_text.done", {**position, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**position, "part": part}
