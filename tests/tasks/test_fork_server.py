"""Forks of the fork server, compared with new interpreters, and how they end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tasks.verl.cpu import fork_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.heavy

STATE = """
import json, os, random, sys
print(json.dumps({
    "arguments": sys.argv[1:],
    "name": __name__,
    "input": sys.stdin.read(),
    "folder": os.getcwd(),
    "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "oom_score_adj": open("/proc/self/oom_score_adj").read(),
    "own": os.environ.get("A_TEST_S_OWN"),
    "inherited": os.environ.get("LEFT_OUT"),
    "path": sys.path[:2],
}))
print("an error", file=sys.stderr)
sys.exit(3)
"""


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    fork_server.close()


@pytest.fixture
def python() -> list[str]:
    return fork_server.python()


def write(path: Path, code: str) -> Path:
    path.write_text(code)
    return path


@pytest.mark.parametrize("form", ["a script", "a module"])
def test_a_fork_has_the_state_of_a_new_interpreter(
    python: list[str], form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEFT_OUT", "of the environment below")
    script, other = write(tmp_path / "state.py", STATE), tmp_path / "other"
    other.mkdir()
    program = [str(script)] if form == "a script" else ["-m", "state"]
    environment = {"PATH": os.environ["PATH"], "A_TEST_S_OWN": "é", "PYTHONPATH": str(other)}

    def run(command: list[str]) -> tuple[int, str, str]:
        done = subprocess.run(
            ["nice", "-n", "3", *command, *program, "1", "two words"],
            input="in",
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stdout, done.stderr

    fork = run(python)
    assert fork == run([sys.executable])
    assert fork[0] == 3
    assert json.loads(fork[1])["own"] == "é"


def test_a_fork_has_the_libraries_and_chance_of_its_own(python: list[str], tmp_path: Path) -> None:
    script = write(
        tmp_path / "forks.py",
        "import json, os, random, sys\n"
        "has = [name in sys.modules for name in ('torch', 'transformers', 'ray', 'verl')]\n"
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
    assert has == [True, True, False, False]
    assert threads == 3
    assert numbers[0] != a
    assert numbers[1] != b


def start_sleeper(python: list[str], folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """The program, and its fork, which sleeps."""
    script = write(folder / "sleep.py", "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(300)")
    program = subprocess.Popen([*python, str(script)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    return program, psutil.Process(int(program.stdout.readline()))


def test_a_fork_ends_with_its_program(python: list[str], tmp_path: Path) -> None:
    program, fork = start_sleeper(python, tmp_path)
    assert fork.pid != program.pid
    assert os.getpgid(fork.pid) == fork.pid
    program.kill()
    program.wait()
    wait_until(lambda: not fork.is_running())


def test_a_program_ends_with_its_fork(python: list[str], tmp_path: Path) -> None:
    program, fork = start_sleeper(python, tmp_path)
    fork.send_signal(signal.SIGKILL)
    assert program.wait(timeout=60) != 0


def test_all_forks_end_with_the_fork_server_and_others_are_new_interpreters(
    python: list[str], tmp_path: Path
) -> None:
    program, fork = start_sleeper(python, tmp_path)
    socket = Path(python[-1])
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    fork_server.close()
    assert program.wait(timeout=60) != 0
    assert not fork.is_running()
    assert not socket.parent.exists()
    again = subprocess.run([*python, "-m", "this"], capture_output=True, text=True)
    assert "Beautiful is better than ugly." in again.stdout


def test_one_that_was_killed_is_replaced(python: list[str], tmp_path: Path) -> None:
    _, fork = start_sleeper(python, tmp_path)
    psutil.Process(fork.ppid()).kill()
    wait_until(lambda: not fork.is_running())
    _, another = start_sleeper(fork_server.python(), tmp_path)
    assert another.is_running()
