"""Live copies of the sites, one for each live environment: who owns one asks for a fresh one before each
episode.

A copy is a process, forked from one that has loaded the applications once (`envs/runtime/fork_server.py`),
over files
of its own in a folder of its own. It ends with whoever owns it, however that ends, and its death is noticed
at once. To restore the sites is to kill it and fork another: what an episode has left in memory, in files
or in a half-finished request goes with it. Folders of copies that were killed are removed by the next that
starts.
"""

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from envs.builtin.webarena_local.sites.serving import SITES, copy_of, serve
from envs.errors import ConfigError
from envs.runtime.hosted import HostedEnv
from envs.runtime.processes import ProcessHost
from envs.types import Item, StepResult

COPIES = f"wingspan-sites-{os.getuid()}"
"""Folder of all copies on this machine, among the temporary files."""
_LOCK = "lock"
_YOUNG_S = 60.0
"""A folder that is not locked yet may belong to a copy that is being made."""
_ANY = Item(item_id="sites_0", env="webarena-local")
_APPLICATIONS = "envs.builtin.webarena_local.sites.project.wsgi"


class SitesProcess:
    """The inside of a copy, in the form of an environment: its one opening is the sites' addresses, as
    JSON."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._folder: Path | None = None

    async def reset(self, item: Item) -> str:
        """Lay out the copy and serve it."""
        if self._folder is not None:
            raise RuntimeError("a copy of the sites is served once; to restore them, start another")
        self._folder = new_folder()
        copy_of(self._data, self._folder)
        return json.dumps(serve(self._folder, dict.fromkeys(SITES, 0)))

    async def step(self, action: str) -> StepResult:
        """There is nothing to say to it but by HTTP."""
        raise RuntimeError("the sites are played in a browser")

    async def close(self) -> None:
        """Remove its files; the process is ended by its owner."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class LiveSites:
    """The owner's side of one copy."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: HostedEnv | None = None

    @property
    def is_alive(self) -> bool:
        """False once its process has died."""
        return self._process is None or self._process.is_alive

    @property
    def pid(self) -> int | None:
        """Of its process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def restored(self) -> dict[str, str]:
        """Fresh sites: each one's address. Raises `EnvCrashed` if they do not come up."""
        await self.close()
        self._process = HostedEnv(_host(self._data))
        addresses: dict[str, str] = json.loads(str(await self._process.reset(_ANY)))
        return addresses

    async def close(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()


@cache
def _host(data: Path) -> ProcessHost:
    """For all copies of this process; ends with it."""
    return ProcessHost(partial(SitesProcess, data), preload=(_APPLICATIONS,))


def new_folder() -> Path:
    """An empty folder for a copy, locked while this process lives; removes those that nobody holds any
    more."""
    above = Path(tempfile.gettempdir()) / COPIES
    above.mkdir(mode=0o700, exist_ok=True)
    for old in above.iterdir():
        _remove_if_left(old)
    folder = Path(tempfile.mkdtemp(dir=above))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder


def _remove_if_left(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > _YOUNG_S:
            shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def serve_here(data: Path, *, first_port: int, say: Callable[[str], None]) -> None:
    """For whoever wants to look around: one copy in this process, on four ports in a row, until Ctrl-C.
    Raises `ConfigError` for a port that is taken."""
    folder = new_folder()
    try:
        copy_of(data, folder)
        ports = {site: first_port + place for place, site in enumerate(SITES)}
        try:
            addresses = serve(folder, ports)
        except OSError as error:
            raise ConfigError(
                f"--port {first_port}: {error.strerror}; it and the next three must be free"
            ) from error
        for site, address in addresses.items():
            say(f"{site:6} {address}")
        with suppress(KeyboardInterrupt):
            signal.pause()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
