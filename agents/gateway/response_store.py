"""Conversations by the ids of their last answers, for requests that name one instead of their history."""

from collections.abc import Sequence

from agents.gateway.conversation import Said
from agents.gateway.errors import RequestRejected

PARAM = "previous_response_id"


class Kept:
    """One session's."""

    def __init__(self) -> None:
        self._messages: dict[str, Sequence[Said]] = {}

    def keep(self, response_id: str, messages: Sequence[Said]) -> None:
        """`messages` up to and with the answer, instructions left out."""
        self._messages[response_id] = messages

    def before(self, response_id: str) -> Sequence[Said]:
        """The conversation up to an answer. Raises `Refused`."""
        if response_id not in self._messages:
            why = f"this session has no response {response_id!r}, or it was not to be stored"
            raise RequestRejected(
                400, f"{why}; send the whole input", param=PARAM, code="previous_response_not_found"
            )
        return self._messages[response_id]


class NothingKept(Kept):
    """Of requests that belong to no session."""

    def keep(self, response_id: str, messages: Sequence[Said]) -> None:
        """Nothing: nobody would ever forget it."""

    def before(self, response_id: str) -> Sequence[Said]:
        """There is none. Raises `Refused`."""
        why = "outside of a session no answer is kept"
        raise RequestRejected(
            400,
            f"{why}; open one (docs/gateway.md), or send the whole input",
            param=PARAM,
            code="previous_response_not_found",
        )
