"""The one interface that every environment has. Asynchronous, because some live in other
processes or behind HTTP; an in-process one simply never suspends, which costs microseconds."""

from typing import Any, Protocol, runtime_checkable

from envs.types import Item, Observation, StepResult


class Environment(Protocol):
    """One live instance. It plays one episode at a time; `reset` makes it fresh for the next.

    A malformed action is answered by an observation. An exception from `reset` or `step` means
    that the instance itself is broken: it is closed and replaced, and the episode is retried.
    """

    async def reset(self, item: Item) -> str | Observation:
        """Start `item`; return the first observation, as text where there are no pictures."""
        ...

    async def step(self, action: str) -> StepResult:
        """Apply one action of the current episode: any text that UTF-8 can encode.

        Raises `RuntimeError` before a reset and after the end.
        """
        ...

    async def close(self) -> None:
        """Free all resources. Idempotent."""
        ...


@runtime_checkable
class HasProcess(Protocol):
    """What an environment has besides, if its instance is a process of its own."""

    @property
    def is_alive(self) -> bool:
        """False once the process has died; found out at once, without asking the process."""
        ...

    async def prepare(self) -> None:
        """Start the process ahead of the first `reset`, which else does it."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """What an environment has besides, if more can be asked of an episode than what it shows its player."""

    async def inspect(self, name: str) -> Any:
        """A fact of the episode under way, a JSON value, e.g. `available_actions`; changes nothing.

        Raises `ConfigError` for what it does not know.
        """
        ...
