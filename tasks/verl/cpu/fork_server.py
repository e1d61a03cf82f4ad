"""A process that the processes of a training on a CPU are forked from, after it has imported their libraries.

Each of them would import torch, transformers and others for 4 to 5 CPU-seconds; a fork of a process that has
them begins within milliseconds and shares their memory. `interpreter_command` returns the command of a
program that represents an interpreter (`forked_process.py`): it asks the fork server for a fork, which runs
what the interpreter would, and ends when the fork does. Ray starts its workers with it (`py_executable` of a
`runtime_env`).

A fork is safe because the fork server has one thread (OpenBLAS and Arrow are told to start none); if it has
more, or cannot fork, the program becomes a new interpreter itself. Ray must not be imported here: it reads
from the environment, when it is imported, which job and which raylet a worker belongs to. No fork outlives
its user: the fork server ends when its standard input closes, the kernel kills forks with their fork server,
and a fork is killed when the program that represents it ends.

This file is the fork server's program as well.
"""

import importlib
import json
import logging
import os
import resource
import runpy
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agents import process_memory
from envs.errors import to_line
from envs.runtime.forking import begin_fork, has_one_thread, kill_group, watch_children
from tasks.cluster.python_path import python_path
from tasks.verl.cpu import TORCH_ENV, forked_process
from tasks.verl.cpu.forked_process import ForkRequest

_MODULES = (
    "agents.huggingface.models",  # before others import transformers
    "agents.samplers.cpu.engine",
    "tasks.verl.cpu.attention_kernel",
    *("tensordict", "peft", "datasets", "torch._dynamo", "hydra", "fastapi"),
)
"""What verl, TransferQueue, the CPU sampler and updates import, but for Ray and what imports Ray. Functions
that numba has not compiled yet are compiled here, once for all forks."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""With these, OpenBLAS and Arrow start no threads when they are imported."""
_END_S = 5.0
"""How long a fork server may take to end its forks before it is killed, and they with it."""
_CLIENT_S = 10.0
"""How long a program that has connected may take to send its request."""

_log = logging.getLogger(__name__)


class _Handle:
    """A running fork server, for its user."""

    def __init__(self) -> None:
        """Raises `OSError` if the path of the temporary folder is too long for a socket, or if there is no
        memory, process or file left."""
        self._folder = Path(tempfile.mkdtemp(prefix="fork-"))  # nobody else may enter it
        self._errors = self._folder / "errors.txt"
        address = str(self._folder / "socket")
        try:
            self._process = self._start(address)
        except OSError:
            shutil.rmtree(self._folder)
            raise
        self.command = [sys.executable, "-I", "-S", forked_process.__file__, address]

    def _start(self, address: str) -> "subprocess.Popen[bytes]":
        variables = TORCH_ENV | process_memory.ENVIRONMENT | _ONE_THREAD  # read when a process starts
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener,
            self._errors.open("wb") as errors,
        ):
            listener.bind(address)
            listener.listen(128)
            return subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env={**os.environ, **variables, "PYTHONPATH": python_path()},
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, and the forks that have not ended yet. Warns if it could not import what it must."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:  # it is still importing
            self._process.kill()
            self._process.wait()
        if self._process.returncode > 0:
            *_, reason = ["no error", *self._errors.read_text(errors="replace").strip().splitlines()]
            _log.warning(
                "the fork server of training processes ended (%s), and each of these started slowly; repair "
                "the installation: make install",
                to_line(reason),
            )
        shutil.rmtree(self._folder, ignore_errors=True)


_handle: _Handle | None = None
_num_holders = 0
"""How many `keep_open` blocks are open."""


def interpreter_command() -> list[str]:
    """Return the command of an interpreter that takes a script or `-m` and a module, and their arguments.

    Starts this process's fork server if it has none, without waiting for it: forks do.
    """
    global _handle
    if _handle is None or not _handle.is_alive:
        if _handle is not None:
            _handle.close()
        try:
            _handle = _Handle()
        except OSError:
            return [sys.executable]
    return _handle.command


@contextmanager
def keep_open() -> Iterator[None]:
    """Leave the fork server running until the end of the block, even if `close` is called inside it.

    Blocks may be nested; the fork server ends with the outermost.
    """
    global _num_holders
    _num_holders += 1
    try:
        yield
    finally:
        _num_holders -= 1
        close()


def close() -> None:
    """End this process's fork server, and the forks that have not ended yet, unless `keep_open` holds it."""
    global _handle
    if _handle is not None and not _num_holders:
        _handle.close()
        _handle = None


def _main(listener: int) -> None:
    with process_memory.no_garbage_collection():
        for name in _MODULES:
            importlib.import_module(name)
    request = _ForkServer(socket.socket(fileno=listener)).run()
    if request is not None:
        _run(request)


class _ForkServer:
    """Forks this process for each request."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._forks: dict[socket.socket, int] = {}
        """The pid of each, by the connection of the program that represents it."""
        self._abandoned: set[socket.socket] = set()
        """Of programs that have ended before their forks, which are killed."""

    def run(self) -> ForkRequest | None:
        """Serve until standard input closes, then kill all forks; returns None, and in a fork its request."""
        wake = watch_children()
        while True:
            awaited: list[int | socket.socket] = [
                0,
                wake,
                self._listener,
                *(self._forks.keys() - self._abandoned),
            ]
            ready, _, _ = select.select(awaited, [], [])
            if 0 in ready:
                break
            if wake in ready:
                os.read(wake, 1 << 12)
            for connection in self._forks.keys() & set(ready):  # a program sends nothing more: it has ended
                kill_group(self._forks[connection])
                self._abandoned.add(connection)
            self._reap()
            if self._listener in ready:
                request = self._fork()
                if request is not None:
                    return request
        for pid in self._forks.values():
            kill_group(pid)
            os.waitpid(pid, 0)
        return None

    def _reap(self) -> None:
        for connection, pid in list(self._forks.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with suppress(OSError):
                    connection.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
                connection.close()
                del self._forks[connection]
                self._abandoned.discard(connection)

    def _fork(self) -> ForkRequest | None:
        """Fork for the next request; returns the request in the fork."""
        try:
            connection, _ = self._listener.accept()
        except OSError:  # too many open files, or the program has ended
            return None
        files: list[int] = []
        try:
            connection.settimeout(_CLIENT_S)
            message, files, _, _ = socket.recv_fds(connection, forked_process.MESSAGE_BYTES, 3)
            server_pid = os.getpid()
            pid = os.fork() if message and has_one_thread() else -1
        except OSError:
            pid = -1
        if pid == 0:
            begin_fork(server_pid)
            for number, file in enumerate(files):
                os.dup2(file, number)
        for file in files:
            os.close(file)
        if pid > 0:
            with suppress(OSError):  # it may have ended already
                os.setpgid(pid, pid)
            self._forks[connection] = pid
            with suppress(OSError):
                connection.send(forked_process.FORKED)
            return None
        connection.close()
        if pid < 0:
            return None
        for other in (self._listener, *self._forks):
            other.close()
        request: ForkRequest = json.loads(message)
        return request


def _run(request: ForkRequest) -> None:
    """Run what a new interpreter would run for `request`, with the state that it would have."""
    entries_before = _python_path()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.setpriority(os.PRIO_PROCESS, 0, request["niceness"])
    resource.setrlimit(resource.RLIMIT_NOFILE, request["open_files"])
    with suppress(OSError):  # a lower one takes a right
        Path("/proc/self/oom_score_adj").write_text(request["oom_score_adj"])
    is_module = request["arguments"][0] == "-m"
    script, *_ = sys.argv = list(request["arguments"][is_module:])
    folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(script))
    installed = [entry for entry in sys.path[1:] if entry not in entries_before]
    sys.path[:] = [folder, *_python_path(), *installed]
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdecimal():  # else 1, as Ray sets it
        sys.modules["torch"].set_num_threads(int(threads))
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(script, run_name="__main__")


def _python_path() -> list[str]:
    """The folders of `PYTHONPATH`, as an interpreter has them in `sys.path`."""
    variable = os.environ.get("PYTHONPATH", "")
    return [os.path.abspath(entry) for entry in variable.split(os.pathsep)] if variable else []


if __name__ == "__main__":
    _main(int(sys.argv[1]))
