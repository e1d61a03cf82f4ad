"""What a command has started ends with it, and a signal ends a command: in small programs."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
GUARDED_SCRIPT = """
import os, subprocess, sys, time
from multiprocessing.shared_memory import SharedMemory
from flows.endings.guardian import guard
guard()
stubborn = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "from multiprocessing.shared_memory import SharedMemory; m = SharedMemory(create=True, size=1 << 12); "
    "print(m.name, flush=True); time.sleep(1000)"
)
program = [sys.executable, "-c", stubborn]
child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, start_new_session=True)
name = child.stdout.readline().strip()
grandchild = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True)
orphan = grandchild.stdout.readline().strip()
if os.fork() == 0:  # a fork holds the descriptors of this process
    time.sleep(15)
    os._exit(0)
print(child.pid, orphan, name, os.environ["TMPDIR"], flush=True)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def start(code: str, *, environment: Mapping[str, str] | None = None) -> "subprocess.Popen[str]":
    """`environment`: instead of this process's."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until_gone(pids: list[int], files: list[Path]) -> None:
    # The fork ends by itself after 15 s.
    wait_until(
        lambda: not any(map(is_running, pids)) and not any(file.exists() for file in files), timeout_s=13
    )


@pytest.mark.parametrize(
    "ending",
    ["kill -9", "return", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("exception", "_exit"))],
)
def test_nothing_is_left_of_a_command(ending: str) -> None:
    last = {
        "kill -9": "time.sleep(1000)",
        "return": "",
        "exception": "raise ValueError",
        "_exit": "os._exit(7)",
    }[ending]
    process = start(GUARDED_SCRIPT + last)
    assert process.stdout is not None
    child, orphan, memory, folder = process.stdout.readline().split()
    files = [Path("/dev/shm") / memory, Path(folder)]
    if ending == "kill -9":
        assert all(is_running(int(pid)) for pid in (child, orphan))
        assert all(file.exists() for file in files)
        process.kill()
    wait_until_gone([process.pid, int(child), int(orphan)], files)
    process.wait()


def test_a_user_id_without_a_name_is_guarded() -> None:
    user = ["unshare", "--user", "--map-user=12345"]
    if shutil.which("unshare") is None or subprocess.run([*user, "true"], check=False).returncode != 0:
        pytest.skip("no user namespaces here")
    code = "from flows.endings.guardian import guard; guard()"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LOGNAME", "USER", "LNAME", "USERNAME", "TORCHINDUCTOR_CACHE_DIR")
    }
    subprocess.run([*user, sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


@pytest.mark.parametrize(("terminal", "code"), [("dumb", b""), ("xterm", b"\x1b[?25h")])
@pytest.mark.parametrize("ending", ["leave('last', status=3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_terminal_gets_no_code_that_it_does_not_know(terminal: str, code: bytes, ending: str) -> None:
    ours, theirs = os.openpty()
    program = (
        "import os, signal\n"
        "from flows.endings.guardian import guard\n"
        "from flows.endings.stopping import leave\n"
        f"guard(if_killed='last')\n{ending}"
    )
    environment = {**os.environ, "TERM": terminal}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, stderr=theirs, check=False)
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(ours, 100)
    os.close(ours)
    os.close(theirs)
    assert line == code + b"last\r\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)])
def test_an_argument_that_is_not_utf_8_is_in_the_last_line_as_it_was_given(
    number: signal.Signals, status: int
) -> None:
    code = (
        "import os, subprocess, sys, time\n"
        "from flows.endings.guardian import guard\n"
        "from flows.endings.stopping import Stoppable, resume_hint\n"
        "guard(if_killed=resume_hint())\n"
        "with Stoppable(resume_hint()):\n"
        "    child = subprocess.Popen(['sleep', '1000'], stderr=subprocess.DEVNULL)\n"
        "    print(child.pid, os.environ['TMPDIR'], flush=True)\n"
        "    time.sleep(1000)\n"
    )
    workspace = b"runs/caf\xe9"
    process = subprocess.Popen(
        [sys.executable, "-c", code, b"--workspace", workspace],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    child, folder = process.stdout.readline().decode().split()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == status
    assert stderr == b"the same command resumes: wingspan --workspace '" + workspace + b"'\n"
    wait_until_gone([int(child)], [Path(folder)])


@pytest.mark.parametrize(
    ("ending", "is_killed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os._exit(1)", True),  # as Ray's client does
        ("", False),
        ("sys.exit(3)", False),
        ("raise ValueError", False),
        ("leave('a line', status=3)", False),
    ],
)
def test_a_line_is_printed_for_a_command_that_ends_without_one(ending: str, is_killed: bool) -> None:
    process = start(
        "import os, signal, sys\n"
        "from flows.endings.guardian import guard\n"
        "from flows.endings.stopping import leave\n"
        f"guard(if_killed='killed; resume it')\n{ending}"
    )
    _, stderr = process.communicate(timeout=60)
    assert (stderr == "killed; resume it\n") == is_killed
    assert ("killed; resume it" in stderr) == is_killed


@pytest.mark.heavy
def test_another_command_is_left_alone() -> None:
    first, second = start(GUARDED_SCRIPT + "time.sleep(1000)"), start(GUARDED_SCRIPT + "time.sleep(1000)")
    assert first.stdout is not None
    assert second.stdout is not None
    child, orphan, memory, folder = first.stdout.readline().split()
    second_lines = second.stdout.readline().split()
    first.kill()
    wait_until_gone([int(child), int(orphan)], [Path("/dev/shm") / memory, Path(folder)])
    assert all(is_running(int(pid)) for pid in second_lines[:2])
    assert Path(second_lines[3]).is_dir()
    second.kill()
    wait_until_gone([int(second_lines[0]), int(second_lines[1])], [Path(second_lines[3])])
    for process in (first, second):
        process.wait()


@pytest.mark.heavy
def test_a_command_that_a_command_started_ends_with_it_and_cleans_up() -> None:
    inner = GUARDED_SCRIPT + "time.sleep(1000)"
    outer = start(
        "import subprocess, sys\n"
        "from flows.endings.guardian import guard\n"
        f"guard()\nsubprocess.run([sys.executable, '-c', {inner!r}])"
    )
    assert outer.stdout is not None
    child, orphan, memory, folder = outer.stdout.readline().split()
    outer.kill()
    wait_until_gone([int(child), int(orphan)], [Path("/dev/shm") / memory, Path(folder)])
    outer.wait()


RENAMED_SCRIPT = """
import subprocess, sys, time
from flows.endings.guardian import guard
guard()
program = (
    "import time; from ray._raylet import setproctitle; setproctitle('x' * 4096); "
    "print(flush=True); time.sleep(1000)"
)
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.heavy
def test_a_process_of_ray_that_has_set_its_title_ends_as_well() -> None:
    """A title is written over the arguments and, where it is longer, over the environment behind them."""
    process = start(RENAMED_SCRIPT, environment={"PATH": os.environ["PATH"]})
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"xxx")
    process.kill()
    wait_until_gone([child], [])
    process.wait()


STOPPABLE = """
import os, sys, time
from flows.endings.guardian import guard
from flows.endings.stopping import Stoppable, on_stop
guard()
with Stoppable("stopped; go on"):
    on_stop(lambda: print("recorded", flush=True))
    on_stop(lambda: 1 / 0)
    ready = lambda: print("ready", flush=True)
    BODY
"""
BODIES = {
    "sleeps": "ready(); time.sleep(1000)",
    "closes slowly": """try:
        ready()
        time.sleep(1000)
    finally:
        print("closing", flush=True)
        time.sleep(1000)""",
    "swallows it": """ready()
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass""",
    "is in C code": "import ctypes; ready(); [ctypes.CDLL(None).usleep(900_000) for _ in range(1000)]",
    "fails as it closes": """try:
        ready()
        time.sleep(1000)
    finally:
        raise ValueError""",
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("body", "number", "times"),
    [
        ("sleeps", signal.SIGINT, 1),
        ("sleeps", signal.SIGTERM, 1),
        ("closes slowly", signal.SIGINT, 1),
        ("closes slowly", signal.SIGINT, 2),
        ("swallows it", signal.SIGINT, 1),
        ("is in C code", signal.SIGTERM, 1),
        ("fails as it closes", signal.SIGINT, 1),
    ],
)
def test_a_signal_ends_a_command(body: str, number: signal.Signals, times: int) -> None:
    process = start(STOPPABLE.replace("BODY", BODIES[body]))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for _ in range(times - 1):
        os.killpg(process.pid, number)
        assert process.stdout.readline() == "closing\n"
    os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert output.removeprefix("closing\n") == "recorded\n"
    assert errors == "stopped; go on\n"


@pytest.mark.heavy
def test_a_record_that_hangs_does_not_hold_a_command_up() -> None:
    code = STOPPABLE.replace("1 / 0", "time.sleep(1000)").replace("BODY", BODIES["sleeps"])
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "stopped; go on\n"


def test_signals_are_whose_they_were_after_it() -> None:
    code = STOPPABLE.replace("BODY", "ready()") + (
        "import signal\n"
        "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
        "assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL\n"
        "assert signal.set_wakeup_fd(-1) == -1\n"
    )
    process = start(code)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "ready\n", "")
