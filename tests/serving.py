"""Servers for tests: the real command in a process of its own, on a port of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Served:
    """A running `wingspan serve-env`."""

    def __init__(self, name: str, *options: str) -> None:
        code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve-env", name, "--port", "0", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        said = self.process.stdout.readline()
        url = re.search(r"http://127.0.0.1:\d+", said)
        assert url is not None, said + self.process.stderr.read()
        self.url = url.group()

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=30)


@contextmanager
def served(name: str, *options: str) -> Iterator[Served]:
    server = Served(name, *options)
    try:
        yield server
    finally:
        server.stop()
