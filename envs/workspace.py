"""A sandbox to work in: files, a shell and Python, which see each other's work.

Owns what is done by asking the interpreter of `envs/interpreter.py`; no program ever runs outside its walls.
Files live as long as that interpreter, and everything is gone when it ends. Commands and work on files keep
their time themselves, inside, so that what hangs there takes nothing else along.
"""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envs.base import Environment
from envs.interpreter import Interpreter
from envs.sandbox import choose_backend
from envs.types import Item, StepResult
from envs.walls import Backend, Limits

OUTPUT_CHARS = 200_000
"""Of one run; callers cut further."""
GRACE_S = 10.0
"""What a command or work on files, ended by itself, has to say so before the whole sandbox is ended."""

_FILES, _SHELL = ((Path(__file__).parent / f"workspace_{name}.py").read_text() for name in ("files", "shell"))


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one piece of work."""

    text: str
    failed: bool = False
    """It was refused, or ended; the text says why. A command's own exit status is no failure of this kind."""


class Workspace:
    """One sandbox, started when first used; one piece of work at a time, in the order of asking."""

    def __init__(
        self, *, backend: Backend | None = None, limits: Limits | None = None, run_timeout_s: float = 30.0
    ) -> None:
        """`backend`: else the one that this machine has, which takes programs to find out; `run_timeout_s`:
        of one piece of work.

        Raises `MissingDependency` where there is no sandbox.
        """
        self._seconds = run_timeout_s
        self._interpreter = Interpreter(
            backend or choose_backend(),
            limits=limits or Limits(),
            output_chars=OUTPUT_CHARS,
        )
        self._turn = asyncio.Lock()

    async def python(self, code: str) -> Reply:
        """Execute `code`; variables live on. Raises as `Interpreter.run` does."""
        return await self._run(code, timeout_s=self._seconds)

    async def shell(self, command: str) -> Reply:
        """Run `command` by `sh` in `/work`; both streams, and its exit status if it is not 0."""
        return await self._do(_SHELL, command=command)

    async def read(self, path: str, *, first: int = 1, last: int | None = None) -> Reply:
        """The lines from `first` to `last`, numbered from 1."""
        return await self._file("read", path=path, first=first, last=last)

    async def create(self, path: str, text: str, *, overwrite: bool = False) -> Reply:
        """Write a new file, and the folders that it needs."""
        return await self._file("create", path=path, text=text, overwrite=overwrite)

    async def edit(self, path: str, *, old: str, new: str) -> Reply:
        """Replace `old`, which must be there exactly once."""
        return await self._file("edit", path=path, old=old, new=new)

    async def undo(self, path: str) -> Reply:
        """Take back the last `create` or `edit` of `path`; again, the one before."""
        return await self._file("undo", path=path)

    async def list(self, path: str = ".") -> Reply:
        """A folder, two levels deep."""
        return await self._file("list", path=path)

    async def grep(self, pattern: str, path: str = ".") -> Reply:
        """Lines under `path` in which the regular expression is found."""
        return await self._file("grep", pattern=pattern, path=path)

    async def close(self) -> None:
        """End the sandbox; what comes next begins in an empty one. Idempotent."""
        await self._interpreter.close()

    async def _do(self, program: str, **request: Any) -> Reply:
        asked = json.dumps({"seconds": self._seconds, **request})
        # One expression, so that it leaves no name among the variables of the agent's own code.
        code = (
            f'__import__("subprocess").run([__import__("sys").executable, "-I", "-c", {program!r}], '
            f'input={asked!r}, text=True, cwd="/work") and None'
        )
        return await self._run(code, timeout_s=self._seconds + GRACE_S)

    async def _run(self, code: str, *, timeout_s: float) -> Reply:
        async with self._turn:
            run = await self._interpreter.run(code, timeout_s=timeout_s)
        if run.ended is None:
            return Reply(run.output)
        return Reply(f"[the sandbox was ended: {run.ended}; its variables and files are gone]", failed=True)

    async def _file(self, work: str, **request: Any) -> Reply:
        reply = await self._do(_FILES, work=work, **request)
        if reply.failed:
            return reply
        try:
            answer = json.loads(reply.text)
            failed = "error" in answer
            return Reply(str(answer["error" if failed else "text"]), failed=failed)
        except (ValueError, KeyError, TypeError):
            return Reply(f"it took longer than {self._seconds:g} s, or too much memory", failed=True)


@runtime_checkable
class HasWorkspace(Protocol):
    """What an environment has besides, if its episodes have a sandbox."""

    @property
    def workspace(self) -> Workspace:
        """Empty when an episode begins."""
        ...


class WithWorkspace:
    """Any environment, with a workspace that each episode finds empty."""

    def __init__(self, env: Environment, workspace: Workspace) -> None:
        """Both are closed with it."""
        self._env = env
        self.workspace = workspace

    async def reset(self, item: Item) -> str:
        """See `Environment`."""
        await self.workspace.close()
        return await self._env.reset(item)

    async def step(self, action: str) -> StepResult:
        """See `Environment`."""
        return await self._env.step(action)

    async def close(self) -> None:
        """See `Environment`."""
        await self.workspace.close()
        await self._env.close()
