"""webarena-local: the environment of `envs/builtin/webarena/` on web applications that run on this machine.

Its 96 tasks are invented, in WebArena's form and on its four domains: a shop (django-oscar), a forum
(django-machina), a forge (Trac, with Git repositories) and a CMS (wagtail). Each live environment has its own
copy of the sites, which is fresh for each task (`envs/builtin/webarena_local/sites/copies.py`). Item
`webarena-local_N` is task `N` of `tasks.json`.
"""

import json
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envs.builtin.browser.program import CHROMIUM
from envs.builtin.webarena.env import INSTRUCTIONS, SiteState, WebEnv
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Task, read_tasks
from envs.builtin.webarena_local.experts import EXPERTS
from envs.builtin.webarena_local.sites.copies import LiveSites
from envs.builtin.webarena_local.sites.data import GIT, PACKAGES, WEBARENA_LOCAL
from envs.builtin.webarena_local.sites.seed.people import COOKIES
from envs.builtin.webarena_local.sites.serving import HOST
from envs.errors import unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

if TYPE_CHECKING:
    from playwright.async_api import StorageState

NAME = "webarena-local"
TASKS = Path(__file__).parent / "tasks.json"
APPLICATIONS = {"shopping": "shop", "reddit": "forum", "gitlab": "forge", "shopping_admin": "cms"}
"""WebArena's name of a site → ours."""
PUBLIC = {site: f"http://{application}.example" for site, application in APPLICATIONS.items()}
"""The addresses that a policy is shown; the real ones have ports, which differ from copy to copy."""


@cache
def tasks() -> Mapping[int, Task]:
    """All tasks by their number."""
    return read_tasks(TASKS)


@cache
def values() -> Mapping[int, dict[str, str]]:
    """The values that each task's template was filled with: for its expert, not for a policy."""
    return {task["task_id"]: task["instantiation_dict"] for task in json.loads(TASKS.read_text("utf-8"))}


class LocalSites(LiveSites):
    """The `SiteProvider` of one environment: a copy of the sites."""

    async def prepare_sites(self, task: Task) -> SiteState:
        """Restore the sites. The first call on a machine makes their data, which takes half a minute."""
        addresses = await self.restore()
        urls = {site: addresses[application] for site, application in APPLICATIONS.items()}
        return SiteState(Sites(urls, PUBLIC), _storage_state(task.logins))


def _storage_state(logins: Sequence[str]) -> "StorageState":
    """The session cookies of the seeded users who are logged in to these sites."""
    cookies = [COOKIES[APPLICATIONS[site]] for site in logins]
    return {
        "cookies": [
            {
                "name": cookie.name,
                "value": cookie.value,
                "domain": HOST,
                "path": "/",
                "expires": -1,
                "httpOnly": True,
                "secure": False,
                "sameSite": "Lax",
            }
            for cookie in cookies
        ],
        "origins": [],
    }


def make() -> WebEnv:
    """A new instance."""
    return WebEnv(tasks=tasks, provider=LocalSites(), helpers={}, judge=lambda: None)


def make_item(index: int) -> Item:
    """The item `webarena-local_<index>`."""
    if index not in tasks():
        raise unknown_item(NAME, index, count=len(tasks()))
    task = tasks()[index]
    return Item(
        item_id=f"{NAME}_{task.task_id}",
        env=NAME,
        metadata={
            "site": task.sites[0],
            "evaluator": task.eval.eval_types[0],
            "template": task.intent_template_id,
        },
    )


def split(seed: int) -> Split:
    """One task of each template is for tests, the others are for training."""
    rng = random.Random(f"{NAME}/split/{seed}")
    by_template = defaultdict[int, list[int]](list)
    for index, task in tasks().items():
        by_template[task.intent_template_id].append(index)
    test = {rng.choice(indices) for indices in by_template.values()}
    return Split(
        train=[make_item(index) for index in tasks() if index not in test],
        test=[make_item(index) for index in tasks() if index in test],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The script of the task's template."""
    return EXPERTS[tasks()[item.index].intent_template_id](values()[item.index])


SPEC = EnvSpec(
    name=NAME,
    make=make,
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=("playwright", *PACKAGES),
    requirements=(CHROMIUM, GIT, WEBARENA_LOCAL),
    isolation="own",
    source="invented tasks on seeded copies of django-oscar, django-machina, Trac and wagtail, all made here",
)
