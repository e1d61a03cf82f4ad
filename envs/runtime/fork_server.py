"""The process that all environment processes of one kind are forked from, after it has imported their
modules.

`envs/runtime/processes.py` starts it and asks it over a socket to fork a worker, or to kill one and report
its exit status. A fork is safe because the process has one thread; if an environment's modules start threads
on import, workers are new interpreters instead. No process outlives its user: the fork server ends when the
other end of its socket closes, the kernel kills workers with their fork server, and a worker's process group
is killed with it.
"""

import asyncio
import gc
import importlib
import json
import os
import pickle
import select
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from envs.runtime.forking import begin_fork, has_one_thread, kill_group, watch_children
from envs.runtime.worker import Worker, answer_error, serve
from envs.types import Environment

MESSAGE_BYTES = 1 << 14
_BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from envs.runtime.fork_server import main; main(int(sys.argv[1]), alone=len(sys.argv) > 2)"
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all workers of one fork server share."""

    make: bytes
    """The pickled function that makes an instance."""
    preload: tuple[str, ...]
    """Modules to import in advance; a missing one is ignored until the environment needs it."""

    def standard_input(self) -> bytes:
        """Return the standard input of `command`."""
        return pickle.dumps([os.path.abspath(path) for path in sys.path]) + pickle.dumps(self)


def command(connection: int, *, alone: bool = False) -> list[str]:
    """Return the command line of a fork server on the socket `connection`, or of a single worker on it."""
    return [sys.executable, "-c", _BOOT, str(connection), *(["alone"] if alone else [])]


def main(connection: int, *, alone: bool) -> None:
    """Run a fork server, or a single worker if `alone`."""
    setup: Setup = pickle.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if alone:
        _run_worker(_load(setup), connection, parent_pid=os.getppid())
    ForkServer(socket.socket(fileno=connection), setup).run()


class ForkServer:
    """Handles one request at a time: `"fork"` with a worker's socket, or the pid of a worker to kill."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control = control
        self._setup = setup
        self._living: set[int] = set()
        self._statuses: dict[int, int] = {}  # of workers that died without a request
        self._ending: int | None = None

    def run(self) -> None:
        """Handle requests until the other end of the control socket closes; then kill all workers."""
        try:
            self._make = _load(self._setup)
        except Exception as error:
            self._reply(answer_error(error))
            return
        gc.collect()
        gc.freeze()  # otherwise the collector would write to pages that workers share
        control = self._control.fileno()
        wake = watch_children()
        while True:
            ready, _, _ = select.select([control, wake], [], [])
            if wake in ready:
                os.read(wake, MESSAGE_BYTES)
                self._reap()
            if control in ready:
                message, sockets, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
                if not message:
                    break
                self._handle(json.loads(message), sockets)
        for pid in self._living:
            kill_group(pid)

    def _handle(self, request: str | int, sockets: list[int]) -> None:
        if request == "fork":
            answer: int | dict[str, str]
            try:
                answer = self._start_worker(sockets[0])
                self._living.add(answer)
            except (OSError, IndexError) as error:  # no memory, process or descriptor is left for it
                answer = {"failed": str(error)}
            for descriptor in sockets:
                os.close(descriptor)
            self._reply(answer)
            return
        self._ending = int(request)
        if self._ending in self._living:
            kill_group(self._ending)
        self._reap()

    def _start_worker(self, connection: int) -> int:
        if not has_one_thread():
            return _spawn_worker(self._setup, connection)
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _run_worker(self._make, connection, parent_pid=parent_pid)
        with suppress(OSError):  # it may have exited already
            os.setpgid(pid, pid)
        return pid

    def _reap(self) -> None:
        while self._living:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if child is None:
                break
            kill_group(child.si_pid)  # its group; until the child is reaped, no other process has its number
            _, status = os.waitpid(child.si_pid, 0)
            if child.si_pid in self._living:
                self._living.remove(child.si_pid)
                self._statuses[child.si_pid] = os.waitstatus_to_exitcode(status)
        if self._ending is not None and self._ending not in self._living:
            self._reply(self._statuses.pop(self._ending, None))
            self._ending = None

    def _reply(self, value: object) -> None:
        with suppress(OSError):
            self._control.send(json.dumps(value).encode())


def _load(setup: Setup) -> Callable[[], Environment]:
    for name in setup.preload:
        with suppress(ImportError):
            importlib.import_module(name)
    make: Callable[[], Environment] = pickle.loads(setup.make)
    return make


def _run_worker(make: Callable[[], Environment], connection: int, *, parent_pid: int) -> NoReturn:
    """Run a worker until the other end of `connection` closes."""
    status = 1
    try:
        begin_fork(parent_pid)
        asyncio.run(serve(Worker(make), socket.socket(fileno=connection)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _spawn_worker(setup: Setup, connection: int) -> int:
    os.set_inheritable(connection, True)
    reading, writing = os.pipe()
    pid = os.posix_spawn(
        sys.executable,
        command(connection, alone=True),
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)],
        setpgroup=0,
    )
    os.close(reading)
    with suppress(BrokenPipeError), os.fdopen(writing, "wb") as stdin:
        stdin.write(setup.standard_input())
    return pid
