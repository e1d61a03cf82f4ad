"""The program that tries to escape from a sandbox; it needs only the standard library.

Its argument is a JSON object of what the sandbox must enforce; it prints a JSON list of the escapes it found.
"""

import ctypes
import errno
import json
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

_DEVICES = {
    "console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin",
    "stdout", "tty", "urandom", "zero",
}  # fmt: skip
_SHELL_VARIABLES = {"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"}
"""Variables that Python or a shell sets itself."""
_CLONE_NEWUSER = 0x10000000


class _Request(TypedDict):
    limits: dict[str, int]
    """Those of the sandbox, in the units of their names."""
    environment: list[str]
    """The variables that it sets."""
    namespaces: dict[str, str]
    """The machine's, by kind."""
    calls: dict[str, int]
    """The numbers of the forbidden system calls."""
    clone: int
    """The number of `clone`."""


def find_escapes(request: _Request) -> list[str]:
    """Return a few words for each rule that the sandbox breaks."""
    limits, status = request["limits"], Path("/proc/self/status").read_text()
    facts = dict(line.split(":", 1) for line in status.splitlines())
    escapes = {
        "it runs as root": 0 in (*os.getresuid(), *os.getresgid()),
        "it has privileges": int(facts["CapEff"], 16) | int(facts["CapPrm"], 16) != 0,
        "it may gain privileges": facts["NoNewPrivs"].strip() != "1",
        "it has a network": any(name != "lo" for _, name in socket.if_nameindex()),
        "it sees the machine's devices": bool(set(os.listdir("/dev")) - _DEVICES),
        "it sees /sys": any(files for _, _, files in os.walk("/sys")),
        "it sees the environment": any(
            _environment_names(pid) - set(request["environment"]) - _SHELL_VARIABLES
            for pid in filter(str.isdigit, os.listdir("/proc"))
        ),
        "a process's memory has no end": _rlimit(resource.RLIMIT_AS) > limits["memory_mb"] << 20,
        "a file's size has no end": _rlimit(resource.RLIMIT_FSIZE) > limits["disk_mb"] << 20,
    }
    for kind, theirs in request["namespaces"].items():
        escapes[f"it shares the machine's {kind} namespace"] = os.readlink(f"/proc/self/ns/{kind}") == theirs
    for folder in ("/", "/usr", "/dev"):
        escapes[f"it can write to {folder}"] = _can_write(folder)
    sizes = {"/work": limits["disk_mb"], "/tmp": limits["disk_mb"], "/dev/shm": limits["shm_mb"]}
    for folder, size_mb in sizes.items():
        files = os.statvfs(folder)
        is_larger = files.f_blocks * files.f_frsize > size_mb << 20
        escapes[f"{folder} has no end"] = _can_write(folder) and is_larger
    escapes["the number of processes has no end"] = _allows_more_processes(limits["processes"])
    escapes["it can make user namespaces"] = ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0
    escapes["it can fork into a user namespace"] = _forks_into_namespace(request["clone"])
    permitted_calls = [name for name, number in request["calls"].items() if _may_call(number)]
    escapes[f"it may call {', '.join(permitted_calls)}"] = bool(permitted_calls)
    return [escape for escape, is_possible in escapes.items() if is_possible]


def _may_call(number: int) -> bool:
    """Whether the kernel runs a system call; the arguments are invalid, so that it does no harm."""
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
    return answer != -1 or ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS)


def _forks_into_namespace(clone: int) -> bool:
    child: int = ctypes.CDLL(None).syscall(clone, ctypes.c_long(_CLONE_NEWUSER | signal.SIGCHLD), *[0] * 4)
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child > 0


def _environment_names(pid: str) -> set[str]:
    """Return the names of the variables that process `pid` was started with."""
    with suppress(OSError):
        environ = Path("/proc", pid, "environ").read_bytes()
        return {entry.split(b"=")[0].decode(errors="replace") for entry in environ.split(b"\0") if entry}
    return set()


def _rlimit(kind: int) -> float:
    hard = resource.getrlimit(kind)[1]
    return float("inf") if hard == resource.RLIM_INFINITY else hard


def _can_write(folder: str) -> bool:
    file = Path(folder, ".wingspan-probe")
    with suppress(OSError):
        file.write_text("")
        file.unlink()
        return True
    return False


def _allows_more_processes(limit: int) -> bool:
    children: list[int] = []
    try:
        for _ in range(limit + 1):
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
    except OSError:
        return False
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return True


if __name__ == "__main__":
    print(json.dumps(find_escapes(json.loads(sys.argv[1]))))
