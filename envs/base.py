"""The interface of every environment.

It is asynchronous because some environments live in other processes or behind HTTP; one in this process never
suspends, which costs microseconds.
"""

from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Protocol, runtime_checkable

from envs.types import Item, Observation, StepResult
from envs.values import show


class Environment(Protocol):
    """One live instance, which runs one episode at a time; `reset` starts the next.

    A malformed action results in an observation. An exception from `reset` or `step`, or a result of another
    type, means that the instance is broken: it is closed and replaced, and the episode is retried.
    """

    async def reset(self, item: Item) -> str | Observation:
        """Start `item`; return the first observation, as plain text if it has no images."""

    async def step(self, action: str) -> StepResult:
        """Apply one action, any text that UTF-8 can encode, to the current episode.

        Raises `RuntimeError` before a reset and after the end.
        """

    async def close(self) -> None:
        """Free all resources. Idempotent."""


EnvCheck = Callable[[Environment | None], object]
"""Raises `ConfigError` if something cannot work on a new environment; None stands for one that lives in
another process or on a server."""


@runtime_checkable
class HasProcess(Protocol):
    """The additional interface of an environment whose instance is its own process."""

    @property
    def is_alive(self) -> bool:
        """False as soon as the process has died; determined without a call to the process."""

    async def prepare(self) -> None:
        """Start the process before the first `reset`, which would otherwise do it."""


class HasState(Protocol):
    """The additional interface of an environment that recognises a state in which it has been before."""

    def state_key(self) -> str | None:
        """A short text for the current moment of the episode; None before a reset and after the end.

        Two moments of episodes of one item have the same key exactly if the environment is in the same state
        at both: the same actions then have the same effects, rewards and ends. The number of steps so far and
        the order in which an observation lists things are not part of the state. It is asked for after every
        turn: hash what is at hand (`envs/base.py`), and never wait.
        """


@runtime_checkable
class Inspectable(Protocol):
    """The additional interface of an environment that answers queries about the current episode."""

    async def inspect(self, name: str) -> Any:
        """Return a fact of the current episode as a JSON value, e.g. `available_actions`; changes nothing.

        Raises `ConfigError` for an unknown name.
        """


def has_actions(env: Environment) -> bool:
    """Whether a step acts; false if it is the answer, which ends the episode (`env.has_actions`)."""
    return bool(getattr(env, "has_actions", True))


def hash_state(*parts: object) -> str:
    """16 hexadecimal digits for a `state_key`, the same in every process for parts with the same `repr`.

    Give texts, numbers, and tuples or lists of them; what has no order of its own must be sorted.
    """
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_state_key(env: Environment) -> str | None:
    """The key of the state that `env` is in; None if it has no states, or no episode.

    Raises `ValueError` for a key that is no text.
    """
    # A tenth of the time of isinstance.
    state_key: Callable[[], Any] | None = getattr(env, "state_key", None)
    key = None if state_key is None else state_key()
    if key is None or isinstance(key, str):
        return key
    raise ValueError(f"state_key is {show(key)}; return a text, such as envs.base.hash_state(…)")
