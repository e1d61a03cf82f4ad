"""The system call filter: its verdict on each call, and that ordinary programs run under it."""

import base64
import errno
import json
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from envs.sandbox.seccomp import FORBIDDEN, LOADER, MACHINES, NAMESPACES, bpf, filter_file, profile_file

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_… of linux/audit.h."""
NUMBERS = {"x86_64": {101, 135, 165, 248, 250, 272}, "aarch64": {117, 92, 40, 217, 219, 97}}
"""ptrace, personality, mount, add_key, keyctl, unshare: of asm/unistd_64.h and asm-generic/unistd.h."""
CLONE = {"x86_64": 56, "aarch64": 220}
EVERYDAY = {"x86_64": (0, 1, 3, 9, 59, 61, 202, 231, 262), "aarch64": (63, 64, 57, 222, 221, 260, 98, 94, 79)}
"""read, write, close, mmap, execve, wait4, futex, exit_group, newfstatat."""
THREAD = 0x3D0F00
"""Flags of the C library's `clone` for a thread."""
ALLOW, KILL = 0x7FFF0000, 0x80000000


def fails(number: int) -> int:
    return 0x00050000 | number


def run_filter(program: bytes, *, machine: str, number: int, argument: int = 0) -> int:
    """Interpret the filter `program` by the rules of linux/filter.h."""
    data = struct.pack("<IIQQ", number, ARCHITECTURES[machine], 0, argument)
    value, position = 0, 0
    for _ in range(1000):
        code, yes, no, constant = struct.unpack_from("<HBBI", program, 8 * position)
        position += 1
        match code:
            case 0x20:
                (value,) = struct.unpack_from("<I", data, constant)
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
                position += yes if holds else no
            case 0x06:
                return int(constant)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("machine", MACHINES)
def test_every_call_is_answered_as_the_list_says(machine: str) -> None:
    forbidden = {numbers[machine] for numbers in FORBIDDEN.values() if machine in numbers}
    assert forbidden >= NUMBERS[machine] | {425, 426, 427}  # io_uring's
    assert not forbidden & {*EVERYDAY[machine], CLONE[machine]}
    program = bpf(machine)
    for number in range(600):
        default = ALLOW if number not in forbidden else fails(errno.EPERM)
        verdict = fails(errno.ENOSYS) if number == 435 else default
        assert run_filter(program, machine=machine, number=number) == verdict, number


@pytest.mark.parametrize("machine", MACHINES)
def test_clone_makes_processes_and_threads_and_no_namespace(machine: str) -> None:
    def clone(flags: int) -> int:
        return run_filter(bpf(machine), machine=machine, number=CLONE[machine], argument=flags)

    assert clone(17) == clone(THREAD) == clone(0x4111) == ALLOW  # SIGCHLD; and with CLONE_VFORK | CLONE_VM
    for flag in NAMESPACES.values():
        assert clone(flag | 17) == fails(errno.EPERM)


def test_calls_of_another_interface_are_refused() -> None:
    foreign = run_filter(bpf("aarch64"), machine="x86_64", number=0)
    x32 = run_filter(bpf("x86_64"), machine="x86_64", number=0x40000000 | 250)
    assert (foreign, x32) == (KILL, fails(errno.ENOSYS))


def test_containers_refuse_what_the_compiled_filter_refuses() -> None:
    profile = json.loads(profile_file().read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    rules: dict[str, list[object]] = {}
    for rule in profile["syscalls"]:
        assert rule["action"] == "SCMP_ACT_ERRNO"
        for name in rule["names"]:
            rules.setdefault(name, []).append((rule["errnoRet"], rule.get("args")))
    assert rules.pop("clone3") == [(errno.ENOSYS, None)]
    conditions = [
        {"index": 0, "value": f, "valueTwo": f, "op": "SCMP_CMP_MASKED_EQ"} for f in NAMESPACES.values()
    ]
    assert rules.pop("clone") == [(errno.EPERM, [flag]) for flag in conditions]
    assert rules == {name: [(errno.EPERM, None)] for name in FORBIDDEN}


ORDINARY = """
import asyncio, concurrent.futures, ctypes, multiprocessing, os, subprocess, tempfile, threading
import numpy as np
def square(x): return x * x
if __name__ == "__main__":
    threads = [threading.Thread(target=square, args=(i,)) for i in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True, text=True).stdout == "a\\n"
    a = np.random.default_rng(0).random((200, 200))
    assert np.allclose(np.linalg.inv(a) @ a, np.eye(200))
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(3))) == [0, 1, 4]
    asyncio.run(asyncio.sleep(0.01))
    with tempfile.NamedTemporaryFile() as file: file.write(b"x")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(0) == -1 and ctypes.get_errno() == 1
    print("done")
"""


@pytest.mark.skipif(platform.machine() not in MACHINES, reason="no filter for this machine")
def test_ordinary_programs_run_under_it(tmp_path: Path) -> None:
    """By the loader, on this machine's own interpreter: threads, processes, pools, numpy."""
    (tmp_path / "ordinary.py").write_text(ORDINARY)
    program = base64.b64encode(filter_file().read_bytes()).decode()
    line = [sys.executable, "-I", "-c", LOADER, program, sys.executable, str(tmp_path / "ordinary.py")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("done\n", 0), done.stderr
