"""Live copies of the sites: one per live environment, restored before each episode.

A copy is a process with a folder of its own, forked from a process that has loaded the applications
(`envs/runtime/fork_server.py`). It ends with its owner, however that ends, and its death is noticed at once.
Restoring the sites kills the copy and forks another, which discards what an episode has left in memory, in
files or in a half-finished request. The next copy that starts removes the folders of copies that were killed.
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

from envs.builtin.webarena_local.sites.data import WEBARENA_LOCAL
from envs.builtin.webarena_local.sites.serving import SITES, copy_data, serve
from envs.errors import ConfigError
from envs.runtime.hosted import HostedEnv
from envs.runtime.processes import ProcessHost
from envs.types import Item, StepResult

COPIES = f"wingspan-sites-{os.getuid()}"
"""Folder of all copies on this machine, within the temporary folder."""
_LOCK = "lock"
_MIN_AGE_S = 60.0
"""A younger folder without a lock may belong to a copy that is starting."""
_ITEM = Item(item_id="sites_0", env="webarena-local")
_APPLICATIONS = "envs.builtin.webarena_local.sites.project.wsgi"


class SitesProcess:
    """The process of a copy, as an environment; its first observation is the sites' addresses as JSON."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._folder: Path | None = None

    async def reset(self, item: Item) -> str:
        """Copy the data and serve them."""
        if self._folder is not None:
            raise RuntimeError("a copy of the sites is served once; start another to restore them")
        self._folder = new_folder()
        copy_data(self._data, self._folder)
        return json.dumps(serve(self._folder, dict.fromkeys(SITES, 0)))

    async def step(self, action: str) -> StepResult:
        """Raise an error: the sites answer only HTTP."""
        raise RuntimeError("the sites take no actions; use a browser")

    async def close(self) -> None:
        """Remove the files; the owner ends the process."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


class LiveSites:
    """Owns one copy."""

    def __init__(self, data: Path | None = None) -> None:
        """`data`: of the sites; by default the data set `webarena-local`, made when first needed."""
        self._data = data
        self._process: HostedEnv | None = None

    @property
    def is_alive(self) -> bool:
        """False once its process has died."""
        return self._process is None or self._process.is_alive

    @property
    def pid(self) -> int | None:
        """The process of the copy; None while there is none."""
        return None if self._process is None else self._process.pid

    async def restore(self) -> dict[str, str]:
        """Start fresh sites; returns the address of each. Raises `EnvCrashed` if they do not start."""
        await self.close()
        if self._data is None:
            self._data = WEBARENA_LOCAL.prepare()
        self._process = HostedEnv(_host(self._data))
        addresses: dict[str, str] = json.loads(str(await self._process.reset(_ITEM)))
        return addresses

    async def close(self) -> None:
        """End the copy. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()


@cache
def _host(data: Path) -> ProcessHost:
    """The host of all copies of this process; ends with it."""
    return ProcessHost(partial(SitesProcess, data), preload=(_APPLICATIONS,))


def new_folder() -> Path:
    """Create a folder for a copy, locked while this process lives; removes the folders of dead processes."""
    parent = Path(tempfile.gettempdir()) / COPIES
    parent.mkdir(mode=0o700, exist_ok=True)
    for folder in parent.iterdir():
        _remove_if_abandoned(folder)
    folder = Path(tempfile.mkdtemp(dir=parent))
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return folder


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        if time.time() - folder.stat().st_mtime > _MIN_AGE_S:
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
    """Serve a copy from this process on four consecutive ports until Ctrl-C, for people to explore. Raises
    `ConfigError` if a port is in use."""
    folder = new_folder()
    try:
        copy_data(data, folder)
        ports = {site: first_port + offset for offset, site in enumerate(SITES)}
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
