"""Podman's own filter of system calls, without those that lead to further namespaces, mounts or keys.

Docker's filter leaves them out by itself; podman's allows them, so that containers can be made in containers.
"""

import atexit
import json
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

FORBIDDEN = {
    *("clone", "clone3", "unshare", "setns"),
    *("mount", "umount", "umount2", "pivot_root", "open_tree", "move_mount", "mount_setattr"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "name_to_handle_at"),
    *("keyctl", "add_key", "request_key"),
}
_CLONE = {
    "names": ["clone"],
    "action": "SCMP_ACT_ALLOW",
    # The flags of all new namespaces must be 0. (On s390 they are the second argument: no clone there.)
    "args": [{"index": 0, "value": 0x7E020000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
    "excludes": {"arches": ["s390", "s390x"]},
}


def narrowed(profile: dict[str, Any]) -> dict[str, Any]:
    """`profile`, as in podman's `seccomp.json`, allowing nothing of `FORBIDDEN` but `clone` for processes."""
    rules = [
        {**rule, "names": [name for name in rule["names"] if name not in FORBIDDEN]}
        for rule in profile["syscalls"]
    ]
    return {**profile, "syscalls": [_CLONE, *(rule for rule in rules if rule["names"])]}


@cache
def narrowed_file(profile: Path) -> Path:
    """A file of the narrowed `profile`, which lives as long as this process."""
    handle, name = tempfile.mkstemp(prefix="wingspan-seccomp-", suffix=".json")
    atexit.register(Path(name).unlink, missing_ok=True)
    with os.fdopen(handle, "w") as file:
        json.dump(narrowed(json.loads(profile.read_text())), file)
    return Path(name)
