"""The program that sets up a local Ray's workers does what Ray's own does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.cluster import setup_worker

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"


def run(program: Path, *options: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment of the worker that `program` becomes."""
    worker = folder / "worker.py"
    worker.write_text(SHOW)
    arguments = ["--node-ip-address=127.0.0.1", "a word", "it's", "$HOME", "--redis-password="]
    variables = {**os.environ, "PART": "before", "GIVEN": "old"}
    done = subprocess.run(
        [sys.executable, program, worker, *arguments, *options],
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    seen, environment = json.loads(done.stdout)
    environment.pop("RAY_CLIENT_MODE", None)  # importing Ray sets it, as it will in the worker
    assert seen[: len(arguments)] == arguments
    return seen, environment


@pytest.mark.parametrize(
    "context",
    [
        None,
        {},
        {"env_vars": {"GIVEN": "${PART}:after $PART ${NOT_SET}$NOT_SET", "NEW": "a b"}},
        {"py_executable": f"{sys.executable} -X dev", "env_vars": {"NEW": "'\""}},
        {"command_prefix": ["BEFORE=1", "&&"], "env_vars": {"NEW": "1"}},
        {"override_worker_entrypoint": "other.py"},
    ],
)
def test_a_worker_begins_as_with_rays_own_program(context: dict[str, Any] | None, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(SHOW)
    if context is not None and "override_worker_entrypoint" in context:
        context = {"override_worker_entrypoint": str(tmp_path / "other.py")}
    options = ["--language=PYTHON"]
    if context is not None:
        options.append(f"--serialized-runtime-env-context={json.dumps(context)}")
    ours = run(Path(setup_worker.__file__), *options, folder=tmp_path)
    assert ours == run(setup_worker.rays_program(), *options, folder=tmp_path)
