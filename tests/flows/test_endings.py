"""Runs that are stopped in a terminal, and runs that lose Ray's or Prefect's server: for real, small.

One story in one project, told in order: stopped by Ctrl-C twice in the warm-up; stopped by SIGTERM in
training; finished though first Ray's control service dies, then Prefect's server. `kill -9` is a chapter of
`test_flow.py`.
"""

import os
import pty
import re
import select
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import yaml

from tests.flows.test_flow import (
    NAME,
    environment_of,
    flow_states,
    make_project,
    processes_of,
    recorded,
    steps_done,
    wait_for_nothing_left,
)

pytestmark = pytest.mark.slow
LIMIT_S = 600
STEPS = 4


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("endings")
    make_project(folder)
    file = folder / "pipelines.yaml"
    document = yaml.safe_load(file.read_text())
    document["pipelines"][NAME]["train"]["steps"] = STEPS
    file.write_text(yaml.safe_dump(document))
    return folder


class Terminal:
    """A `wingspan run` in the foreground of a terminal of its own."""

    def __init__(self, project: Path) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(project)
            os.execvpe("wingspan", ["wingspan", "run", NAME], {**environment_of(project), "COLUMNS": "120"})
        self._output = b""
        self._status: int | None = None

    @property
    def screen(self) -> str:
        """All that was printed, without colours and movements."""
        return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\r", b"", self._output).decode(errors="replace")

    def read(self) -> bool:
        """Read what there is; whether the terminal is still open."""
        if not select.select([self._terminal], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self._terminal, 1 << 16)
        except OSError:  # the last process that had it is gone
            return False
        self._output += part
        return bool(part)

    def press_ctrl_c(self) -> None:
        """What the key does: SIGINT to every process of the foreground."""
        os.write(self._terminal, b"\x03")

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not true():
            assert self.read(), self.screen[-3000:]
            assert time.monotonic() < deadline, self.screen[-3000:]

    def end(self) -> int:
        """Wait for the end; the exit status."""
        deadline = time.monotonic() + LIMIT_S
        while self.read():
            assert time.monotonic() < deadline, self.screen[-3000:]
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)

    def is_at(self, stage: str) -> bool:
        """Whether the display shows a spinner before `stage`."""
        marks = re.findall(rf"(\S)  {stage}\b", self.screen[-2000:])
        return bool(marks) and marks[-1] in "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@contextmanager
def measured(what: str) -> Iterator[None]:
    """Print the seconds: on a busy machine they say little, so nothing is asserted of them."""
    began, cpu = time.perf_counter(), psutil.cpu_times()
    yield
    used = psutil.cpu_times()
    share = used.user + used.system - cpu.user - cpu.system
    print(f"{what}: {time.perf_counter() - began:.1f} s, in which the machine worked {share:.1f} CPU-s")


def assert_stopped(terminal: Terminal, project: Path, *, status: int) -> None:
    with measured("from the signal to the prompt"):
        assert terminal.end() == status, terminal.screen[-3000:]
    wait_for_nothing_left(project)
    after = terminal.screen.replace("^C", "")  # the terminal's echo
    said = re.findall(rf"^stopped; .*: wingspan run {NAME}$", after, flags=re.MULTILINE)
    assert len(said) == 1, after[-3000:]
    assert "Traceback" not in after
    assert "EventsWorker" not in after
    assert flow_states(project)[-1] == "CANCELLED"
    parent, rounds = recorded(project)
    assert parent.info.status == "KILLED"
    assert {run.info.status for run in rounds} <= {"FINISHED", "KILLED"}


def test_ctrl_c_twice_in_the_warm_up(project: Path) -> None:
    terminal = Terminal(project)
    # MLflow's run is made meanwhile, as Prefect's was.
    terminal.wait_until(
        lambda: terminal.is_at("warmup") and (project / "runs" / NAME / "mlflow.json").exists()
    )
    terminal.press_ctrl_c()
    time.sleep(0.3)
    terminal.press_ctrl_c()
    assert_stopped(terminal, project, status=130)


def test_sigterm_in_training(project: Path) -> None:
    terminal = Terminal(project)
    terminal.wait_until(lambda: bool(steps_done(project)))
    os.kill(terminal.pid, signal.SIGTERM)
    assert_stopped(terminal, project, status=143)
    assert "✗" not in terminal.screen


def test_it_finishes_without_rays_control_service_and_prefects_server(project: Path) -> None:
    terminal = Terminal(project)
    before = len(steps_done(project))
    terminal.wait_until(lambda: len(steps_done(project)) > before)
    end_process(project, "gcs_server")
    terminal.wait_until(lambda: len(steps_done(project)) > before + 1)
    end_process(project, "prefect.server")
    assert terminal.end() == 0, terminal.screen[-3000:]
    wait_for_nothing_left(project)
    assert steps_done(project) == list(range(1, STEPS + 1))
    assert "Prefect's record of this run is incomplete" in terminal.screen
    assert "state-dump" not in terminal.screen
    assert "Traceback" not in terminal.screen
    assert recorded(project)[0].info.status == "FINISHED"
    with sqlite3.connect(project / ".prefect" / "prefect.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def end_process(project: Path, name: str) -> None:
    (pid,) = [pid for pid, line in processes_of(project).items() if name in line]
    os.kill(pid, signal.SIGKILL)
