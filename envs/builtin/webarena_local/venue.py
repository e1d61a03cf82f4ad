"""Where tasks of `webarena-local` are played: for each live environment a copy of the sites, fresh for each
task."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envs.builtin.webarena.env import Scene
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Task, read_tasks
from envs.builtin.webarena_local.sites.data import WEBARENA_LOCAL
from envs.builtin.webarena_local.sites.logins import COOKIES
from envs.builtin.webarena_local.sites.serving import HOST
from envs.builtin.webarena_local.sites.tenant import LiveSites

if TYPE_CHECKING:
    from playwright.async_api import StorageState

APPLICATIONS = {"shopping": "shop", "reddit": "forum", "gitlab": "forge", "shopping_admin": "cms"}
"""WebArena's name of a site → ours."""
PUBLIC = {name: f"http://{ours}.example" for name, ours in APPLICATIONS.items()}
"""What a policy is shown in the place of addresses with ports, which differ from copy to copy."""
TASKS = Path(__file__).parent / "tasks.json"


@cache
def tasks() -> Mapping[int, Task]:
    """All of them, by number."""
    return read_tasks(TASKS)


@cache
def values() -> Mapping[int, Mapping[str, str]]:
    """What each task's template was filled with, for whoever solves it; no policy is shown it."""
    return {task["task_id"]: task["instantiation_dict"] for task in json.loads(TASKS.read_text("utf-8"))}


class LocalVenue:
    """A venue of one environment."""

    def __init__(self) -> None:
        self._sites: LiveSites | None = None

    @property
    def is_alive(self) -> bool:
        """See `envs/builtin/webarena/env.py`, `Venue`."""
        return self._sites is None or self._sites.is_alive

    async def begin(self, task: Task) -> Scene:
        """Fresh sites; the first time on a machine their data are made, which takes half a minute."""
        if self._sites is None:
            self._sites = LiveSites(WEBARENA_LOCAL.prepare())
        addresses = await self._sites.restored()
        urls = {name: addresses[ours] for name, ours in APPLICATIONS.items()}
        return Scene(Sites(urls, PUBLIC), logged_in(task.logins))

    async def close(self) -> None:
        """End the sites."""
        sites, self._sites = self._sites, None
        if sites is not None:
            await sites.close()


def logged_in(names: Sequence[str]) -> "StorageState":
    """The cookies of the users who are logged in to these sites in the seeded data."""
    return {
        "cookies": [
            {
                "name": COOKIES[APPLICATIONS[name]].name,
                "value": COOKIES[APPLICATIONS[name]].value,
                "domain": HOST,
                "path": "/",
                "expires": -1,
                "httpOnly": True,
                "secure": False,
                "sameSite": "Lax",
            }
            for name in names
        ],
        "origins": [],
    }
