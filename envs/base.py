"""The one interface that every environment has. Asynchronous, because some live in other
processes or behind HTTP; an in-process one simply never suspends, which costs microseconds."""

from typing import Protocol

from envs.types import Item, StepResult


class Environment(Protocol):
    """One live instance. It plays one episode at a time; `reset` makes it fresh for the next.

    A malformed action is answered by an observation. An exception from `reset` or `step` means
    that the instance itself is broken: it is closed and replaced, and the episode is retried.
    """

    async def reset(self, item: Item) -> str:
        """Start `item`; return the first observation."""
        ...

    async def step(self, action: str) -> StepResult:
        """Apply one action of the current episode."""
        ...

    async def close(self) -> None:
        """Free all resources. Idempotent."""
        ...
