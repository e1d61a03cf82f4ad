"""What `python -m bench.kills` refuses before any run."""

import json
import sys
from pathlib import Path

import pytest

from bench import kills
from bench.servers import SERVERS


@pytest.mark.parametrize("servers", [[], ["--servers", "prefect-server"]])
def test_a_worker_is_only_killed_where_there_is_one(
    servers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["textcraft-cpu", "--folder", str(tmp_path), "--processes", kills.STARTING, *servers]
    monkeypatch.setattr(sys, "argv", ["kills", *arguments])
    monkeypatch.setattr(kills, "run", lambda *_: pytest.fail("it began"))
    with pytest.raises(SystemExit):
        kills.main()
    needs = "--processes prefect-worker-starting needs --servers prefect-server prefect-worker"
    assert needs in capsys.readouterr().err


def test_a_server_is_only_killed_where_runs_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = ["--servers", "prefect-server", "--processes", "prefect-server", "mlflow-server"]
    monkeypatch.setattr(sys, "argv", ["kills", "textcraft-cpu", "--folder", str(tmp_path), *servers])
    with pytest.raises(SystemExit):
        kills.main()
    assert "--processes mlflow-server needs --servers mlflow-server as well" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kinds", "servers", "needed"),
    [
        (["flow", "mlflow-server"], [], "with --servers mlflow-server"),
        (["flow"], ["mlflow-server"], "without --servers"),
    ],
)
def test_runs_with_other_servers_are_not_gone_on_with(
    kinds: list[str], servers: list[str], needed: str, tmp_path: Path
) -> None:
    lives = {kind: {"first_s": 0.0, "last_s": 1.0} for kind in kinds}
    (tmp_path / "lives.json").write_text(json.dumps(lives))
    present = [SERVERS[name](tmp_path, pipeline="textcraft-cpu") for name in servers]
    bench = kills.Bench("textcraft-cpu", tmp_path, settings=[], servers=present)
    with pytest.raises(
        SystemExit, match=f"the runs in {tmp_path} are {needed}; give that, or another --folder"
    ):
        bench.prepare()
    same = [SERVERS[name](tmp_path, pipeline="textcraft-cpu") for name in kinds if name in SERVERS]
    assert list(kills.Bench("textcraft-cpu", tmp_path, settings=[], servers=same).prepare()) == kinds
