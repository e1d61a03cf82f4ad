"""One environment as a pool lends it: with clocks and a count of its episodes."""

import time

from envs.base import Environment, HasProcess, read_state_key
from envs.runtime.metrics import Clock
from envs.types import Item, Observation, StepResult


class Instance:
    """An `Environment` around `unwrapped`, which tools and rewards receive (`unwrap`) because it may have
    more than the protocol's methods, such as a workspace. An environment in another process has no more."""

    __slots__ = ("_process", "_resets", "_steps", "episodes", "is_reusable", "unwrapped")

    def __init__(self, env: Environment, *, resets: Clock, steps: Clock) -> None:
        """All instances of a pool share its clocks."""
        self.unwrapped = env
        self._process = env if isinstance(env, HasProcess) else None
        self._resets = resets
        self._steps = steps
        self.episodes = 0
        """Number of episodes begun."""
        self.is_reusable = True
        """Whether the pool may lend it again."""

    @property
    def is_alive(self) -> bool:
        """False if its process is known to be dead."""
        return self._process is None or self._process.is_alive

    async def prepare(self) -> None:
        """Start its process, if any, before the first reset."""
        if self._process is not None:
            await self._process.prepare()

    async def reset(self, item: Item) -> str | Observation:
        self.episodes += 1
        start = time.perf_counter()
        try:
            return await self.unwrapped.reset(item)
        finally:
            self._resets.add_since(start)

    async def step(self, action: str) -> StepResult:
        start = time.perf_counter()
        try:
            return await self.unwrapped.step(action)
        finally:
            self._steps.add_since(start)

    def state_key(self) -> str | None:
        """None as well if the environment has no states."""
        return read_state_key(self.unwrapped)

    async def close(self) -> None:
        await self.unwrapped.close()

    def __repr__(self) -> str:
        return f"<{type(self.unwrapped).__name__}>"


def unwrap(env: Environment) -> Environment:
    """Return the environment inside a pool's `Instance`, or `env` itself."""
    return env.unwrapped if isinstance(env, Instance) else env
