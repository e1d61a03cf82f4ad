"""Runs supervised training in a process of its own, so that verl's memory is freed when it ends."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from envs.errors import WingspanError
from tasks.verl.sft import SftRequest


def train_apart(
    request: SftRequest,
    *,
    environment: Mapping[str, str],
    on_step: Callable[[Mapping[str, float]], object],
    threads: int = 1,
) -> list[str]:
    """Train as `request` says; returns the JSON lines of its steps, each of which `on_step` gets at once.

    `environment`: `tasks.verl.actor.environment_of` the pipeline. Raises `WingspanError` with the last line
    of the process if that fails.
    """
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "request.json"
        path.write_text(request.to_json())
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", type(request).__module__, str(path)],
                env={**os.environ, **environment, "WINGSPAN_THREADS": str(threads)},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C reaches only this process, which then kills it
            )
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if not line.startswith("{"):
                        continue  # other output of verl
                    lines.append(line.rstrip())
                    on_step(json.loads(line))
            except BaseException:
                process.kill()
                raise
            if process.wait() != 0:
                log.seek(0)
                lines = [line for line in log.read().splitlines() if line.strip()]
                raise WingspanError(
                    f"the process of supervised training failed: {lines[-1] if lines else process.returncode}"
                )
    return lines
