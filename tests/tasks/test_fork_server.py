"""Forks of the fork server, compared with new interpreters, and how they end."""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tasks.verl.cpu import fork_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.heavy

STATE = """
import json, os, resource, sys
umask = os.umask(0)
variables = {name: value for name, value in os.environ.items() if name != "_"}
print(json.dumps([
    sys.argv, __name__, sys.stdin.read(), os.getcwd(), variables, sys.path, umask,
    os.getpriority(os.PRIO_PROCESS, 0), resource.getrlimit(resource.RLIMIT_NOFILE),
    open("/proc/self/oom_score_adj").read(),
]))
print("an error", file=sys.stderr)
sys.exit(3)
"""
WITH_OTHER_LIMITS = 'echo 700 > /proc/self/oom_score_adj; ulimit -S -n 512; umask 077; exec nice -n 3 "$@"'
"""A program of sh, which runs its arguments."""


@pytest.fixture(scope="module", autouse=True)
def _own_fork_server(fork_server_holder: ExitStack) -> Iterator[None]:
    """One that these tests may end."""
    fork_server_holder.close()
    yield
    fork_server.close()
    fork_server_holder.enter_context(fork_server.keep_open())


@pytest.fixture
def python() -> list[str]:
    return fork_server.interpreter_command()


def write(path: Path, code: str) -> Path:
    path.write_text(code)
    return path


@pytest.mark.parametrize("form", ["a script", "a module"])
def test_a_fork_has_the_state_of_a_new_interpreter(python: list[str], form: str, tmp_path: Path) -> None:
    write(tmp_path / "state.py", STATE)
    (tmp_path / "other").mkdir()
    program = ["state.py"] if form == "a script" else ["-m", "state"]
    environment = {"PATH": os.environ["PATH"], "OWN": "é", "PYTHONPATH": "other", "OMP_NUM_THREADS": ""}

    def run(command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            ["sh", "-c", WITH_OTHER_LIMITS, "sh", *command, *program, "1", "two words"],
            input="in",
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    fork = run(python)
    assert fork == run([sys.executable])
    assert fork[0] == 3
    niceness = min(os.getpriority(os.PRIO_PROCESS, 0) + 3, 19)
    assert json.loads(fork[1])[-4:] == [0o077, niceness, [512, hard_limit], "700\n"]


def test_a_fork_has_the_libraries_and_its_own_random_numbers(python: list[str], tmp_path: Path) -> None:
    script = write(
        tmp_path / "forks.py",
        "import json, os, random, sys\n"
        "names = ['torch', 'transformers', 'tasks.verl.cpu.attention_kernel', 'ray', 'verl']\n"
        "has = [name in sys.modules for name in names]\n"
        "import numpy, torch\n"
        "numbers = [random.random(), numpy.random.random()]\n"
        "print(json.dumps([os.getpid(), has, torch.get_num_threads(), *numbers]))",
    )
    commands = [[*python, str(script)]] * 2
    outputs = [
        subprocess.run(c, env={**os.environ, "OMP_NUM_THREADS": "3"}, capture_output=True, check=True).stdout
        for c in commands
    ]
    (pid, has, threads, *numbers), (other_pid, *_, a, b) = map(json.loads, outputs)
    assert pid != other_pid
    assert has == [True, True, True, False, False]
    assert threads == 3
    assert numbers[0] != a
    assert numbers[1] != b


def start_sleeper(python: list[str], folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """The program, and its fork, which sleeps."""
    script = write(folder / "sleep.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)")
    program = subprocess.Popen([*python, str(script)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    return program, psutil.Process(int(program.stdout.readline()))


def has_ended(process: psutil.Process) -> bool:
    """A zombie has, too: its parent may be one that reaps no orphans."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_fork_ends_with_its_program(python: list[str], tmp_path: Path) -> None:
    program, fork = start_sleeper(python, tmp_path)
    assert fork.pid != program.pid
    assert os.getpgid(fork.pid) == fork.pid
    program.kill()
    program.wait()
    wait_until(lambda: has_ended(fork))


def test_a_program_ends_with_its_fork(python: list[str], tmp_path: Path) -> None:
    program, fork = start_sleeper(python, tmp_path)
    fork.send_signal(signal.SIGKILL)
    assert program.wait(timeout=60) == -signal.SIGKILL


def test_all_forks_end_with_the_fork_server_and_others_are_new_interpreters(
    python: list[str], tmp_path: Path
) -> None:
    program, fork = start_sleeper(python, tmp_path)
    socket = Path(python[-1])
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    with fork_server.keep_open():
        with fork_server.keep_open():
            fork_server.close()
        assert fork_server.interpreter_command() == python
        assert not has_ended(fork)
    assert program.wait(timeout=60) != 0
    assert has_ended(fork)
    assert not socket.parent.exists()
    again = subprocess.run([*python, "-m", "this"], capture_output=True, text=True)
    assert "Beautiful is better than ugly." in again.stdout


def test_one_that_was_killed_is_replaced(python: list[str], tmp_path: Path) -> None:
    _, fork = start_sleeper(python, tmp_path)
    psutil.Process(fork.ppid()).kill()
    wait_until(lambda: has_ended(fork))
    _, another = start_sleeper(fork_server.interpreter_command(), tmp_path)
    assert another.is_running()


def test_one_that_cannot_import_says_so_and_programs_run_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "transformers.py", "raise ImportError('half of it is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    fork_server.close()
    python = fork_server.interpreter_command()
    done = subprocess.run([*python, "-c", "print(6 * 7)"], capture_output=True, text=True)
    assert done.stdout == "42\n"
    fork_server.close()
    (warning,) = caplog.messages
    assert "(ImportError: half of it is missing)" in warning


def test_one_that_cannot_start_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fork_server.close()
    nowhere = str(tmp_path / "python")
    monkeypatch.setattr(sys, "executable", nowhere)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert fork_server.interpreter_command() == [nowhere]
    assert not any((tmp_path / "temporary").iterdir())
