"""Which Chromium is run and behind which walls: found out on this machine, never assumed.

Two walls, each where the machine lets it stand. Chromium's own sandbox keeps a renderer from files, from the
network and from most system calls; it needs user namespaces. Bubblewrap puts the whole browser into a file
system that holds nothing but programs, fonts and its own profile, and into a process namespace, which ends
with it: nothing that it has started outlives it, however it ends. As root, Chromium refuses its own sandbox,
so it is run as nobody (`envs/browser/chromium.sh`).
"""

import logging
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.requirements.detection import failure, install_command
from envs.sandbox.backend import NOBODY

_NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_PACKAGES = {"apt-get": "chromium", "dnf": "chromium", "brew": "--cask chromium"}
_OWN = ("chromium-*/chrome-linux*/chrome", "chromium-*/chrome-mac*/Chromium.app/Contents/MacOS/Chromium")

LAUNCHER = Path(__file__).parent / "chromium.sh"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChromiumProgram:
    """The browser, as a requirement: a distribution's, else one that Playwright has downloaded."""

    name: str = "Chromium"

    def path(self) -> Path | None:
        """Of the program; None if there is none."""
        found = next((path for name in _NAMES if (path := shutil.which(name))), None)
        if found is not None:
            return Path(found)
        folder = os.environ.get("PLAYWRIGHT_BROWSERS_PATH", str(Path.home() / ".cache" / "ms-playwright"))
        return next((path for pattern in _OWN for path in sorted(Path(folder).glob(pattern))[-1:]), None)

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        path = self.path()
        if path is None:
            return f"{install_command(_PACKAGES)} or playwright install chromium"
        said = failure([str(path), "--version"])
        return None if said is None else f"{install_command(_PACKAGES)} ({path} does not run: {said})"


CHROMIUM = ChromiumProgram()


@dataclass(frozen=True, slots=True)
class Walls:
    """What holds a browser on this machine."""

    sandbox: bool
    """Chromium's own."""
    bubblewrap: bool


@cache
def walls() -> Walls:
    """Try them. Where one does not stand, a warning says so, once."""
    as_nobody = (
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
        if os.geteuid() == 0
        else []
    )
    nested = ["unshare", "--user", "true"]
    room = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc"]
    sandbox = failure([*as_nobody, *nested])
    bubblewrap = failure([*as_nobody, *room, "--dev", "/dev", *nested])
    if sandbox is not None:
        _log.warning("Chromium runs without its sandbox, for it needs user namespaces (%s)", sandbox)
    if bubblewrap is not None:
        _log.warning("Chromium sees the files of its user, for bubblewrap does not work (%s)", bubblewrap)
    return Walls(sandbox=sandbox is None, bubblewrap=bubblewrap is None)
