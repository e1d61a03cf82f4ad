"""Environment processes on this machine, reached over sockets without blocking the event loop.

A host has one fork server (`envs/runtime/fork_server.py`) and a thread that talks to it. A worker's death
closes its socket, which is noticed at once. Workers end with this process, however it ends: the fork server
sees its socket close, and the kernel kills workers with their fork server.
"""

import asyncio
import json
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from envs.errors import ConfigError, EnvCrashed, WingspanError
from envs.runtime.fork_server import MESSAGE_BYTES, Setup, command
from envs.runtime.hosted import restore_error
from envs.runtime.worker import Answer, receive, send
from envs.types import Environment

ANSWER_TIMEOUT_S = 120.0
"""Seconds the fork server may take to fork a worker; the first fork waits for its imports."""

SERVER_GRACE_S = 5.0
"""Seconds the fork server may take to exit before it is killed; it does not exit during imports."""


class ProcessHost:
    """Starts a process for each instance of `make`."""

    def __init__(self, make: Callable[[], Environment], *, preload: tuple[str, ...] = ()) -> None:
        """Starts nothing yet. Raises `ConfigError` if `make` cannot be pickled."""
        try:
            self._setup = Setup(pickle.dumps(make), preload)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"isolation 'process' cannot send {make!r} to a process ({error}); make it a class or a "
                "function of a module"
            ) from None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fork-server")
        self._server: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def start(self) -> "ProcessChannel":
        """Start a worker; raise `EnvCrashed`, or the error with which the environment fails to load."""
        forking = self._thread.submit(self._fork)
        try:
            return await asyncio.wrap_future(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_discard_unclaimed)
            raise

    async def close(self) -> None:
        """End the fork server and with it all remaining workers."""
        await asyncio.wrap_future(self._thread.submit(self._end_server))

    def kill(self, pid: int) -> "Future[int | None]":
        """Kill worker `pid`; the result is its exit status, negative for a signal, None if unknown."""
        return self._thread.submit(self._kill, pid)

    def _fork(self) -> "ProcessChannel":
        if self._server is not None and self._server.poll() is not None:
            self._end_server()
        if self._server is None:
            self._start_server()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                answer = self._ask("fork", [theirs.fileno()])
            if not isinstance(answer, int):
                if "failed" in answer:
                    raise EnvCrashed(f"the environment's process could not be started: {answer['failed']}")
                self._end_server()
                raise restore_error(answer, subject="loading the environment in its process")
        except WingspanError:
            ours.close()
            raise
        ours.setblocking(False)
        return ProcessChannel(self, ours, answer)

    def _kill(self, pid: int) -> int | None:
        if self._control is not None:
            with suppress(EnvCrashed):
                status: int | None = self._ask(pid)
                return status
        # The worker died with its fork server, but its child processes may live.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        return -signal.SIGKILL

    def _ask(self, request: str | int, descriptors: Sequence[int] = ()) -> Any:
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            answer = self._control.recv(MESSAGE_BYTES)
        except TimeoutError:
            self._end_server()
            raise EnvCrashed(f"no environment process started within {ANSWER_TIMEOUT_S:g} s") from None
        except OSError:
            answer = b""
        if not answer:
            self._end_server()
            raise EnvCrashed("the fork server of the environment processes died")
        return json.loads(answer)

    def _start_server(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(ANSWER_TIMEOUT_S)
        with theirs:
            self._server = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.PIPE,
                stdout=2,  # keeps what environments print out of this program's output
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C interrupts only this process, which then closes them
                env={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        assert self._server.stdin is not None
        with suppress(BrokenPipeError), self._server.stdin as stdin:
            stdin.write(self._setup.standard_input())

    def _end_server(self) -> None:
        control, self._control = self._control, None
        server, self._server = self._server, None
        if control is None or server is None:
            return
        control.close()
        try:
            server.wait(SERVER_GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


class ProcessChannel:
    """The `Channel` to one worker."""

    def __init__(self, host: ProcessHost, connection: socket.socket, pid: int) -> None:
        self.pid = pid
        self._host = host
        self._connection = connection
        self._exit_status: Future[int | None] | None = None

    @property
    def is_alive(self) -> bool:
        try:
            return self._connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def call(self, request: list[object]) -> Answer:
        answer: Answer | None = None
        with suppress(ConnectionError):
            await send(self._connection, request)
            answer = await receive(self._connection)
        if answer is None:
            raise EnvCrashed(f"the environment's process {_describe_exit(await self.close())}")
        return answer

    async def close(self) -> int | None:
        return await asyncio.shield(asyncio.wrap_future(self.discard()))

    def discard(self) -> "Future[int | None]":
        """Kill the worker without waiting."""
        if self._exit_status is None:
            self._connection.close()
            self._exit_status = self._host.kill(self.pid)
        return self._exit_status


def _discard_unclaimed(forking: "Future[ProcessChannel]") -> None:
    if not forking.cancelled() and forking.exception() is None:
        forking.result().discard()


def _describe_exit(status: int | None) -> str:
    if status is None:
        return "has ended"
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
