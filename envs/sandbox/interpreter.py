"""A Python interpreter in a sandbox: it executes code run by run and returns the output.

One process in a sandbox (`envs/sandbox/sandbox.py`) keeps its variables between runs. A run that exceeds its
time, memory or CPU limit ends the process, and the next run starts a new one. If the process died between two
runs, the next run reports that instead of executing its code. Each run is one JSON line over pipes that the
executed code cannot see by name, and its answer bears the run's number.
"""

import asyncio
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil

from envs.errors import EnvCrashed
from envs.sandbox.backend import Backend, SandboxLimits, check

START_TIMEOUT_S = 30.0
REPORT_S = 1.0
"""The time after a run's limit in which the interpreter may still send the output until then."""
WATCH_S = 0.1
"""The time between two checks of the memory and CPU time of all processes."""
MAX_REPLY = 4 << 20

_KERNEL = (Path(__file__).parent / "interpreter_program.py").read_text()


@dataclass(frozen=True, slots=True)
class Execution:
    """The result of one run."""

    output: str
    """Both streams in order; a long output is cut in the middle. A run that exceeds a limit leaves its output
    until then, unless it is in a call that Python cannot interrupt, such as `os.system` at the time limit; a
    run whose process dies leaves nothing."""
    end_reason: str | None
    """Why the interpreter ended with this run; None if it is still alive."""

    def output_with(self, note: str) -> str:
        """The output, and below it `note`."""
        end = "" if self.output.endswith("\n") or not self.output else "\n"
        return f"{self.output}{end}{note}"


class Interpreter:
    """One interpreter, which executes one run at a time."""

    def __init__(
        self,
        backend: Backend,
        *,
        limits: SandboxLimits,
        run_timeout_s: float = 10.0,
        output_chars: int = 4000,
    ) -> None:
        """Starts nothing yet."""
        self._backend = backend
        self._limits = limits
        self._timeout_s = run_timeout_s
        self._output_chars = output_chars
        self._process: asyncio.subprocess.Process | None = None
        self._label = ""
        self._first: int | None = None
        self._own: list[psutil.Process] = []  # those before the code starts others; the last runs the code
        self._runs = 0

    @property
    def has_died(self) -> bool:
        """Whether its process has died since the last run."""
        return self._process is not None and self._process.returncode is not None

    async def run(self, code: str, *, timeout_s: float | None = None, is_separate: bool = False) -> Execution:
        """Execute `code` as at a prompt: the value of a final expression is printed.

        `timeout_s` replaces `run_timeout_s` for this run. `is_separate`: it shares neither variables nor
        built-in names with the other runs.
        Raises `MissingDependency` if the backend does not work, `EnvCrashed` if no interpreter starts.
        """
        if self.has_died:
            await self.close()
            return Execution("", end_reason="its process had died since the last run; this one was not begun")
        process = await self._start()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        watch = asyncio.create_task(self._watch_limits())
        answer = asyncio.create_task(
            self._exchange(process, code, timeout_s=limit_s, is_separate=is_separate)
        )
        is_alive = False
        try:
            done, _ = await asyncio.wait(
                {watch, answer}, timeout=limit_s + REPORT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if answer in done and (execution := answer.result()) is not None:
                is_alive = execution.end_reason is None
                return execution
            if watch in done:
                output = await self._output_until_now(answer)
                return Execution(output, end_reason=f"it took more than {watch.result()}")
            return Execution("", end_reason="its process died" if done else _late(limit_s))
        finally:
            watch.cancel()
            answer.cancel()
            if not is_alive:
                await self.close()

    async def close(self) -> None:
        """Kill the interpreter. Idempotent; `run` starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if end := self._backend.end(self._label):
            environment = dict(self._backend.environment)
            await asyncio.to_thread(subprocess.run, end, env=environment, stdin=DEVNULL, capture_output=True)
        await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        if self._process is not None:
            return self._process
        await asyncio.to_thread(check, self._backend)
        self._label = f"wingspan-{os.getpid()}-{secrets.token_hex(4)}"
        program = [self._backend.python, "-I", "-c", _KERNEL]
        self._process = await asyncio.create_subprocess_exec(
            *self._backend.command(program, self._limits, label=self._label),
            stdin=PIPE,
            stdout=PIPE,
            stderr=DEVNULL,
            env=dict(self._backend.environment),
            start_new_session=True,
            limit=MAX_REPLY,
        )
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                hello = await self._process.stdout.readline()
        except TimeoutError:
            hello = b""
        if hello != b"ready\n":
            status = self._process.returncode
            await self.close()
            problem = f"did not start within {START_TIMEOUT_S:g} s"
            if hello or status is not None:
                problem = f"ended before it was ready (status {status})"
            raise EnvCrashed(f"the sandboxed interpreter {problem}")
        self._first = await asyncio.to_thread(
            self._backend.first_process, self._process.pid, label=self._label
        )
        self._own = [] if self._first is None else _list_processes(self._first)
        return self._process

    async def _exchange(
        self, process: asyncio.subprocess.Process, code: str, *, timeout_s: float, is_separate: bool
    ) -> Execution | None:
        """Return the interpreter's answer; None if it dies or answers no JSON."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._runs += 1
        request = {
            "number": self._runs,
            "code": code,
            "is_separate": is_separate,
            "output_chars": self._output_chars,
            "timeout_s": timeout_s,
        }
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            await process.stdin.drain()
            while True:
                answer = json.loads(await process.stdout.readline())
                if answer["number"] == self._runs:
                    return Execution(str(answer["output"]), _late(timeout_s) if answer["is_late"] else None)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    async def _output_until_now(self, answer: asyncio.Task[Execution | None]) -> str:
        """Kill the processes that the code has started, and return its output until now; empty if there is no
        `answer` within `REPORT_S`, or if the code takes twice its memory meanwhile."""
        with suppress(psutil.Error):
            self._own[-1].send_signal(signal.SIGALRM)  # as at its time limit
        for _ in range(round(REPORT_S / WATCH_S)):
            for process in _list_processes(self._own[0].pid):
                if process not in self._own:
                    with suppress(psutil.Error):
                        process.kill()
            done, _ = await asyncio.wait({answer}, timeout=WATCH_S)
            if done or _take_more(self._own, 2 * self._limits.memory_mb << 20, exact=False):
                break
        execution = answer.result() if answer.done() else None
        return "" if execution is None else execution.output

    async def _watch_limits(self) -> str:
        """Return the limit that the processes of the sandbox exceed together, once they do."""
        first = self._first
        while first is None:  # they are on another machine; their container limits their memory
            await asyncio.sleep(self._timeout_s)
        max_bytes = self._limits.memory_mb << 20
        before_s: float | None = None
        while True:
            processes = _list_processes(first)
            # The first measure is fast, but counts memory that forks share once for each.
            if _take_more(processes, max_bytes, exact=False) and _take_more(processes, max_bytes, exact=True):
                return f"{self._limits.memory_mb} MB of memory"
            taken_s = _cpu_s(processes)
            before_s = taken_s if before_s is None else before_s
            if taken_s - before_s > self._limits.cpu_s:
                return f"{self._limits.cpu_s:g} s of CPU time"
            await asyncio.sleep(WATCH_S)


def _late(timeout_s: float) -> str:
    return f"it took longer than {timeout_s:g} s"


def _take_more(processes: Sequence[psutil.Process], max_bytes: int, *, exact: bool) -> bool:
    """Whether all processes and their open nameless files in memory take more than `max_bytes`; the rest is
    not measured once some do, because they grow meanwhile."""
    total = 0
    deleted_files: dict[int, int] = {}
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_full_info().pss if exact else process.memory_info().rss
        with suppress(OSError):
            for handle in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):
                    if handle.readlink().name.startswith("memfd:"):
                        status = handle.stat()
                        deleted_files[status.st_ino] = status.st_blocks * 512
        if total + sum(deleted_files.values()) > max_bytes:
            return True
    return False


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of all processes and of their children that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.Error):
            total += sum(process.cpu_times()[:4])  # user and system, its own and its children's
    return total


def _list_processes(pid: int) -> list[psutil.Process]:
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    return []
