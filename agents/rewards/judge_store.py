"""What an LLM judge keeps: replies that it has had, and what it may still spend."""

from collections import OrderedDict
from typing import Protocol

from envs.errors import BudgetSpent, ConfigError


class Cache(Protocol):
    """Replies by the hash of their request. Another store (Redis, files) is another of these."""

    async def get(self, key: str) -> str | None:
        """The reply; None where it is not known."""
        ...

    async def put(self, key: str, reply: str) -> None:
        """Keep a reply."""
        ...


class MemoryCache:
    """The last `most` replies that were asked for, in this process."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._replies: OrderedDict[str, str] = OrderedDict()

    async def get(self, key: str) -> str | None:
        """See `Cache`."""
        if key in self._replies:
            self._replies.move_to_end(key)
        return self._replies.get(key)

    async def put(self, key: str, reply: str) -> None:
        """See `Cache`."""
        self._replies[key] = reply
        self._replies.move_to_end(key)
        while len(self._replies) > self._most:
            self._replies.popitem(last=False)


class Budget:
    """Counts requests and tokens, of this process, against what may be spent."""

    def __init__(self, *, max_requests: int | None, max_tokens: int | None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.requests = 0
        """Sent, those that failed included."""
        self.tokens = 0
        """As the endpoint reports them, prompts and replies together."""

    def take_request(self) -> None:
        """Count one that is about to be sent; raises `BudgetSpent` where it may not be.

        Tokens are known afterwards only: requests under way at the same time may go beyond.
        """
        for spent, most, unit in (
            (self.requests, self._max_requests, "requests"),
            (self.tokens, self._max_tokens, "tokens"),
        ):
            if most is not None and spent >= most:
                raise BudgetSpent(
                    f"the judge's budget of {most} {unit} is spent ({self.requests} requests, "
                    f"{self.tokens} tokens so far); raise its max_{unit} and go on"
                )
        self.requests += 1

    def add_tokens(self, reported: int | None) -> None:
        """Count what a reply says it took; raises `ConfigError` for none where tokens are limited."""
        if reported is None and self._max_tokens is not None:
            raise ConfigError(
                "the judge reports no usage.total_tokens; limit max_requests instead of max_tokens"
            )
        self.tokens += reported or 0
