"""More games for training, drawn as the others are (`drafts.py`) and made when they are read.

No planner has solved them; the expert wins those that were played (docs/alfworld.md). Their rooms are
upstream's training scenes, and none has the task of one of the other 210 games in the same room.
"""

from functools import cache

from envs.builtin.alfworld.games import TASK_TYPES, Game, Task
from envs.builtin.alfworld.mini.drafts import COUNTS, Draft, drafts, draw
from envs.builtin.alfworld.upstream import domain

FIRST = sum(COUNTS.values())
"""The number of the first of them."""
COUNT = 1200
PART = "more"


@cache
def make_draft(number: int) -> Draft:
    """The draft of the game with a number from `FIRST` on."""
    return draw(number, PART, TASK_TYPES[number % len(TASK_TYPES)], _used_tasks())


@cache
def _used_tasks() -> frozenset[tuple[Task, int]]:
    return frozenset((draft.task, draft.layout.room.number) for draft in drafts())


def make_game(number: int) -> Game:
    """The game with a number from `FIRST` on."""
    draft = make_draft(number)
    _, _, name = draft.folder.partition("/")
    return Game(
        name=name,
        file=f"alfworld-mini, game {number}",
        task=draft.task,
        domain=domain(),
        problem=draft.problem,
        grammar=draft.grammar,
        walkthrough=(),
    )
