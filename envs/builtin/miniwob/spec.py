"""MiniWoB++: small tasks on small pages, generated from a seed.

Pages, tasks and rewards are those of the `miniwob` package (Shi et al. 2017, World of Bits; Liu et al. 2018,
arXiv 1802.08802), in the browser and the form of WebArena (`env.py`). Item `miniwob_N` is task N % 65 of
`tasks.py` with seed N // 65. The reward is the page's, from -1 to 1, without its deduction for time; more
than 0 is success.
"""

from collections.abc import Sequence

from envs.builtin.browser.program import CHROMIUM
from envs.builtin.miniwob.env import MiniWobEnv, find_task
from envs.builtin.miniwob.expert import EXPERTS
from envs.builtin.miniwob.tasks import TASKS
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

TRAIN_SEEDS, TEST_SEEDS = 12, 2
"""Seeds of each task; some tasks have only one problem, whatever the seed."""

INSTRUCTIONS = """\
You use a web page to reach an objective. Every round you are shown the page as its accessibility tree, a \
line for each element that is in sight, with its number in brackets; the objective; and what you did last. \
You take one action:
click [id]: click on the element with this number
type [id] [text] [0|1]: write into a field, or choose from a list; 1, the default, presses Enter afterwards
hover [id]: move the mouse to the element
press [keys]: press keys, e.g. press [Control+a]
scroll [down|up]: move the page by the height of the window"""


def make_item(index: int) -> Item:
    """The item `miniwob_<index>`."""
    task, seed = find_task(index)
    return Item(item_id=f"miniwob_{index}", env="miniwob", seed=seed, metadata={"task": task})


def split(seed: int) -> Split:
    """12 seeds of each task for training and 2 others for tests; `seed` shifts both."""
    first = seed * (TRAIN_SEEDS + TEST_SEEDS)
    last = first + TRAIN_SEEDS
    return Split(
        train=[make_item(index) for index in range(first * len(TASKS), last * len(TASKS))],
        test=[make_item(index) for index in range(last * len(TASKS), (last + TEST_SEEDS) * len(TASKS))],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The script of its task; empty if there is none."""
    return EXPERTS.get(find_task(item.index)[0], ())


SPEC = EnvSpec(
    name="miniwob",
    make=MiniWobEnv,
    split=split,
    make_item=make_item,
    expert=expert,
    instructions=INSTRUCTIONS,
    packages=("miniwob", "playwright"),
    requirements=(CHROMIUM,),
    source="the miniwob package: its pages and tasks, made from the item's number; nothing to download",
    isolation="own",
)
