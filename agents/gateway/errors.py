"""Rejected requests, in OpenAI's form of errors."""

from typing import Any

CONTEXT_FULL = "context_length_exceeded"
"""Code of the answer to a conversation that leaves no room for a completion; OpenAI's own."""
NO_TURNS_LEFT = "max_turns_reached"
"""Code of the answer to a request beyond a session's last turn."""


class RequestRejected(Exception):
    """The reason and the HTTP status. OpenAI's clients retry on 408, 409, 429 and from 500 on."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        """`param`: the field that is wrong, e.g. `messages[0].content`; `code`: for programs to compare."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code

    @property
    def body(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {"message": self.message, "type": kind, "param": self.param, "code": self.code},
        }
