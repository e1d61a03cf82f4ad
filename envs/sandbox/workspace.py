"""A sandbox with files, a shell and Python that share one state.

All work goes through the interpreter of `envs/sandbox/interpreter.py`; no program runs outside its sandbox.
Files live as long as that interpreter. Commands and file operations enforce their time limit inside, so that
one that hangs does not end the sandbox.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from envs.errors import ConfigError, EnvCrashed
from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import choose_backend
from envs.types import Environment, Item, Observation, StepResult, await_result, has_actions

OUTPUT_CHARS = 200_000
"""The most characters of one run; callers cut the text further."""
GRACE_S = 10.0
"""Seconds past its time limit that a command or file operation may take before the sandbox is ended."""

_FILES, _SHELL = ((Path(__file__).parent / f"{name}_program.py").read_text() for name in ("files", "shell"))

FileOperation = Literal["put", "read", "create", "edit", "undo", "list_folder", "grep"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one operation."""

    text: str
    is_error: bool = False
    """The operation was rejected or ended; the text says why. A command's exit status is not an error."""
    has_ended: bool = False
    """The sandbox ended before the operation was complete, and its files are gone."""


class Workspace:
    """One sandbox, started on first use, which runs one operation at a time, in order."""

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        limits: SandboxLimits | None = None,
        run_timeout_s: float = 30.0,
    ) -> None:
        """`backend` defaults to `choose_backend`'s, which runs programs to find it; `run_timeout_s` limits
        one operation.

        Raises `MissingDependency` if there is no sandbox.
        """
        self._timeout_s = run_timeout_s
        self._interpreter = Interpreter(
            backend or choose_backend(), limits=limits or SandboxLimits(), output_chars=OUTPUT_CHARS
        )
        self._turn = asyncio.Lock()

    async def python(self, code: str) -> Reply:
        """Execute `code`; variables persist. Raises as `Interpreter.run` does."""
        return await self._run(code, timeout_s=self._timeout_s)

    async def shell(self, command: str) -> Reply:
        """Run `command` with `sh` in `/work`; return both streams, and the exit status if it is not 0."""
        return await self._do(_SHELL, command=command)

    async def operate_on_files(self, operation: FileOperation, **arguments: object) -> Reply:
        """Carry out an operation of `files_program.py`, by its keyword arguments."""
        reply = await self._do(_FILES, operation=operation, **arguments)
        if reply.is_error:
            return reply
        try:
            answer = json.loads(reply.text)
            is_error = "error" in answer
            return Reply(str(answer["error" if is_error else "text"]), is_error=is_error)
        except (ValueError, KeyError, TypeError):
            return Reply(f"it took longer than {self._timeout_s:g} s, or too much memory", is_error=True)

    async def put(self, files: Mapping[str, str]) -> Reply:
        """Write files (path in `/work` → text) over existing ones, without a way to undo it."""
        return await self.operate_on_files("put", files=dict(files))

    async def succeeds(self, command: str) -> bool:
        """Run `command` as `shell` does; return whether it ends in time with status 0.

        What the command prints is discarded: success is a new random word. Code that `python` ran before can
        still fake it, by changing the interpreter that starts the command.
        """
        word = secrets.token_hex(16)
        reply = await self._do(_SHELL, command=command, word=word)
        return not reply.is_error and reply.text.strip() == word

    async def close(self) -> None:
        """End the sandbox; the next operation starts an empty one. Idempotent."""
        await self._interpreter.close()

    async def _do(self, program: str, **request: object) -> Reply:
        request_json = json.dumps({"seconds": self._timeout_s, **request})
        code = (
            f'import subprocess, sys\nprogram = [sys.executable, "-I", "-c", {program!r}]\n'
            f'_ = subprocess.run(program, input={request_json!r}, text=True, cwd="/work")'
        )
        return await self._run(code, timeout_s=self._timeout_s + GRACE_S, is_separate=True)

    async def _run(self, code: str, *, timeout_s: float, is_separate: bool = False) -> Reply:
        async with self._turn:
            run = await self._interpreter.run(code, timeout_s=timeout_s, is_separate=is_separate)
        if run.end_reason is None:
            return Reply(run.output)
        return Reply(
            run.output_with(f"[the sandbox was ended: {run.end_reason}; its variables and files are gone]"),
            is_error=True,
            has_ended=True,
        )


def read_files(fields: Mapping[str, object], *, name: str = "files") -> dict[str, str]:
    """Return the field `name` of a row as path → text, without files whose text is null (in Parquet, those of
    other rows). Raises `ConfigError` for anything else."""
    files = fields.get(name) or {}
    if not isinstance(files, Mapping):
        raise ConfigError(f"{name} is a {type(files).__name__}; give an object of path → text")
    files_by_path = {str(path): text for path, text in files.items() if text is not None}
    for path, text in files_by_path.items():
        if not isinstance(text, str):
            raise ConfigError(f"{name}: {path!r} is a {type(text).__name__}; give its text")
        if Path(path).is_absolute() or ".." in Path(path).parts or path in ("", "."):
            raise ConfigError(f"{name}: {path!r} is no path in /work; give a relative one without ..")
    return files_by_path


class WithWorkspace:
    """An environment with a workspace, which at the start of an episode holds only the files of the item's
    field `files` (path in `/work` → text)."""

    def __init__(self, env: Environment, workspace: Workspace) -> None:
        """Takes over both, and closes them."""
        self._env = env
        self.workspace = workspace

    @property
    def has_actions(self) -> bool:
        return has_actions(self._env)

    async def reset(self, item: Item) -> str | Observation:
        """Start `item` in an empty workspace; raise `ConfigError` for files that cannot be written, and
        `EnvCrashed` if the sandbox ends meanwhile."""
        await self.workspace.close()
        observation = await await_result(self._env.reset(item), name="reset")
        if files := read_files(item.fields):
            reply = await self.workspace.put(files)
            if reply.has_ended:
                raise EnvCrashed(f"{item.item_id}: its files could not be written: {reply.text}")
            if reply.is_error:
                raise ConfigError(f"{item.item_id}: its files cannot be written: {reply.text}")
        return observation

    async def step(self, action: str) -> StepResult:
        return await await_result(self._env.step(action), name="step")

    async def close(self) -> None:
        try:
            await self.workspace.close()
        finally:
            await self._env.close()


def get_workspace(env: Environment | None) -> Workspace:
    """The environment's workspace. Raises `ConfigError` if it has none; None is that of an `EnvCheck`."""
    if not isinstance(env, WithWorkspace):
        name = "an environment in another process or on a server" if env is None else type(env).__name__
        raise ConfigError(
            f"{name} has no workspace; wrap it in envs.sandbox.workspace.WithWorkspace in this process, or "
            "use env: workspace"
        )
    return env.workspace
