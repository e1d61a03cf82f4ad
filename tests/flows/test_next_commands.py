"""What a run ends with: commands that exist, without secrets."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli.command_line import app
from flows.cli.run import next_commands


def test_the_commands_are_this_program_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")  # as a finished run leaves it
    lines = next_commands("toy", workspace=tmp_path, settings=["train.lr=1e-3"]).splitlines()
    assert f"  wingspan rollout toy --items 3 --policy {tmp_path}/policy --set train.lr=1e-3" in lines
    assert "  mlflow ui --workers 1 --backend-store-uri sqlite:///mlflow.db" in lines
    for line in lines:
        if line.startswith("  wingspan "):
            command = line.split()[1]
            command_uri = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
            assert all(option in command_uri for option in line.split() if option.startswith("--"))


@pytest.mark.parametrize(
    ("uri", "command_uri"),
    [
        ("https://me:secret@tracking/", "https://tracking/#/experiments/7/runs/abc?workflowType="),
        ("postgresql://me:secret@store/db", 'mlflow ui --workers 1 --backend-store-uri "$MLFLOW_'),
    ],
)
def test_a_store_s_password_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, command_uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (tmp_path / "mlflow.json").write_text(json.dumps({"uri": uri, "run_id": "abc", "experiment_id": "7"}))
    text = next_commands("toy", workspace=tmp_path, settings=[])
    assert command_uri in text
    assert "secret" not in text
