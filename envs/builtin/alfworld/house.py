"""One live house: a game in TextWorld, text in and text out. Blocking; one thread at a time may call.

TextWorld's parser and planner have state that all instances of a process share, so a process plays one game
at a time. A process loads the planner's library once; the next house reuses it.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from envs.builtin.alfworld.games import Game, Task
from envs.errors import ConfigError
from envs.types import hash_state

if TYPE_CHECKING:
    from textworld import GameState
    from textworld.envs import PddlEnv

MAX_ACTION_LENGTH = 200
"""Characters; the longest command of a game has about 60."""

_PUT = re.compile(r"^put (.+?) (?:in/on|in|on|into|onto) (.+)$")
_ARRIVAL = re.compile(r"^You arrive at [^.]*\. ")
_idle_games: list["PddlEnv"] = []
"""TextWorld instances that no house uses; each holds a copy of the planner's library, which is never
unloaded."""


@dataclass(frozen=True, slots=True)
class HouseState:
    """The result of a command."""

    text: str
    commands: Sequence[str]
    """All that the game would carry out now, sorted."""
    is_won: bool
    conditions: tuple[int, int]
    """(goal conditions that are met, all goal conditions)"""
    key: str
    """The key of the facts that hold now."""


_TREATMENTS = {
    "pick_clean_then_place_in_recep": "isclean",
    "pick_heat_then_place_in_recep": "ishot",
    "pick_cool_then_place_in_recep": "iscool",
}

Fact = tuple[str, ...]
"""A predicate and its arguments, all in lower case, e.g. `("inreceptacle", "mug_bar_…", "desk_bar_…")`."""


class GoalProgress:
    """Counts the goal conditions of a task that are met, as ALFWorld does (`alfworld/env/tasks.py`).

    Upstream counts them in its simulator; TextWorld's games have no such count, so they are evaluated here on
    the same facts in PDDL. A condition is met or not at this moment, except that an object which was once
    heated, cooled or cleaned counts as such for the rest of the episode, as upstream remembers it.
    """

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
        locations = {f[2] for f in facts if f[0] == "atlocation"}
        reachable = {f[1] for f in facts if f[0] == "receptacleatlocation" and f[2] in locations}
        objects = {f[1] for f in facts if f[0] == "inreceptacle" and f[2] in reachable}
        switched_on = {f[1] for f in facts if f[0] == "istoggled"}
        is_holding = any(f[0] == "holds" and f[2] in targets for f in facts)
        return int(is_holding) + bool(lamps & objects & switched_on)


def _is_state(fact: Fact) -> bool:
    """Whether anything depends on it. `checked` notes what was looked at, and nothing reads it; TextWorld
    keeps `not_opened` and the like of facts that have ceased to hold."""
    return fact[0] != "checked" and not fact[0].startswith("not_")


class House:
    """One game, played from its start."""

    def __init__(self, game: Game) -> None:
        from envs.builtin.alfworld.textworld_light import new_game

        self._live = _idle_games.pop() if _idle_games else new_game()
        try:
            self._live.load(
                {"pddl_domain": game.domain, "pddl_problem": game.problem, "grammar": game.grammar}
            )
            state = self._live.reset()
        except (Exception, SystemExit) as error:  # the translator exits if it cannot read a problem
            raise ConfigError(
                f"{game.file}: TextWorld cannot read this game ({type(error).__name__}: {str(error)[:200]})"
            ) from error
        self._progress = GoalProgress(game.task)
        # AgentGym omits TextWorld's greeting, which comes first.
        self.opening = self._observe(state, "\n".join(state.feedback.split("\n\n")[1:]))

    def act(self, action: str) -> HouseState:
        """Carry out one command; the game answers one that it does not know."""
        state, _, _ = self._live.step(self._normalize(action))
        return self._observe(state, _ARRIVAL.sub("", state.feedback))

    def close(self) -> None:
        """Free the TextWorld instance for the next house. Idempotent."""
        live, self._live = self._live, None
        if live is not None:
            _idle_games.append(live)

    def _normalize(self, action: str) -> str:
        words = " ".join(action.split())[:MAX_ACTION_LENGTH]
        if words not in self._commands:
            # ALFWorld had `put a in/on b` until 0.3.5 and has `move a to b` since; a game knows one of them.
            put = _PUT.match(words)
            if put is not None and f"move {put[1]} to {put[2]}" in self._commands:
                return f"move {put[1]} to {put[2]}"
        return words

    def _observe(self, state: "GameState", text: str) -> HouseState:
        self._commands = list(state.admissible_commands)
        facts = [
            (fact.name.lower(), *(argument.name for argument in fact.arguments)) for fact in state["_facts"]
        ]
        return HouseState(
            text.strip(),
            self._commands,
            bool(state.won),
            self._progress.count_conditions(facts),
            hash_state(sorted(fact for fact in facts if _is_state(fact))),
        )
