"""The process that environment processes come from: it imports once, then forks one for each instance.

`envs/runtime/processes.py` starts it. Asked over its socket, it forks a worker, or ends one and says how
it ended.
It has one thread, so that a fork is safe; where an environment's own modules start threads as they are
imported, workers are started anew instead. Nobody outlives whom it works for: the fork server ends when its
socket's other end is closed, the kernel kills workers with the fork server, and what a worker has started is
killed with it.
"""

import asyncio
import ctypes
import gc
import importlib
import json
import os
import pickle
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from envs.base import Environment
from envs.runtime.worker import Worker, serve

MESSAGE_BYTES = 1 << 14
_BOOT = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); "
    "from envs.runtime.fork_server import main; main(int(sys.argv[1]), alone=len(sys.argv) > 2)"
)
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Setup:
    """What all workers of one fork server have in common."""

    make: bytes
    """The pickled function that makes an instance."""
    preload: tuple[str, ...]
    """Modules to import ahead; one that cannot be imported is left to the environment to miss."""

    def standard_input(self) -> bytes:
        """What `command` is to read."""
        return pickle.dumps([os.path.abspath(path) for path in sys.path]) + pickle.dumps(self)


def command(connection: int, *, alone: bool = False) -> list[str]:
    """The command line of a fork server with this control socket, or of one worker with this connection."""
    return [sys.executable, "-c", _BOOT, str(connection), *(["alone"] if alone else [])]


def main(connection: int, *, alone: bool) -> None:
    """Run a fork server, or one worker."""
    setup: Setup = pickle.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if alone:
        _work(_load(setup), connection, parent_pid=os.getppid())
    ForkServer(socket.socket(fileno=connection), setup).run()


class ForkServer:
    """Takes one request after the other: `"fork"` with a worker's socket, or the pid of one to end."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control = control
        self._setup = setup
        self._living: set[int] = set()
        self._statuses: dict[int, int] = {}  # of workers that died by themselves
        self._ending: int | None = None

    def run(self) -> None:
        """Until the other end of the control socket is closed; then end all workers."""
        try:
            self._make = _load(self._setup)
        except Exception as error:
            self._reply({"error": type(error).__name__, "text": str(error)})
            return
        gc.collect()
        gc.freeze()  # else the collector writes to pages that workers share
        control = self._control.fileno()
        wake, signal_pipe = os.pipe()
        os.set_blocking(signal_pipe, False)
        signal.set_wakeup_fd(signal_pipe)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready, _, _ = select.select([control, wake], [], [])
            if wake in ready:
                os.read(wake, MESSAGE_BYTES)
                self._reap()
            if control in ready:
                message, sockets, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, 1)
                if not message:
                    break
                self._obey(json.loads(message), sockets)
        for pid in self._living:
            _kill(pid)

    def _obey(self, request: Any, sockets: list[int]) -> None:
        if request == "fork":
            pid = self._start(sockets[0])
            os.close(sockets[0])
            self._living.add(pid)
            self._reply(pid)
            return
        self._ending = int(request)
        if self._ending in self._living:
            _kill(self._ending)
        self._reap()

    def _start(self, connection: int) -> int:
        if len(os.listdir("/proc/self/task")) > 1:
            return _start_anew(self._setup, connection)
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _work(self._make, connection, parent_pid=parent_pid)
        with suppress(OSError):  # it may have gone already
            os.setpgid(pid, pid)
        return pid

    def _reap(self) -> None:
        while self._living:
            exited = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if exited is None:
                break
            _kill(exited.si_pid)  # what it has left; until it is reaped the number is nobody else's
            _, status = os.waitpid(exited.si_pid, 0)
            if exited.si_pid in self._living:
                self._living.remove(exited.si_pid)
                self._statuses[exited.si_pid] = os.waitstatus_to_exitcode(status)
        if self._ending is not None and self._ending not in self._living:
            self._reply(self._statuses.pop(self._ending, None))
            self._ending = None

    def _reply(self, value: Any) -> None:
        with suppress(OSError):
            self._control.send(json.dumps(value).encode())


def _load(setup: Setup) -> Callable[[], Environment]:
    for name in setup.preload:
        with suppress(ImportError):
            importlib.import_module(name)
    make: Callable[[], Environment] = pickle.loads(setup.make)
    return make


def _work(make: Callable[[], Environment], connection: int, *, parent_pid: int) -> NoReturn:
    """Be a worker until the other end of `connection` is closed."""
    status = 1
    try:
        os.setpgid(0, 0)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent_pid:
            numpy = sys.modules.get("numpy")
            if numpy is not None:  # `random` does so itself after a fork
                numpy.random.seed()
            asyncio.run(serve(Worker(make), socket.socket(fileno=connection)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _start_anew(setup: Setup, connection: int) -> int:
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


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
