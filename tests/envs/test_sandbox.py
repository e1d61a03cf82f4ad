"""The choice of a sandbox, its command lines, and the detection of escapes.

tests/envs/test_interpreter.py tests what sandboxes prevent.
"""

import base64
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from envs.errors import ConfigError, MissingDependency
from envs.sandbox import enroot, seccomp
from envs.sandbox.backend import SandboxLimits, find_escapes
from envs.sandbox.bubblewrap import Bubblewrap
from envs.sandbox.containers import Containers
from envs.sandbox.enroot import Enroot
from envs.sandbox.interpreter import Interpreter
from envs.sandbox.sandbox import BACKENDS, SANDBOX, choose_backend
from tests.support.needs import needs

LIMITS = SandboxLimits(memory_mb=100, processes=9, disk_mb=20, shm_mb=5, open_files=50)
needs_bubblewrap = needs(Bubblewrap())


def remove_words(line: list[str], *words: str) -> list[str]:
    """Return `line` without the first occurrence of the consecutive `words`."""
    position = next(i for i in range(len(line)) if line[i : i + len(words)] == list(words))
    return line[:position] + line[position + len(words) :]


@dataclass(frozen=True)
class Weak(Bubblewrap):
    """Bubblewrap without some words, and with others."""

    removed_words: tuple[str, ...] = ()
    extra_words: tuple[str, ...] = ()

    def command(self, program: Sequence[str], limits: SandboxLimits, *, label: str) -> list[str]:
        line = Bubblewrap.command(self, program, limits, label=label)
        position = line.index("--die-with-parent")
        line = [*line[:position], *self.extra_words, *line[position:]]
        for words in self.removed_words:
            line = remove_words(line, *words.split())
        return line


SIZE = str(SandboxLimits().disk_mb << 20)


@needs_bubblewrap
@pytest.mark.parametrize(
    ("weak", "escape"),
    [
        (Weak(), None),
        (Weak(extra_words=("--share-net",)), "it shares the machine's net namespace"),
        (Weak(removed_words=("--disable-userns", "--seccomp 3")), "it can make user namespaces"),
        (Weak(removed_words=("--remount-ro /",)), "it can write to /"),
        (Weak(removed_words=(f"--size {SIZE}",)), "/tmp has no end"),
        (Weak(removed_words=(f"--nproc={SandboxLimits().processes}",)), "the number of processes has no end"),
        (Weak(removed_words=(f"--as={SandboxLimits().memory_mb << 20}",)), "a process's memory has no end"),
        (Weak(extra_words=("--ro-bind", "/sys", "/sys")), "it sees /sys"),
        (Weak(removed_words=("--seccomp 3",)), "it may call add_key, "),
    ],
    ids=lambda value: "" if isinstance(value, Weak) else value or "no escape",
)
def test_an_escape_is_detected(weak: Weak, escape: str | None) -> None:
    message = find_escapes(weak)
    assert message == escape if escape is None else escape in str(message)
    assert (weak.find_remedy() is None) == (escape is None)


@needs_bubblewrap
async def test_nothing_runs_in_a_sandbox_with_an_escape() -> None:
    with pytest.raises(MissingDependency, match=r"never runs without one.*machine's net namespace"):
        await Interpreter(Weak(extra_words=("--share-net",)), limits=LIMITS).run("1")


def test_a_named_sandbox_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_SANDBOX", "chroot")
    with pytest.raises(ConfigError, match=r"WINGSPAN_SANDBOX=chroot .*bubblewrap, podman, docker, enroot"):
        choose_backend()
    for backend in BACKENDS.values():
        monkeypatch.setenv("WINGSPAN_SANDBOX", backend.name)
        if backend.find_remedy() is None:
            assert choose_backend() is backend
        else:
            with pytest.raises(MissingDependency, match=f"never runs without one.*: {backend.name}: ."):
                choose_backend()


def test_without_any_sandbox_all_remedies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("WINGSPAN_SANDBOX", raising=False)
    message = SANDBOX.find_remedy()
    assert message is not None
    for remedy in ("install bubblewrap", "install podman", "install docker.io", "NVIDIA/enroot"):
        assert remedy in message


RUN = shlex.split(
    "run --rm --interactive --pull=never --name=L --log-driver=none --network=none --ipc=private"
    " --hostname=sandbox --user=65534:65534 --cap-drop=ALL --security-opt=no-new-privileges"
    f" --security-opt=seccomp={seccomp.profile_file()} --pids-limit=9"
    " --ulimit=nproc=4096:4096 --ulimit=nofile=50:50 --memory=145m --memory-swap=145m --shm-size=5m"
    " --read-only --tmpfs /work:rw,exec,nosuid,nodev,mode=1777,size=20m"
    " --tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,size=20m --tmpfs /sys:ro,size=4k"
    " --tmpfs /sys/fs/cgroup:ro,size=4k --workdir=/work"
)
INSIDE = shlex.split(
    "-i PATH=/usr/local/bin:/usr/bin:/bin HOME=/work LANG=C.UTF-8 timeout --signal=KILL 3600"
    " prlimit --as=104857600 --nofile=50 --fsize=20971520 --core=0 python3 x.py"
)


def test_dockers_command_line() -> None:
    line = Containers("docker").command(["python3", "x.py"], LIMITS, label="L")
    assert line == ["docker", *RUN, "--entrypoint=/usr/bin/env", "python:3.11-slim", *INSIDE]


def test_podmans_command_line_shuts_what_podman_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_SANDBOX_IMAGE", "mine")
    line = Containers("podman").command(["python3", "x.py"], LIMITS, label="L")
    options = ["--http-proxy=false", "--no-hosts", "--read-only-tmpfs=false"]
    assert line == ["podman", *RUN, *options, "--entrypoint=/usr/bin/env", "mine", *INSIDE]


def test_enroots_command_line() -> None:
    line = Enroot().command(["python3", "x.py"], LIMITS, label="L")
    folder = Path(enroot.__file__).parent / "enroot_config"
    assert line == [
        *("env", "WINGSPAN_DISK_MB=20", "WINGSPAN_SHM_MB=5"),
        *("unshare", "--user", "--map-current-user", "--keep-caps"),
        *("sh", "-c", 'echo 1 > /proc/sys/user/max_user_namespaces && exec "$@"', "L"),
        *("setpriv", "--ambient-caps=-all", "--inh-caps=-all", "--no-new-privs"),
        *("enroot", "start", "--pid", "--net", "--ipc", "--uts", f"--conf={folder}/sandbox.sh"),
        *("wingspan-python", "/usr/bin/env", "-i", "--chdir=/work", *INSIDE[1:7], "prlimit", "--nproc=9"),
        *("python3", "-I", "-c", seccomp.LOADER, base64.b64encode(seccomp.bpf()).decode()),
        *INSIDE[7:],
    ]
    assert {"ENROOT_SYSCONF_PATH", "ENROOT_CONFIG_PATH"} <= Enroot().environment.keys()
