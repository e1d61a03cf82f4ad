"""A process that the processes of a training on a CPU are forked from, after it has imported their libraries.

Each of them would import torch, transformers and others for 4 to 5 CPU-seconds; a fork of a process that has
them begins within milliseconds and shares their memory. `python` returns the command of a program that stands
for an interpreter (`forked_process.py`): it asks the fork server for a fork, which goes on as that program
would, and ends when the fork does. Ray starts its workers with it (`py_executable` of a `runtime_env`).

A fork is safe because the fork server has one thread; if it has more, the program becomes a new interpreter
itself. Ray must not be imported here: it reads from the environment, when it is imported, which job and which
raylet a worker belongs to. No process outlives its user: the fork server ends when its standard input closes,
the kernel kills forks with their fork server, and a fork is killed when the program that stands for it ends.

This file is the fork server's program as well.
"""

import ctypes
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from agents import process_memory
from tasks.verl.cpu import THREADS_ENV, forked_process
from tasks.verl.cpu.forked_process import Request

_MODULES = (
    "agents.huggingface.models",  # before others import transformers
    "agents.samplers.cpu.engine",
    *("tensordict", "peft", "datasets", "torch._dynamo", "hydra", "fastapi"),
)
"""What verl, TransferQueue and the CPU sampler import, but for Ray and what imports Ray."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""With these, OpenBLAS and Arrow start no threads when they are imported."""
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class _ForkServer:
    """A running fork server, for its user."""

    def __init__(self) -> None:
        address = Path(tempfile.mkdtemp(prefix="fork-"), "socket")  # in a folder that nobody else may enter
        root = str(Path(__file__).parents[3])
        variables = THREADS_ENV | process_memory.ENVIRONMENT | _ONE_THREAD  # read when a process starts
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(address))
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([root, *_python_path()])},
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        self.command = [sys.executable, "-I", "-S", forked_process.__file__, str(address)]

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, and the forks that have not ended yet."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


_server: _ForkServer | None = None


def python() -> list[str]:
    """Return the command of an interpreter that takes a script or `-m` and a module, and their arguments.

    Starts this process's fork server if it has none, without waiting for it: forks do.
    """
    global _server
    if _server is None or not _server.is_alive:
        close()
        _server = _ForkServer()
    return _server.command


def close() -> None:
    """End this process's fork server, and the forks that have not ended yet."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


def _main(listener: int) -> None:
    with process_memory.no_garbage_collection():
        for name in _MODULES:
            importlib.import_module(name)
    request = _Server(socket.socket(fileno=listener)).run()
    if request is not None:
        _continue(request)


class _Server:
    """Forks this process for each request."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._forks: dict[socket.socket, int] = {}
        """The pid of each, by the connection of the program that stands for it."""

    def run(self) -> Request | None:
        """Serve until standard input closes, then kill all forks; returns None, and in a fork its request."""
        wake, signal_pipe = os.pipe()
        os.set_blocking(signal_pipe, False)
        signal.set_wakeup_fd(signal_pipe)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            awaited: list[Any] = [0, wake, self._listener, *self._forks]
            ready, _, _ = select.select(awaited, [], [])
            if 0 in ready:
                break
            if wake in ready:
                os.read(wake, 1 << 12)
            for connection, pid in self._forks.items():
                if connection in ready:  # the program has ended: it sends nothing more
                    os.kill(pid, signal.SIGKILL)
            self._reap()
            if self._listener in ready:
                request = self._fork()
                if request is not None:
                    os.close(wake)
                    os.close(signal_pipe)
                    return request
        for pid in self._forks.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        shutil.rmtree(os.path.dirname(self._listener.getsockname()), ignore_errors=True)
        return None

    def _reap(self) -> None:
        for connection, pid in list(self._forks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with suppress(OSError):
                    connection.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
                connection.close()
                del self._forks[connection]

    def _fork(self) -> Request | None:
        """Fork for the next request; returns the request in the fork."""
        connection, _ = self._listener.accept()
        message, files, _, _ = socket.recv_fds(connection, forked_process.MESSAGE_BYTES, 3)
        pid, server_pid = -1, os.getpid()
        if message and len(os.listdir("/proc/self/task")) == 1:
            pid = os.fork()
        if pid == 0:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != server_pid:
                os._exit(1)
            os.setpgid(0, 0)  # Ray kills the group of a worker
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, file in enumerate(files):
                os.dup2(file, number)
        for file in files:
            os.close(file)
        if pid > 0:
            self._forks[connection] = pid
            with suppress(OSError):  # who asked may have ended already
                connection.send(forked_process.FORKED)
            return None
        connection.close()
        if pid < 0:
            return None
        for other in (self._listener, *self._forks):
            other.close()
        request: Request = json.loads(message)
        return request


def _continue(request: Request) -> None:
    """Go on as the program of `request` would as a new interpreter."""
    entries = _python_path()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    Path("/proc/self/oom_score_adj").write_text(request["oom_score_adj"])
    others = [entry for entry in sys.path[1:] if entry not in entries]
    if "numpy" in sys.modules:  # `random` reseeds itself after a fork
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules and "OMP_NUM_THREADS" in os.environ:  # else 1, as by Ray
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    is_module = request["arguments"][0] == "-m"
    script, *_ = sys.argv = list(request["arguments"][is_module:])
    sys.path[:] = [os.getcwd() if is_module else os.path.dirname(script), *_python_path(), *others]
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


def _python_path() -> list[str]:
    return [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]


if __name__ == "__main__":
    _main(int(sys.argv[1]))
