"""MiniWoB++: small tasks on small pages, made anew from a seed.

Pages, tasks and rewards are those of the `miniwob` package (Shi et al. 2017, World of Bits; Liu et al. 2018,
arXiv 1802.08802), played in the browser and in the form of WebArena (`envs/builtin/miniwob/env.py`). Item
`miniwob_N`
is task N % 65 of `envs/builtin/miniwob/tasks.py`, made from seed N // 65. The reward is the one that the
page gives,
from -1 to 1, as it would be without the time; more than 0 is success.
"""

from collections.abc import Sequence

from envs.browser.program import CHROMIUM
from envs.builtin.miniwob.env import MiniWobEnv, place_of
from envs.builtin.miniwob.expert import EXPERTS
from envs.builtin.miniwob.tasks import TASKS
from envs.registry import EnvSpec, ExpertStep, Split
from envs.types import Item

TRAIN_SEEDS, TEST_SEEDS = 12, 2
"""Of each task. Some have one problem only, whatever the seed."""

INSTRUCTIONS = """\
You use a web page to reach an objective. Every round you are shown the page as its accessibility tree, a \
line for each element that is in sight, with its number in brackets; the objective; and what you did last. \
You answer with your thought and one action:
click [id]: click on the element with this number
type [id] [text] [0|1]: write into a field, or choose from a list; 1, the default, presses Enter afterwards
hover [id]: move the mouse to the element
press [keys]: press keys, e.g. press [Control+a]
scroll [down|up]: move the page by the height of the window"""


def make_item(index: int) -> Item:
    """The item `miniwob_<index>`."""
    task, seed = place_of(index)
    return Item(item_id=f"miniwob_{index}", env="miniwob", seed=seed, metadata={"task": task})


def split(seed: int) -> Split:
    """12 seeds of each task for training and 2 others for tests; `seed` moves both on."""
    first = seed * (TRAIN_SEEDS + TEST_SEEDS)
    last = first + TRAIN_SEEDS
    return Split(
        train=[make_item(index) for index in range(first * len(TASKS), last * len(TASKS))],
        test=[make_item(index) for index in range(last * len(TASKS), (last + TEST_SEEDS) * len(TASKS))],
    )


def expert(item: Item) -> Sequence[ExpertStep]:
    """The script of its task; empty where there is none (`envs/builtin/miniwob/expert.py`)."""
    return EXPERTS.get(place_of(item.index)[0], ())


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
