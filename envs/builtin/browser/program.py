"""Finds Chromium, and probes how this machine can isolate it.

There are two layers of isolation; each is used if a probe shows that it works. Chromium's own sandbox keeps a
renderer from files, from the network and from most system calls; it needs user namespaces. Bubblewrap gives
the whole browser a file system with only programs, fonts and its own profile, and a process namespace, so no
process that it starts outlives it. Chromium refuses its sandbox as root, so it then runs as nobody
(`envs/builtin/browser/chromium.sh`).
"""

import logging
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.requirements.detection import describe_failure, install_command
from envs.sandbox.backend import AS_NOBODY

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PACKAGES = {"apt-get": "chromium", "dnf": "chromium", "brew": "--cask chromium"}
_PLAYWRIGHT_PATHS = (
    "chromium-*/chrome-linux*/chrome",
    "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium",
)

LAUNCHER = Path(__file__).parent / "chromium.sh"

_log = logging.getLogger(__name__)


class ChromiumProgram:
    """Chromium as a requirement: installed by the system, else downloaded by Playwright."""

    name = "Chromium"

    def path(self) -> Path | None:
        """The path of the program; None if it is not installed."""
        program = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if program is not None:
            return Path(program)
        folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", str(Path.home() / ".cache" / "ms-playwright"))
        return next(
            (path for pattern in _PLAYWRIGHT_PATHS for path in sorted(Path(folder).glob(pattern))[-1:]), None
        )

    def find_remedy(self) -> str | None:
        path = self.path()
        if path is None:
            return f"{install_command(_PACKAGES)} or playwright install chromium"
        reason = describe_failure([str(path), "--version"])
        return None if reason is None else f"{install_command(_PACKAGES)} ({path} does not run: {reason})"


CHROMIUM = ChromiumProgram()


@dataclass(frozen=True, slots=True)
class BrowserIsolation:
    """Which layers of isolation work on this machine."""

    sandbox: bool
    """Chromium's own."""
    bubblewrap: bool


@cache
def probe_isolation() -> BrowserIsolation:
    """Try each layer; logs one warning for a layer that does not work."""
    as_nobody = AS_NOBODY if os.geteuid() == 0 else ()
    new_namespace = ["unshare", "--user", "true"]
    bubble = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc"]
    sandbox = describe_failure([*as_nobody, *new_namespace])
    bubblewrap = describe_failure([*as_nobody, *bubble, "--dev", "/dev", *new_namespace])
    if sandbox is not None:
        _log.warning("Chromium runs without its sandbox, which needs user namespaces (%s)", sandbox)
    if bubblewrap is not None:
        _log.warning("Chromium can read its user's files, because bubblewrap does not work (%s)", bubblewrap)
    return BrowserIsolation(sandbox=sandbox is None, bubblewrap=bubblewrap is None)
