"""A small project in a folder of its own, with its own Prefect and MLflow, and its `wingspan` command."""

import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tasks.config.pipelines import read_yaml
from tests.support.prefect_database import add_database
from tests.support.processes import processes_with
from tests.support.tiny_model import save_small_base
from tests.support.waiting import wait_until
from tests.support.yaml_files import edit_yaml

if TYPE_CHECKING:
    from mlflow.entities import Run

ROOT = Path(__file__).parents[2]
NAME = "textcraft-cpu"
TRACKED_PIPELINES = list(read_yaml(ROOT / "dvc.yaml")["stages"]["prepare"]["foreach"])
"""Those that dvc.yaml lists: the ones that run on a CPU."""
STEPS, STEPS_PER_ROUND = 6, 2
SMALL = {
    "warmup": {"demonstrations": 6, "steps": 1, "batch_size": 2},
    "rollout": {"items_per_step": 2, "group_size": 2, "max_tokens_per_turn": 8},
    "train": {"steps": STEPS, "steps_per_round": STEPS_PER_ROUND, "save_every": 1, "mini_batches": 1},
    "horizon": {"max_turns": [2, 3], "steps_per_stage": 3},
    "evaluate": {"max_turns": 2, "samples_per_item": 1, "quick_items": 4},
    "backend": {"samplers": 1},
}
RUN_TIMEOUT_S = 540.0


def enter_linked_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `folder` a project without models, and go there: declarations are copied, the code is linked.

    Variables that name servers are unset.
    """
    for file in ("dvc.yaml", "pipelines.yaml", ".dvcignore", "constraints.txt"):
        shutil.copy(ROOT / file, folder / file)
    for package in ("envs", "agents", "tasks", "flows"):
        (folder / package).symlink_to(ROOT / package)
    (folder / "data").mkdir()
    monkeypatch.chdir(folder)
    for variable in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        monkeypatch.delenv(variable, raising=False)


@dataclass(frozen=True, slots=True)
class Project:
    """This checkout in `folder`, with a random model and settings that take seconds."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> "Project":
        """Copy the code and the declarations, make the model and the command that dvc.yaml names."""
        for name in ("dvc.yaml", "pipelines.yaml", ".dvcignore", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        ignore = shutil.ignore_patterns("cache", "tmp")  # bytecode comes along: compiling takes seconds
        for name in ("data", "envs", "agents", "tasks", "flows", ".dvc"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        with edit_yaml(folder / "pipelines.yaml") as document:
            pipeline = document["pipelines"][NAME]
            for block, values in SMALL.items():
                pipeline[block].update(values)
            for part in ("one-step", "two-step"):  # a quarter of the test items is enough
                pipeline["data"]["parts"][part]["evaluate"] = False
        save_small_base(folder / "models" / "textcraft-base")
        add_database(folder / ".prefect")
        subprocess.run(["git", "init", "--quiet", "."], cwd=folder, check=True)
        project = cls(folder)
        project._add_command()
        return project

    def clone(self, folder: Path) -> "Project":
        """Commit what DVC knows of this project, without the results, and clone it to `folder`."""
        names = ("dvc.yaml", "dvc.lock", "pipelines.yaml", ".dvcignore", "constraints.txt", "models", ".dvc")
        identity = ("-c", "user.name=t", "-c", "user.email=t@t")
        for command in (
            ("add", *names, "data", "envs", "agents", "tasks", "flows"),
            (*identity, "commit", "--quiet", "--message", "a run"),
            ("clone", "--quiet", ".", str(folder)),
        ):
            subprocess.run(["git", *command], cwd=self.folder, check=True)
        for name in ("agents", "tasks"):  # with the compiled engine, and the files' times, which belong to it
            shutil.copytree(self.folder / name, folder / name, dirs_exist_ok=True)
        add_database(folder / ".prefect")
        project = Project(folder)
        project._add_command()
        return project

    def _add_command(self) -> None:
        binaries = self.folder / ".bin"
        binaries.mkdir()
        code = "import sys; sys.path.insert(0, '.'); from flows.cli.app import main; main()"
        (binaries / "wingspan").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        (binaries / "wingspan").chmod(0o755)

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / NAME

    @property
    def environment(self) -> dict[str, str]:
        """Of every command: the project's own Prefect, and no server of the caller's."""
        environment = {
            **os.environ,
            "PATH": f"{self.folder / '.bin'}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(self.folder / ".prefect"),
            "PYTHONPATH": "",
        }
        environment.pop("PREFECT_API_URL", None)
        environment.pop("MLFLOW_TRACKING_URI", None)
        return environment

    @property
    def output(self) -> str:
        """What the last command of `start` or `run` has printed so far."""
        return (self.folder / "output").read_text()

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command; its lines go to a file."""
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(
                arguments, cwd=self.folder, env=self.environment, stdout=output, stderr=output, text=True
            )

    def run(self, *arguments: str) -> list[str]:
        """Run a command to its end; returns its lines."""
        assert self.start(*arguments).wait(timeout=RUN_TIMEOUT_S) == 0, self.output
        return self.output.splitlines()

    def plan(self) -> list[str]:
        """What `wingspan plan` prints, without the options."""
        lines = self.run("wingspan", "plan", NAME)
        return lines[: lines.index("")] if "" in lines else lines

    def finished_steps(self) -> list[int]:
        file = self.run_folder / "train" / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line)["step"] for line in lines]

    def flow_states(self) -> list[str]:
        """States of Prefect's flow runs, in the order in which they began."""
        with sqlite3.connect(self.folder / ".prefect" / "prefect.db") as database:
            rows = database.execute("select state_type from flow_run order by expected_start_time")
            return [state for (state,) in rows]

    def mlflow_runs(self) -> "tuple[Run, list[Run]]":
        """MLflow's one parent run and its rounds, in order."""
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{self.folder}/mlflow.db")
        client = mlflow.MlflowClient()
        experiment = client.get_experiment_by_name("wingspan")
        assert experiment is not None
        runs = client.search_runs([experiment.experiment_id])
        (parent,) = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        rounds = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
        return parent, sorted(rounds, key=lambda run: int(run.data.tags["round"]))

    def processes(self) -> dict[int, str]:
        """Command lines of the processes that a command of this project started, orphans included."""
        return processes_with(f"PREFECT_HOME={self.folder / '.prefect'}")

    def kill_process(self, name: str) -> None:
        """Kill the one process whose command line contains `name`."""
        (pid,) = [pid for pid, line in self.processes().items() if name in line]
        os.kill(pid, signal.SIGKILL)

    def wait_until_all_ended(self) -> None:
        """Takes 10 s on an idle machine, of which the guardian gives 8 s to stubborn processes."""
        try:
            wait_until(lambda: not self.processes(), poll_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"these have not ended: {self.processes()}") from error


class Terminal:
    """A `wingspan run` in the foreground of its own terminal."""

    def __init__(self, project: Project) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(project.folder)
            os.execvpe("wingspan", ["wingspan", "run", NAME], {**project.environment, "COLUMNS": "120"})
        self._output = b""

    @property
    def screen(self) -> str:
        """All that was printed, without colours and cursor movements."""
        return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\r", b"", self._output).decode(errors="replace")

    def read(self) -> bool:
        """Read what there is; returns whether the terminal is still open."""
        if not select.select([self._terminal], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self._terminal, 1 << 16)
        except OSError:  # its last process has ended
            return False
        self._output += part
        return bool(part)

    def press_ctrl_c(self) -> None:
        """Send SIGINT to every process of the foreground, as the key does."""
        os.write(self._terminal, b"\x03")

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            assert self.read(), self.screen[-3000:]

    def end(self) -> int:
        """Wait for the end; returns the exit status."""
        while self.read():
            pass
        _, status = os.waitpid(self.pid, 0)
        os.close(self._terminal)
        return os.waitstatus_to_exitcode(status)

    def is_at(self, stage: str) -> bool:
        """Whether the display marks `stage` as the one that runs."""
        marks = re.findall(rf"(\S) {stage}\b", self.screen[-4000:])
        return bool(marks) and marks[-1] == "▸"
