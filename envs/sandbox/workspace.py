"""A sandbox to work in: files, a shell and Python, which see each other's work.

Owns what is done by asking the interpreter of `envs/sandbox/interpreter.py`; no program ever runs outside
its walls.
Files live as long as that interpreter, and everything is gone when it ends. Commands and work on files keep
their time themselves, inside, so that what hangs there takes nothing else along.
"""

import asyncio
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from envs.base import Environment
from envs.errors import ConfigError
from envs.sandbox.backend import Backend, SandboxLimits
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import choose_backend
from envs.types import Item, Observation, StepResult

OUTPUT_CHARS = 200_000
"""Of one run; callers cut further."""
GRACE_S = 10.0
"""What a command or work on files, ended by itself, has to say so before the whole sandbox is ended."""

_FILES, _SHELL = ((Path(__file__).parent / f"{name}_program.py").read_text() for name in ("files", "shell"))


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one piece of work."""

    text: str
    failed: bool = False
    """It was refused, or ended; the text says why. A command's own exit status is no failure of this kind."""


class Workspace:
    """One sandbox, started when first used; one piece of work at a time, in the order of asking."""

    def __init__(
        self,
        *,
        backend: Backend | None = None,
        limits: SandboxLimits | None = None,
        run_timeout_s: float = 30.0,
    ) -> None:
        """`backend`: else the one that this machine has, which takes programs to find out; `run_timeout_s`:
        of one piece of work.

        Raises `MissingDependency` where there is no sandbox.
        """
        self._seconds = run_timeout_s
        self._interpreter = Interpreter(
            backend or choose_backend(),
            limits=limits or SandboxLimits(),
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

    async def put(self, files: Mapping[str, str]) -> Reply:
        """Write files (path in `/work` → text), whatever is there; that is not to be undone."""
        return await self._file("put", files=dict(files))

    async def succeeds(self, command: str) -> bool:
        """Whether `command`, run as `shell` does, ends in time with status 0. What it prints is not kept, and
        cannot say so: the word for success is a new one each time, and no command is told."""
        word = secrets.token_hex(16)
        reply = await self._do(_SHELL, command=command, word=word)
        return not reply.failed and reply.text.strip() == word

    async def close(self) -> None:
        """End the sandbox; what comes next begins in an empty one. Idempotent."""
        await self._interpreter.close()

    async def _do(self, program: str, **request: Any) -> Reply:
        request_json = json.dumps({"seconds": self._seconds, **request})
        # One expression, so that it leaves no name among the variables of the agent's own code.
        code = (
            f'__import__("subprocess").run([__import__("sys").executable, "-I", "-c", {program!r}], '
            f'input={request_json!r}, text=True, cwd="/work") and None'
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


def read_files(fields: Mapping[str, Any], *, name: str = "files") -> dict[str, str]:
    """The field `name` of a row as files; one whose text is null is left out, as Parquet writes those that
    another row has. Raises `ConfigError` for what are no files."""
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


@runtime_checkable
class HasWorkspace(Protocol):
    """What an environment has besides, if its episodes have a sandbox."""

    @property
    def workspace(self) -> Workspace:
        """Holds the item's files, and nothing else, when an episode begins."""
        ...


class WithWorkspace:
    """Any environment, with a workspace that holds nothing when an episode begins but the files of its item's
    field `files` (path in `/work` → text)."""

    def __init__(self, env: Environment, workspace: Workspace) -> None:
        """Both are closed with it."""
        self._env = env
        self.workspace = workspace

    async def reset(self, item: Item) -> str | Observation:
        """See `Environment`. Raises `ConfigError` for files that cannot be written."""
        await self.workspace.close()
        observation = await self._env.reset(item)
        if files := read_files(item.fields):
            reply = await self.workspace.put(files)
            if reply.failed:
                raise ConfigError(f"{item.item_id}: its files cannot be written: {reply.text}")
        return observation

    async def step(self, action: str) -> StepResult:
        return await self._env.step(action)

    async def close(self) -> None:
        await self.workspace.close()
        await self._env.close()
