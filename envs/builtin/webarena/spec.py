"""WebArena: 812 tasks on copies of a shop, its administration, a forum, a forge, a map and an encyclopedia.

Tasks, evaluation, observations and actions are WebArena's (Zhou et al. 2023, arXiv 2307.13854). Its sites are
large images that are not included: a user serves them and names their addresses in environment variables
(`envs/builtin/webarena/sites.py`, docs/webarena.md). Item `webarena_N` is task N, as in AgentGym.

A task changes the sites for all later tasks. As upstream, nothing is restored between episodes; the sites of
`webarena-local` are.
"""

import random

from envs.builtin.browser.program import CHROMIUM
from envs.builtin.webarena.env import INSTRUCTIONS as WEB_INSTRUCTIONS
from envs.builtin.webarena.env import SiteState, WebEnv
from envs.builtin.webarena.helpers import HELPERS
from envs.builtin.webarena.judge import JUDGE_NAMED, is_left_out, judge_of_environment
from envs.builtin.webarena.login import LOGGED_IN, storage_state
from envs.builtin.webarena.sites import SITES_ANSWER, load_sites
from envs.builtin.webarena.tasks import TASK_FILE, TASKS, Task, tasks
from envs.errors import ConfigError, unknown_item
from envs.registry import EnvSpec, Split, no_expert
from envs.types import Item

TEST_SHARE = 0.1
"""Share of the templates; all tasks of a template are in one split. AgentGym-RL's lists of items are not
public."""

INSTRUCTIONS = (
    f"{WEB_INSTRUCTIONS}; N/A if it cannot be done\n"
    "The sites that can be visited are listed at http://homepage.com."
)


class _ServedSites:
    """The benchmark's sites, which a user serves."""

    is_alive = True

    async def prepare_sites(self, task: Task) -> SiteState:
        """Read the addresses and logins of the sites."""
        return SiteState(load_sites(), storage_state(task.logins))

    async def close(self) -> None:
        """Leave the sites running."""


def make() -> WebEnv:
    """A new instance."""
    return WebEnv(tasks=tasks, provider=_ServedSites(), helpers=HELPERS, judge=judge_of_environment)


def make_item(index: int) -> Item:
    """The item `webarena_<index>`; raises `ConfigError` if it cannot be judged here."""
    task = tasks().get(index)
    if task is None:
        raise unknown_item("webarena", index, count=TASKS)
    if is_left_out() and task.eval.needs_judge:
        raise ConfigError(f"webarena_{index} needs a judge, and WEBARENA_JUDGE_URL is 'none'")
    return Item(item_id=f"webarena_{index}", env="webarena", metadata={"site": task.sites[0]})


def split(seed: int) -> Split:
    """All tasks; a tenth of the templates is for tests, because tasks of one template are alike."""
    playable = [task for task in tasks().values() if not (is_left_out() and task.eval.needs_judge)]
    by_site: dict[str, list[int]] = {}
    for task in playable:
        templates = by_site.setdefault(task.sites[0], [])
        if task.intent_template_id not in templates:
            templates.append(task.intent_template_id)
    rng = random.Random(f"webarena/split/{seed}")
    test_templates = {
        template
        for templates in by_site.values()
        for template in rng.sample(templates, round(len(templates) * TEST_SHARE))
    }
    train: list[Item] = []
    test: list[Item] = []
    for task in playable:
        (test if task.intent_template_id in test_templates else train).append(make_item(task.task_id))
    return Split(train=train, test=test)


SPEC = EnvSpec(
    name="webarena",
    make=make,
    split=split,
    make_item=make_item,
    expert=no_expert,
    instructions=INSTRUCTIONS,
    packages=("playwright",),
    requirements=(TASK_FILE, CHROMIUM, SITES_ANSWER, LOGGED_IN, JUDGE_NAMED),
    source="WebArena's 812 tasks (libwebarena 0.0.4, of browsergym-webarena 0.14.3), on sites given by URL",
    isolation="own",
    is_shared=True,
)
