"""One environment as a pool lends it: the environment itself, with a clock and a count of its episodes."""

import time
from typing import Any

from envs.base import Environment, HasProcess
from envs.runtime.metrics import Clock
from envs.types import Item, Observation, StepResult


class Instance:
    """An `Environment` around another."""

    __slots__ = ("_env", "_process", "_resets", "_steps", "episodes", "spoiled")

    def __init__(self, env: Environment, *, resets: Clock, steps: Clock) -> None:
        """The clocks are the pool's: one of each for all its instances."""
        self._env = env
        self._process = env if isinstance(env, HasProcess) else None
        self._resets = resets
        self._steps = steps
        self.episodes = 0
        """Begun so far."""
        self.spoiled = False
        """Whether it must not be lent again."""

    @property
    def is_alive(self) -> bool:
        """False if it is known to be dead."""
        return self._process is None or self._process.is_alive

    async def prepare(self) -> None:
        """Do what can be done ahead of the first reset."""
        if self._process is not None:
            await self._process.prepare()

    async def reset(self, item: Item) -> str | Observation:
        """See `Environment`."""
        self.episodes += 1
        started = time.perf_counter()
        try:
            return await self._env.reset(item)
        finally:
            self._resets.add_since(started)

    async def step(self, action: str) -> StepResult:
        """See `Environment`."""
        started = time.perf_counter()
        try:
            return await self._env.step(action)
        finally:
            self._steps.add_since(started)

    async def close(self) -> None:
        """See `Environment`."""
        await self._env.close()

    def __getattr__(self, name: str) -> Any:
        """What the environment has besides, for tools and rewards that work on it: a workspace, a board.

        One that lives in another process has nothing besides.
        """
        return getattr(self._env, name)

    def __repr__(self) -> str:
        return f"<{type(self._env).__name__}>"
