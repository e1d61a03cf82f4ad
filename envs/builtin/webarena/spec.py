"""WebArena: 812 tasks on copies of a shop, its administration, a forum, a forge, a map and an encyclopedia.

Tasks, evaluation and the form of what a policy sees and does are WebArena's (Zhou et al. 2023, arXiv
2307.13854). Its sites are not brought along: they are large images that somebody serves, and their addresses
come from the environment (`envs/builtin/webarena/sites.py`, docs/webarena.md). Item `webarena_N` is task
N, as in
AgentGym.

Tasks change the sites for all that are played after them. As upstream, nothing is restored between episodes;
`webarena-local` has sites that are.
"""

import random
from collections.abc import Mapping

from envs.browser.program import CHROMIUM
from envs.builtin.webarena.env import Scene, WebEnv
from envs.builtin.webarena.helpers import HELPERS
from envs.builtin.webarena.judge import JUDGE_NAMED, is_left_out, judge_of_environment
from envs.builtin.webarena.login import LOGGED_IN, storage_state
from envs.builtin.webarena.sites import SITES_ANSWER, sites
from envs.builtin.webarena.tasks import TASK_FILE, TASKS, Task, tasks
from envs.errors import ConfigError, unknown_item
from envs.registry import EnvSpec, Split, no_expert
from envs.types import Item

TEST_SHARE = 0.1
"""Of the templates, whose tasks are all on one side. AgentGym-RL's own lists of items are not in its code."""

INSTRUCTIONS = """\
You use a web browser to reach an objective. Every round you are shown the page as its accessibility tree, a \
line for each element that is in sight, with its number in brackets; the titles of the open tabs; the \
address; the objective; and what you did last. You answer with your thought and one action:
click [id]: click on the element with this number
type [id] [text] [0|1]: write into a field, or choose from a list; 1, the default, presses Enter afterwards
hover [id]: move the mouse to the element
press [keys]: press keys, e.g. press [Control+a]
scroll [down|up]: move the page by the height of the window
new_tab, tab_focus [number], close_tab: open a tab, change to one (the first is 0), close the current one
goto [url], go_back, go_forward: load an address, move through the history
stop [answer]: end the task, with the answer if a question was asked; N/A if it cannot be done
The sites that can be visited are listed at http://homepage.com."""


class _Served:
    """The benchmark's sites, which somebody serves."""

    is_alive = True

    async def begin(self, task: Task) -> Scene:
        """See `Venue`."""
        return Scene(sites(), storage_state(task.logins))

    async def close(self) -> None:
        """See `Venue`."""


def make() -> WebEnv:
    """A new instance."""
    return WebEnv(tasks=tasks, venue=_Served(), helpers=HELPERS, judge=judge_of_environment)


def make_item(index: int) -> Item:
    """The item `webarena_<index>`; raises `ConfigError` for one that cannot be judged here."""
    known = tasks()
    if index not in known:
        raise unknown_item("webarena", index, count=TASKS)
    if is_left_out() and known[index].eval.needs_judge:
        raise ConfigError(f"webarena_{index} needs a judge, and WEBARENA_JUDGE_URL is 'none'")
    return Item(item_id=f"webarena_{index}", env="webarena", metadata={"site": known[index].sites[0]})


def split(seed: int) -> Split:
    """All tasks, a tenth of the templates for tests: tasks of one ask the same of different things."""
    known: Mapping[int, Task] = tasks()
    playable = [task for task in known.values() if not (is_left_out() and task.eval.needs_judge)]
    by_site: dict[str, list[int]] = {}
    for task in playable:
        templates = by_site.setdefault(task.sites[0], [])
        if task.intent_template_id not in templates:
            templates.append(task.intent_template_id)
    rng = random.Random(f"webarena/split/{seed}")
    tested = {one for of in by_site.values() for one in rng.sample(of, round(len(of) * TEST_SHARE))}
    sides: dict[bool, list[Item]] = {False: [], True: []}
    for task in playable:
        sides[task.intent_template_id in tested].append(make_item(task.task_id))
    return Split(train=sides[False], test=sides[True])


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
)
