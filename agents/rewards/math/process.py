"""Processes that compare mathematics (`worker.py`), one comparison at a time.

A comparison may have to be killed, which only a process allows: math-verify's own limits are alarms, which
work only in a main thread, and one number like `9^{9^{9^9}}` holds Python's lock for good. Processes start at
the first comparison, are reused, and end with this process, which closes their pipes. Of its environment
variables they see only those that locate packages, and no keys.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envs.requirements.detection import Package, require

NEEDS = (Package("math-verify"), Package("latex2sympy2-extended"))
CPU_S = 10.0
"""CPU seconds of one comparison, however busy the machine is."""
END_S = 5.0
"""Seconds for a process to exit once it has closed its end of the pipe."""
MAX_COMPARISONS = 2000
"""The most comparisons of one process, which is then replaced: sympy's caches only grow."""
_WORKER = Path(__file__).with_name("worker.py")
_PASSED_ON = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class MathVerdict:
    """The result of a comparison."""

    is_correct: bool
    has_mathematics: bool
    """The response holds mathematics."""
    is_decided: bool = True
    """False if it took more CPU time than a comparison may; what takes more memory is not mathematics."""


class MathProcesses:
    """At most `most` processes; `compare` from any thread."""

    def __init__(self, most: int, *, cpu_s: float = CPU_S) -> None:
        """Starts nothing yet."""
        self._free = threading.BoundedSemaphore(most)
        self._cpu_s = cpu_s
        self._idle: list[_Process] = []
        weakref.finalize(self, _end_all, self._idle)

    def compare(self, gold: Sequence[str], response: str) -> MathVerdict:
        """Whether the answer in `response` equals one of `gold`; blocks.

        Raises `ValueError` for a gold that is not mathematics, `MissingDependency` if math-verify is not
        installed, `RuntimeError` if the process fails for another reason than its limits.
        """
        with self._free:
            try:
                process = self._idle.pop()
            except IndexError:
                process = _Process()
            try:
                answer = process.ask({"gold": list(gold), "response": response, "cpu_s": self._cpu_s})
            except BaseException:
                process.end()
                raise
            if answer is None:
                return MathVerdict(is_correct=False, has_mathematics=True, is_decided=False)
            if process.num_comparisons < MAX_COMPARISONS:
                self._idle.append(process)
            else:
                process.end()
        if "unreadable" in answer:
            raise ValueError(
                f"the accepted answer {answer['unreadable']!r} is not mathematics that math-verify reads; "
                "fix the item, or use string_equal"
            )
        return MathVerdict(is_correct=answer["correct"] is True, has_mathematics=answer["found"] is True)

    def close(self) -> None:
        """End the idle processes; the next comparison starts new ones."""
        _end_all(self._idle)


class _Process:
    def __init__(self) -> None:
        self.num_comparisons = 0
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            text=True,
        )
        try:
            greeting = json.loads(self._read() or '{"failed": "it ended"}')
            if "failed" in greeting:
                require("comparing mathematics", NEEDS)
                raise RuntimeError(
                    f"the process that compares mathematics did not start: {greeting['failed']}"
                )
        except BaseException:
            self.end()
            raise

    def ask(self, request: dict[str, object]) -> dict[str, object] | None:
        """The answer; None if the process was killed for its CPU time."""
        self.num_comparisons += 1
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._read()
        if line:
            answer: dict[str, object] = json.loads(line)
            return answer
        status = self._process.wait(timeout=END_S)
        self.end()
        if status == -signal.SIGPROF:
            return None
        raise RuntimeError(f"the process that compares mathematics ended with status {status}")

    def end(self) -> None:
        """Kill it. Idempotent."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


def _end_all(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
