"""What `python -m bench.kills` refuses before any run."""

import sys
from pathlib import Path

import pytest

from bench import kills


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
