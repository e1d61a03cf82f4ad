"""What a run leaves in DVC, and what that puts on a terminal: nothing."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.mark.heavy
def test_dvc_is_silent_on_a_terminal_and_records_the_outputs(tmp_path: Path) -> None:
    for arguments in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
        subprocess.run(arguments, cwd=tmp_path, check=True)
    stages = {"prepare": {"foreach": ["toy"], "do": {"cmd": "true", "outs": ["runs/${item}"]}}}
    shutil.copy(ROOT / "pipelines.yaml", tmp_path)
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    for index in range(20):
        file = tmp_path / "runs" / "toy" / f"{index}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(index))
    code = """
from pathlib import Path
from flows.lineage.versioning import commit_to_dvc
from tests.support.report_toy import toy_pipeline
commit_to_dvc(["prepare"], name="toy", pipeline=toy_pipeline(), workspace=Path("runs/toy"))
"""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=end,
        stderr=end,
    )
    os.close(end)
    output = b""
    try:
        while part := os.read(terminal, 4096):
            output += part
    except OSError:  # Linux's way to say that nobody holds the other end any more
        pass
    os.close(terminal)
    assert process.wait() == 0, output
    assert output == b""
    lock = yaml.safe_load((tmp_path / "dvc.lock").read_text())
    assert lock["stages"]["prepare@toy"]["outs"][0]["nfiles"] == 20
