"""One live house: a game in TextWorld, text in and text out. Blocking; one thread at a time may call.

TextWorld's parser and planner have state that all instances of a process share, so a process plays one game
at a time. A process loads the planner's library once; the next house reuses it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs.builtin.alfworld.conditions import Progress
from envs.builtin.alfworld.games import Game
from envs.errors import ConfigError

MAX_ACTION_LENGTH = 200
"""Characters; the longest command of a game has about 60."""

_PUT = re.compile(r"^put (.+?) (?:in/on|in|on|into|onto) (.+)$")
_ARRIVAL = re.compile(r"^You arrive at [^.]*\. ")
_idle_games: list[Any] = []
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
        self._progress = Progress(game.task)
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

    def _observe(self, state: Any, text: str) -> HouseState:
        self._commands = list(state.admissible_commands)
        facts = [
            (fact.name.lower(), *(argument.name for argument in fact.arguments)) for fact in state["_facts"]
        ]
        return HouseState(
            text.strip(), self._commands, bool(state.won), self._progress.count_conditions(facts)
        )
