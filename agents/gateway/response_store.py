"""Conversations by the ids of their last answers, for requests that name one instead of a history."""

from collections.abc import Sequence

from agents.gateway.conversation import ChatTurn
from agents.gateway.errors import RequestRejected


class ResponseStore:
    """The answers of one session."""

    missing = "this session has no response {id!r}, or it was not to be stored; send the whole input"

    def __init__(self) -> None:
        self._messages: dict[str, Sequence[ChatTurn]] = {}

    def add(self, response_id: str, messages: Sequence[ChatTurn]) -> None:
        """`messages`: up to the answer and with it, without instructions."""
        self._messages[response_id] = messages

    def history(self, response_id: str) -> Sequence[ChatTurn]:
        """The conversation up to an answer and with it. Raises `RequestRejected`."""
        if response_id not in self._messages:
            raise RequestRejected(
                400,
                self.missing.format(id=response_id),
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return self._messages[response_id]


class NullStore(ResponseStore):
    """For requests outside sessions: nothing is stored, because nothing would ever delete it."""

    missing = "answers are not stored outside sessions; open one (docs/gateway.md), or send the whole input"

    def add(self, response_id: str, messages: Sequence[ChatTurn]) -> None:
        """Drop it."""
