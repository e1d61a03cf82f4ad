"""Counts the goal conditions of a task that are met, as ALFWorld does (`alfworld/env/tasks.py`).

Upstream counts them in its simulator, and TextWorld's games have no such count; this module evaluates them on
the same facts in PDDL. A condition is met or not at this moment, except that an object which was once heated,
cooled or cleaned counts as such for the rest of the episode, as upstream remembers it.
"""

from collections import Counter
from collections.abc import Collection

from envs.builtin.alfworld.games import Task

_TREATMENTS = {
    "pick_clean_then_place_in_recep": "isclean",
    "pick_heat_then_place_in_recep": "ishot",
    "pick_cool_then_place_in_recep": "iscool",
}

Fact = tuple[str, ...]
"""A predicate and its arguments, all in lower case, e.g. `("inreceptacle", "mug_bar_…", "desk_bar_…")`."""


class Progress:
    """The conditions of one episode."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._treatments: set[str] = set()

    def count_conditions(self, facts: Collection[Fact]) -> tuple[int, int]:
        """(conditions that are met, all conditions); call it with the facts after every action."""
        task = self._task
        targets = {o for p, o, *t in facts if p == "objecttype" and t == [f"{task.object.lower()}type"]}
        if task.type == "look_at_obj_in_light":
            return self._count_light_conditions(facts, targets), 2
        receptacle_type = f"{task.receptacle.lower()}type"
        receptacles = {r for p, r, *t in facts if p == "receptacletype" and t == [receptacle_type]}
        placements = [
            (f[1], f[2]) for f in facts if f[0] == "inreceptacle" and f[1] in targets and f[2] in receptacles
        ]
        if task.type == "pick_and_place_simple":
            return int(bool(placements)), 1
        if task.type == "pick_two_obj_and_place":
            counts = Counter(receptacle for _, receptacle in placements)
            return min(max(counts.values(), default=0), 2), 2
        self._treatments |= {f[1] for f in facts if f[0] == _TREATMENTS[task.type]}
        treatments = self._treatments & targets
        return bool(placements) + bool(treatments) + any(target in treatments for target, _ in placements), 3

    def _count_light_conditions(self, facts: Collection[Fact], targets: set[str]) -> int:
        lamps = {f[1] for f in facts if f[0] == "objecttype" and f[2] == f"{self._task.lamp.lower()}type"}
        here = {f[2] for f in facts if f[0] == "atlocation"}
        at_hand = {f[1] for f in facts if f[0] == "receptacleatlocation" and f[2] in here}
        objects = {f[1] for f in facts if f[0] == "inreceptacle" and f[2] in at_hand}
        on = {f[1] for f in facts if f[0] == "istoggled"}
        is_holding = any(f[0] == "holds" and f[2] in targets for f in facts)
        return int(is_holding) + bool(lamps & objects & on)
