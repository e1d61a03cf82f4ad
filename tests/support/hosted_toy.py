"""An environment that misbehaves as its actions demand, to be run in its own process."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from envs.errors import ConfigError, MissingDependency
from envs.types import Item, StepResult


class Rogue:
    """Does to its process what the action says."""

    def __init__(self) -> None:
        self._is_playing = False

    async def reset(self, item: Item) -> str:
        self._is_playing = True
        return f"{item.item_id} {item.seed} {dict(item.metadata)}"

    async def step(self, action: str) -> StepResult:
        if not self._is_playing:
            raise RuntimeError("step before reset, or after the end")
        verb, _, rest = action.partition(" ")
        if verb == "raise":
            raise KeyError(rest)
        if verb == "miss":
            raise MissingDependency(rest)
        if verb == "exit":
            os._exit(int(rest))
        if verb == "hang":
            if rest:  # a file that says so
                Path(rest).touch()
            time.sleep(600)
        if verb == "spawn":  # a program that would outlive this process
            return StepResult(
                str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid)
            )
        if verb == "repeat":
            return StepResult("ab\n" * int(rest))
        if verb == "measure":
            return StepResult("", metrics={rest: 0.5})
        if verb == "reward":
            return StepResult("", reward=float(rest))
        print("environments may print")
        return StepResult(
            str(os.getpid()) if action == "pid" else action,
            reward=0.25,
            terminated=action == "end",
            truncated=action == "cut",
            success=action == "end",
        )

    async def inspect(self, name: str) -> object:
        if name != "pid":
            raise ConfigError(f"Rogue knows no {name}")
        return {"pid": os.getpid()}

    async def close(self) -> None:
        await asyncio.sleep(0)


def make_without_java() -> Rogue:
    """Raise as if a requirement were missing."""
    raise MissingDependency("install java")


def make_failing() -> Rogue:
    """Raise as an environment that cannot be made."""
    raise OSError("no such port")
