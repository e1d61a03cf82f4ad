"""Servers for tests, on ports of their own: the command in a process, or the same server in this one."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from envs.network.client import tls_context
from envs.registry import EnvSpec
from envs.serve.app import EnvServer
from envs.serve.limits import ServerLimits
from tests.support.waiting import wait_until_async

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """A running `wingspan serve-env`."""

    def __init__(self, name: str, *options: str) -> None:
        code = "import sys; sys.argv[0] = 'wingspan'; from flows.cli.app import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve-env", name, "--port", "0", *options],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        url = re.search(r"http://127.0.0.1:\d+", line)
        assert url is not None, line + self.process.stderr.read()
        self.url = url.group()

    def stop(self) -> None:
        """Idempotent."""
        self.process.terminate()
        self.process.wait(timeout=30)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def serve_env(name: str, *options: str) -> Iterator[ServerProcess]:
    server = ServerProcess(name, *options)
    try:
        yield server
    finally:
        server.stop()


@asynccontextmanager
async def listening(
    spec: EnvSpec, *, limits: ServerLimits | None = None, tokens: tuple[str, ...] = (), port: int = 0
) -> AsyncIterator[str]:
    """A server in this event loop: its URL."""
    server = EnvServer(spec, limits=limits or ServerLimits(), tokens=tokens)
    async with server.listening("127.0.0.1", port) as bound_port:
        yield f"http://127.0.0.1:{bound_port}"


async def wait_for_metric(url: str, name: str, value: int, *, token: str | None = None) -> None:
    """Wait until a server's metric, whose name includes its labels, is `value`."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, verify=tls_context()) as http:

        async def has_value() -> bool:
            return f"{name} {value:.1f}" in (await http.get("/metrics")).text.splitlines()

        await wait_until_async(has_value)
