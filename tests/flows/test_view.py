"""`wingspan view` as a command: one line when it is ready, and its end."""

import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from envs.errors import ConfigError
from flows.commands.serve import view
from flows.lock import lock
from tasks.runs.folders import find_runs
from tasks.viewer.overview import summarise_runs
from tests.support.report_toy import write_workspace

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"


@pytest.mark.heavy
def test_it_serves_the_folder_runs_until_ctrl_c(tmp_path: Path) -> None:
    write_workspace(tmp_path / "runs" / "toy")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command, pipe = [sys.executable, "-c", PROGRAM, "view", "--port", "0"], subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 60)[0]
        line = process.stdout.readline()
        match = re.fullmatch(r"1 run at (http://127\.0\.0\.1:\d+); stop with Ctrl-C\n", line)
        assert match, line
        with httpx.Client(base_url=match[1]) as client:  # its connection stays open
            (run,) = client.get("/api/runs").json()["runs"]
            assert (run["name"], run["step"]) == ("toy", 4)
            assert client.get("/api/trajectories?run=toy").json()["total"] == 18
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert process.communicate() == ("", "")
    assert list((tmp_path / "cache" / "wingspan" / "viewer").glob("toy-*.sqlite"))


def test_a_run_is_live_while_a_command_works_on_it(tmp_path: Path) -> None:
    """Whatever it has written last: of a run that has ended, or of a training step that takes long."""
    write_workspace(tmp_path / "toy")
    (run,) = find_runs([tmp_path])
    with lock(run.folder):
        for file in run.folder.rglob("*"):
            os.utime(file, (0, 0))
        assert summarise_runs([run])[0].is_live
    (run.folder / "timing.json").touch()
    assert not summarise_runs([run])[0].is_live


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*nowhere; give a run's folder"):
        await view([tmp_path / "nowhere"], host="127.0.0.1", port=0, token=None, say=pytest.fail)
