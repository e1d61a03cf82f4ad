"""webarena-local: the environment of `envs/builtin/webarena/` on web applications that run on this machine.

Its 96 tasks are invented, in WebArena's form and on its four domains: a shop (django-oscar), a forum
(django-machina), a forge (Trac, with Git repositories) and a CMS (wagtail). What an episode writes nobody
else sees, and the next finds nothing of it (`envs/builtin/webarena_local/sites/tenant.py`). Item
`webarena-local_N`
is task `N` of `tasks.json`.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

from envs.browser.program import CHROMIUM
from envs.builtin.webarena.env import WebEnv
from envs.builtin.webarena.tasks import Task
from envs.builtin.webarena_local.experts import solution
from envs.builtin.webarena_local.sites.data import GIT, PACKAGES, WEBARENA_LOCAL
from envs.builtin.webarena_local.venue import LocalVenue, tasks, values
from envs.errors import unknown_item
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

NAME = "webarena-local"

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
stop [answer]: end the task, with the answer if a question was asked"""


def make() -> WebEnv:
    """A new instance."""
    return WebEnv(tasks=tasks, venue=LocalVenue(), helpers={}, judge=lambda: None)


def make_item(index: int) -> Item:
    """The item `webarena-local_<index>`."""
    if index not in tasks():
        raise unknown_item(NAME, index, count=len(tasks()))
    return _item(tasks()[index])


def _item(task: Task) -> Item:
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
    """One task of each template is tested, the others are for training."""
    rng = random.Random(f"{NAME}/split/{seed}")
    of_template = defaultdict[int, list[Task]](list)
    for task in tasks().values():
        of_template[task.intent_template_id].append(task)
    test = {rng.choice(same).task_id for same in of_template.values()}
    return Split(
        train=[_item(task) for task in tasks().values() if task.task_id not in test],
        test=[_item(task) for task in tasks().values() if task.task_id in test],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """Clicks and words that do what is asked, found on the pages as they are seen."""
    return solution(tasks()[item.index], values()[item.index])


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
