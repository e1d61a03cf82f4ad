"""The system call filter of every sandbox, whichever backend builds it.

`FORBIDDEN` lists calls that lead to namespaces, mounts, keys, other processes' memory, kernel settings, or
often attacked parts of the kernel; ordinary programs do not need them. They fail with EPERM, as does `clone`
with the flag of a new namespace. `clone3`, whose flags a filter cannot see, fails with ENOSYS, and the C
library falls back to `clone`. The list becomes a compiled filter (`bpf`: bubblewrap, enroot) and a JSON
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
"""Name → machine → number; a machine without the call is absent."""
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
"""Offsets in the filter's input (`struct seccomp_data`, little-endian)."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_X32 = 0x40000000
"""On x86_64 the numbers from here on are the calls of the x32 interface."""

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
"""A Python program that installs a filter (base64) on itself and executes the command that follows; for a
backend that installs none."""


def forbidden_numbers(machine: str | None = None) -> dict[str, int]:
    """Return name → number of the calls refused for any arguments; `machine` defaults to this one."""
    machine = machine or platform.machine()
    numbers_here = {name: numbers[machine] for name, numbers in FORBIDDEN.items() if machine in numbers}
    return {**numbers_here, "clone3": CLONE3} if numbers_here else {}


def bpf(machine: str | None = None) -> bytes:
    """Return the kernel's filter program for `machine` (this one by default), 8 bytes per instruction."""
    machine = machine or platform.machine()
    numbers = [n for name, n in forbidden_numbers(machine).items() if name != "clone3"]
    # Jumps count from the next instruction; `left` instructions stand between a test and the returns.
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


def profile() -> dict[str, object]:
    """Return the filter in the format of docker and podman, which skip names unknown to the machine."""
    denial = {"action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}
    tests = [{"index": 0, "value": f, "valueTwo": f, "op": "SCMP_CMP_MASKED_EQ"} for f in NAMESPACES.values()]
    return {
        "defaultAction": "SCMP_ACT_ALLOW",
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"],
        "syscalls": [
            {"names": list(FORBIDDEN), **denial},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
            *({"names": ["clone"], "args": [test], **denial} for test in tests),
        ],
    }


def filter_file() -> Path:
    """Return the compiled filter as a file in memory, open in this process, for programs that it starts."""
    return _memory_file(os.getpid())


@cache
def _memory_file(pid: int) -> Path:
    # By process: a fork need not inherit open files.
    descriptor = os.memfd_create("wingspan-seccomp")
    os.write(descriptor, bpf())
    return Path(f"/proc/{pid}/fd/{descriptor}")


@cache
def profile_file() -> Path:
    """Write docker's profile to a file that this process deletes when it ends.

    A file in memory would not do: podman reads it in another user namespace, from where that is forbidden.
    """
    handle, name = tempfile.mkstemp(prefix="wingspan-seccomp-", suffix=".json")
    with os.fdopen(handle, "w") as file:
        json.dump(profile(), file)
    path, pid = Path(name), os.getpid()
    # A fork inherits the exit handlers and must not delete its parent's file.
    atexit.register(lambda: path.unlink(missing_ok=True) if os.getpid() == pid else None)
    return path
