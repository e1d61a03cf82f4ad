"""DVC's own commands on the stages of `dvc.yaml`: what they show of a run, and how it is shared.

The stages' outputs are written by a stand-in (`tests/support/dvc_toy.py`); the commands are DVC's.
"""

import csv
import io
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.dvc_toy import NAME, OTHER_RATE, RATE, ROOT, commit, git, make_project

pytestmark = pytest.mark.heavy
RUN = f"runs/{NAME}"
TARGET = f"report@{NAME}"
METRICS = f"{RUN}/metrics.json"
SETTING = f"pipelines.yaml:{RATE}={OTHER_RATE}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Has run once, which is committed; the experiment `other`, from the queue, has another learning rate."""
    folder = tmp_path_factory.mktemp("dvc") / "project"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_project(folder)
        patch.setenv("DVC_TEST", "1")  # else JSON goes around the captured stream
        patch.setenv("PATH", f"{folder / '.git' / 'programs'}{os.pathsep}{os.environ['PATH']}")
        dvc("repro", "--quiet", TARGET)
        commit(folder, "a run")
        dvc("exp", "run", "--queue", "--name", "other", "--set-param", SETTING, TARGET)
        dvc("exp", "run", "--run-all")
        yield folder


def dvc(*arguments: str) -> None:
    """DVC's command line, in this process, which saves seconds a command."""
    from dvc.cli import main

    assert main(list(arguments)) == 0


@pytest.fixture
def show(project: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command; returns what it prints, as JSON if it prints that."""

    def run(*arguments: str) -> Any:
        capsys.readouterr()
        dvc(*arguments)
        output = capsys.readouterr().out
        return json.loads(output) if "--json" in arguments else output

    return run


def test_metrics_show_success_with_its_interval(show: Any) -> None:
    metrics = show("metrics", "show", "--json", METRICS)[""]["data"][METRICS]["data"]
    # The sums of tests/support/report_toy.py: 2 of 8 episodes before, 4 of 8 after, of 4 items.
    assert metrics["success_before"] == 0.25
    assert metrics["success"] == 0.5
    assert metrics["success_low"] < 0.5 < metrics["success_high"]
    assert (metrics["gain"], metrics["items"], metrics["steps"]) == (0.25, 4, 4)
    assert metrics["minutes"] == pytest.approx(4 * 4.0 / 60, abs=1e-6)
    assert all(isinstance(value, int | float) for value in metrics.values())


def test_an_experiment_is_compared_by_metrics_and_parameters(show: Any) -> None:
    metrics = show("metrics", "diff", "--json", "HEAD", "other")
    assert list(metrics) == [METRICS]
    assert metrics[METRICS]["success"] == {"old": 0.5, "new": 0.75, "diff": 0.25}
    assert "steps" not in metrics[METRICS]
    params = show("params", "diff", "--json", "HEAD", "other")
    assert params == {"pipelines.yaml": {RATE: {"old": 0.0003, "new": OTHER_RATE, "diff": 0.2497}}}


def test_plots_show_curves_and_groups_of_both(show: Any) -> None:
    curves, groups = f"{RUN}/curves", f"{RUN}/groups.json"
    plots = show("plots", "diff", "--json", "HEAD", "other", "--targets", curves, groups)["data"]
    names = {"success", "reward", "test_success", "turns", "kl", "entropy"}
    assert set(plots) == {groups} | {f"{curves}/{name}.json" for name in names}
    rates = {
        row["rev"]: row["success"]
        for row in _points(plots[groups])
        if (row["group"], row["policy"]) == ("depth 2", "after")
    }
    assert rates == {"HEAD": 0.25, "other": 0.5}
    turns = [row for row in _points(plots[f"{curves}/turns.json"]) if row["rev"] == "HEAD"]
    assert [(row["step"], row["value"]) for row in turns] == [(1, 2.0), (2, 3.0), (3, 4.0), (4, 5.0)]


def _points(plots: Any) -> list[dict[str, Any]]:
    """What a Vega-Lite chart draws."""
    (plot,) = plots
    rows: list[dict[str, Any]] = plot["content"]["data"]["values"]
    return rows


def test_experiments_are_listed_with_what_differs(show: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(show("exp", "show", "--csv", "--only-changed"))))
    rates = {row["Experiment"] or row["rev"]: (row["success"], row[RATE]) for row in rows}
    assert rates == {"workspace": ("0.5", "0.0003"), "main": ("0.5", "0.0003"), "other": ("0.75", "0.25")}
    unchanged = {"steps", f"pipelines.{NAME}.train.steps", f"{RUN}/data/test.jsonl"}
    assert not unchanged & set(rows[0])


def test_a_queued_experiment_leaves_the_workspace_as_it_is(project: Path) -> None:
    assert changed_files(project) == ""


def changed_files(project: Path) -> str:
    """As `git status` lists them: later runs would be recorded as those of uncommitted code."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=project, capture_output=True, check=True)
    return status.stdout.decode()


def test_the_documented_commands_that_look_leave_no_files_for_git(project: Path, show: Any) -> None:
    section = (ROOT / "docs" / "dvc.md").read_text().partition("## Look and compare")[2].partition("\n## ")[0]
    commands = re.findall(r"^dvc (.*)", section, flags=re.MULTILINE)
    assert len(commands) == 5
    for command in commands:
        show(*shlex.split(command, comments=True))
    assert (project / "dvc_plots" / "index.html").exists()
    assert changed_files(project) == ""


@pytest.fixture(params=["folder", "s3", "ssh"])
def remote(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a remote, known to DVC by its configuration: a folder, or on a server of S3 or SSH."""
    name: str = request.param
    if name == "folder":
        dvc("remote", "add", "--quiet", name, str(tmp_path / "remote"))
        yield name
        return
    if name == "ssh":
        pytest.importorskip("dvc_ssh")
        from tests.support.ssh_server import ssh_server

        with ssh_server(password="test", key_file=tmp_path / "key") as port:
            dvc("remote", "add", "--quiet", name, f"ssh://user@127.0.0.1:{port}{tmp_path}/remote")
            dvc("remote", "modify", "--quiet", name, "password", "test")
            yield name
        return
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(key, "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    httpx.put(f"http://{host}:{port}/wingspan").raise_for_status()
    dvc("remote", "add", "--quiet", name, "s3://wingspan/runs")
    dvc("remote", "modify", "--quiet", name, "endpointurl", f"http://{host}:{port}")
    yield name
    server.stop()


def test_a_clone_shows_what_was_pushed_without_running_anything(
    project: Path, remote: str, tmp_path: Path, show: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dvc("push", "--quiet", "--remote", remote)
    commit(project, f"the remote {remote}")
    clone = tmp_path / "clone"
    git("clone", "-q", str(project), str(clone), cwd=tmp_path)
    monkeypatch.chdir(clone)
    dvc("pull", "--quiet", "--allow-missing", "--remote", remote)
    monkeypatch.setenv("PATH", "")  # nothing can be run
    for name in (
        "report/a.txt",
        "policy/a.txt",
        "data/train.jsonl",
        "evaluation.json",
        "curves/success.json",
    ):
        assert Path(RUN, name).read_bytes() == (project / RUN / name).read_bytes()
    assert show("metrics", "show", "--json", METRICS)[""]["data"][METRICS]["data"]["success"] == 0.5
    assert show("status", "--json", TARGET) == {}
