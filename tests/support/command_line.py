"""The `wingspan` command for tests, in a process of its own and in this one, and a project to run it in."""

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from flows.endings.guardian import MARK

ROOT = Path(__file__).parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


def copy_declarations(folder: Path) -> Path:
    """Make `folder` a project with the pipelines and code of this checkout; its model has no weights."""
    for file in ("dvc.yaml", "pipelines.yaml", ".dvcignore", "constraints.txt"):
        shutil.copy(ROOT / file, folder / file)
    (folder / "data").mkdir()
    for package in ("envs", "agents", "tasks", "flows"):
        (folder / package).symlink_to(ROOT / package)
    model = folder / "models" / "textcraft-base"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(ROOT / "models" / "textcraft-base" / file, model / file)
    return folder


def wingspan(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def wingspan_here(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """`wingspan` in this process, which imports everything once: a new process takes seconds for it."""
    mark, variables_before, children = os.environ[MARK], set(os.environ), set(psutil.Process().children())
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())

    def call(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(cwd)
        monkeypatch.setattr(sys, "argv", ["wingspan", *arguments])
        monkeypatch.setattr("__main__.__package__", None)  # else click's name for it is python -m pytest
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        capfd.readouterr()
        from flows.cli.app import main

        with pytest.raises(SystemExit) as exit_info:
            main()
        status = exit_info.value.code or 0
        assert isinstance(status, int)
        return subprocess.CompletedProcess(arguments, status, *capfd.readouterr())

    yield call
    if os.environ[MARK] == mark:  # guarded before, this process would keep Prefect's server
        for server in set(psutil.Process().children()) - children:
            server.terminate()
    for name in set(os.environ) - variables_before:
        del os.environ[name]


def the_error(done: subprocess.CompletedProcess[str]) -> str:
    """Its one line, after checking that it is one and that the status says so."""
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line
