"""Completions in OpenAI's form: in one piece, or as server-sent events."""

import json
import secrets
import time
from collections.abc import Iterator

from agents.gateway.policy import Answer
from agents.types import FinishReason


def completion(answer: Answer, *, model: str) -> dict[str, object]:
    """The body of a `chat.completion`."""
    message: dict[str, object] = {"role": "assistant", "content": _content(answer), "refusal": None}
    if answer.reading.calls:
        message["tool_calls"] = _calls(answer)
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
    return {**_head(answer, model, "chat.completion"), "choices": [choice], "usage": _usage(answer)}


def events(answer: Answer, *, model: str, include_usage: bool) -> Iterator[str]:
    """The same as a stream. Samplers return whole completions, so all events come at once."""
    head = _head(answer, model, "chat.completion.chunk")

    def event(delta: dict[str, object], finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        more = {"usage": None} if include_usage else {}
        return _event({**head, "choices": [choice], **more})

    content = _content(answer)
    yield event({"role": "assistant", "content": None if content is None else ""})
    if content:
        yield event({"content": content})
    for index, call in enumerate(_calls(answer)):
        yield event({"tool_calls": [{"index": index, **call}]})
    yield event({}, _finish_reason(answer))
    if include_usage:
        yield _event({**head, "choices": [], "usage": _usage(answer)})
    yield "data: [DONE]\n\n"


def models(model: str, *, created: int) -> dict[str, object]:
    """The body of `GET /v1/models`; `created`: Unix time of the start, in seconds."""
    entry = {"id": model, "object": "model", "created": created, "owned_by": "wingspan"}
    return {"object": "list", "data": [entry]}


def _head(answer: Answer, model: str, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        # OpenAI's field for the backend's version: the weights of a policy in training change.
        "system_fingerprint": f"policy_version={answer.completion.policy_version}",
    }


def _content(answer: Answer) -> str | None:
    """The answer's text, as OpenAI returns it: null, not empty, if there are only calls."""
    reading = answer.reading
    return None if reading.calls and not reading.content else reading.content


def _calls(answer: Answer) -> list[dict[str, object]]:
    return [
        {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in answer.reading.calls
    ]


def _finish_reason(answer: Answer) -> str:
    if answer.completion.finish_reason is FinishReason.LENGTH:
        return "length"
    # A call of the function that the request names ends with "stop" at OpenAI, too.
    return "tool_calls" if answer.reading.calls and not answer.is_named else "stop"


def _usage(answer: Answer) -> dict[str, int]:
    num_sampled = len(answer.completion.token_ids)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": num_sampled,
        "total_tokens": answer.prompt_tokens + num_sampled,
    }


def _event(value: dict[str, object]) -> str:
    return f"data: {json.dumps(value)}\n\n"
