"""The one filter of system calls that every sandbox has, whoever builds it.

`FORBIDDEN` are calls that lead to namespaces, mounts, keys, other processes' memory, the kernel's settings or
the parts of it that are attacked most; programs do without them. They fail with EPERM, as does `clone` with
the flag of a new namespace. `clone3`, whose flags a filter cannot see, fails with ENOSYS, upon which the C
library takes `clone`. From that list come the compiled filter (`bpf`: bubblewrap, enroot) and the JSON
profile (`profile`: docker, podman). `envs/sandbox/probe.py` tries the calls inside.
"""

import atexit
import errno
import json
import os
import platform
import struct
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_NUMBERS = """
    acct 163 89                       add_key 248 217                   bpf 321 280
    chroot 161 51                     clock_adjtime 305 266             clock_settime 227 112
    create_module 174 -               delete_module 176 106             fanotify_init 300 262
    finit_module 313 273              fsconfig 431 431                  fsmount 432 432
    fsopen 430 430                    fspick 433 433                    get_kernel_syms 177 -
    get_mempolicy 239 236             init_module 175 105               io_uring_enter 426 426
    io_uring_register 427 427         io_uring_setup 425 425            ioperm 173 -
    iopl 172 -                        kcmp 312 272                      kexec_file_load 320 294
    kexec_load 246 104                keyctl 250 219                    lookup_dcookie 212 18
    mbind 237 235                     migrate_pages 256 238             modify_ldt 154 -
    mount 165 40                      mount_setattr 442 442             move_mount 429 429
    move_pages 279 239                name_to_handle_at 303 264         nfsservctl 180 42
    open_by_handle_at 304 265         open_tree 428 428                 perf_event_open 298 241
    personality 135 92                pidfd_getfd 438 438               pivot_root 155 41
    process_madvise 440 440           process_vm_readv 310 270          process_vm_writev 311 271
    ptrace 101 117                    query_module 178 -                quotactl 179 60
    quotactl_fd 443 443               reboot 169 142                    request_key 249 218
    set_mempolicy 238 237             set_mempolicy_home_node 450 450   setdomainname 171 162
    sethostname 170 161               setns 308 268                     settimeofday 164 170
    swapoff 168 225                   swapon 167 224                    sysfs 139 -
    syslog 103 116                    _sysctl 156 -                     umount2 166 39
    unshare 272 97                    uselib 134 -                      userfaultfd 323 282
    ustat 136 -                       vhangup 153 58
    """
_WORDS = _NUMBERS.split()
FORBIDDEN: Mapping[str, Mapping[str, int]] = {
    name: {machine: int(n) for machine, n in zip(MACHINES, numbers, strict=True) if n != "-"}
    for name, *numbers in zip(_WORDS[::3], _WORDS[1::3], _WORDS[2::3], strict=True)
}
"""Name → number on each machine that has the call."""
CLONE: Mapping[str, int] = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
NAMESPACES = {
    "CLONE_NEWNS": 0x20000,
    "CLONE_NEWCGROUP": 0x2000000,
    "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
"""Flags of `clone`."""

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of the kernel's filters (linux/filter.h)."""
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in what a filter sees (`struct seccomp_data`, little-endian)."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
"""From here on x86_64 numbers the calls of its other interface, once more."""

LOADER = """
import base64, ctypes, os, sys
program = base64.b64decode(sys.argv[1])
class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
for call in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(Filter(len(program) // 8, program)), 0, 0)):
    if libc.prctl(*call) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Python: puts itself under a filter, given as base64, and becomes the program that follows. For a backend
that installs none."""


def forbidden_numbers(machine: str | None = None) -> dict[str, int]:
    """Name → number of the calls that are refused whatever their arguments, by default on this machine."""
    machine = machine or platform.machine()
    numbers_here = {name: numbers[machine] for name, numbers in FORBIDDEN.items() if machine in numbers}
    return {**numbers_here, "clone3": CLONE3} if numbers_here else {}


def bpf(machine: str | None = None) -> bytes:
    """The filter for `machine`, by default this one, as the kernel takes it: 8 bytes an instruction."""
    machine = machine or platform.machine()
    numbers = [n for name, n in forbidden_numbers(machine).items() if name != "clone3"]
    # Jumps count from the next instruction; `left` is what stands between a test and the returns.
    tests = [(_LOAD, 0, 0, _ARCH_AT), (_EQUAL, 1, 0, _AUDIT_ARCH[machine]), (_RETURN, 0, 0, _KILL)]
    tests += [(_LOAD, 0, 0, _NUMBER_AT)]
    ends = [_ALLOW, _FAIL | errno.EPERM, _FAIL | errno.ENOSYS]
    checks = [(_AT_LEAST, 2, _X32), (_EQUAL, 2, CLONE3), *((_EQUAL, 1, n) for n in numbers)]
    for index, (test, end, value) in enumerate(checks):
        left = len(checks) - index - 1 + 3  # the three instructions for `clone`
        tests.append((test, left + end, 0, value))
    tests += [(_EQUAL, 0, 2, CLONE[machine]), (_LOAD, 0, 0, _FIRST_ARGUMENT_AT)]
    tests += [(_ANY_BIT, 1, 0, sum(NAMESPACES.values()))]
    return b"".join(
        struct.pack("<HBBI", *instruction)
        for instruction in [*tests, *((_RETURN, 0, 0, end) for end in ends)]
    )


def profile() -> dict[str, Any]:
    """The filter as docker and podman take it. Names that a machine lacks are passed over there."""
    denial = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}
    flags = [
        {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        for flag in NAMESPACES.values()
    ]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": list(FORBIDDEN), **denial},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            *({"names": ["clone"], "args": [flag], **denial} for flag in flags),
        ],
    }


def unknown_machine() -> str | None:
    """None if there is a filter for this machine; else what to do."""
    machine = platform.machine()
    if machine in MACHINES:
        return None
    return f"use a machine of {' or '.join(MACHINES)}: there is no filter of system calls for {machine}"


@cache
def bpf_file() -> Path:
    """A file of `bpf` for this machine, which lives as long as this process."""
    return _write_temporary(bpf(), suffix=".bpf")


@cache
def profile_file() -> Path:
    """A file of `profile`, which lives as long as this process."""
    return _write_temporary(json.dumps(profile()).encode(), suffix=".json")


def _write_temporary(content: bytes, *, suffix: str) -> Path:
    handle, name = tempfile.mkstemp(prefix="wingspan-seccomp-", suffix=suffix)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    atexit.register(_remove, Path(name), os.getpid())
    return Path(name)


def _remove(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a fork has the same exit handlers
        path.unlink(missing_ok=True)
