"""Prefect's database, which is made once in a session of tests: to make it takes 6 s of CPU time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from envs.files import lock_file
from flows.endings.guardian import MARK

_MAKE = """
from flows.endings.guardian import guard
from flows.orchestrator.runs import TemporaryServer, server_url
guard()  # ends the server
assert server_url() is None
TemporaryServer().use()
"""


def add_database(home: Path) -> None:
    """Give `home`, a `PREFECT_HOME`, the database that a first run makes there.

    The first caller makes it, by a first run's own server; the others, also those in other workers of xdist,
    wait for it and copy it.
    """
    template = Path(os.environ[MARK]) / "prefect-template"
    with lock_file(template.with_suffix(".lock")):
        if not template.exists():
            unfinished = template.with_suffix(".unfinished")
            environment = {**os.environ, "PREFECT_HOME": str(unfinished)}
            environment.pop("PREFECT_API_URL", None)
            subprocess.run([sys.executable, "-c", _MAKE], env=environment, check=True)
            unfinished.rename(template)
    home.mkdir(parents=True, exist_ok=True)
    for file in template.glob("prefect.db*"):
        shutil.copy(file, home)
