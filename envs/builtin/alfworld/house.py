"""One live house: a game in TextWorld, as text in and text out. Blocking; one thread at a time may call.

TextWorld's parser and planner keep state of their own that all instances of a process share: a process
plays one game at a time. The planner's library is loaded once for a process and used again by the next
house.
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
_free: list[Any] = []
"""Games of this process that nobody plays; each has a copy of the planner's library, which is never
unloaded."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a command has led to."""

    text: str
    commands: Sequence[str]
    """All that the game would carry out now, sorted."""
    won: bool
    conditions: tuple[int, int]
    """Goal conditions met, of how many."""


class House:
    """One game, played from its start."""

    def __init__(self, game: Game) -> None:
        from envs.builtin.alfworld.textworld_light import new_game

        self._live = _free.pop() if _free else new_game()
        try:
            self._live.load(
                {"pddl_domain": game.domain, "pddl_problem": game.problem, "grammar": game.grammar}
            )
            state = self._live.reset()
        except (
            Exception,
            SystemExit,
        ) as error:  # the translator ends the program where it cannot read a problem
            raise ConfigError(
                f"{game.file}: TextWorld cannot read this game ({type(error).__name__}: {str(error)[:200]})"
            ) from error
        self._progress = Progress(game.task)
        # TextWorld's greeting comes first; AgentGym leaves it out.
        self.opening = self._seen(state, "\n".join(state.feedback.split("\n\n")[1:]))

    def act(self, action: str) -> Seen:
        """Carry out one command; one that the game does not know is answered."""
        state, _, _ = self._live.step(self._command(action))
        return self._seen(state, _ARRIVAL.sub("", state.feedback))

    def close(self) -> None:
        """Leave the game to the next house. Idempotent."""
        live, self._live = self._live, None
        if live is not None:
            _free.append(live)

    def _command(self, action: str) -> str:
        words = " ".join(action.split())[:MAX_ACTION_LENGTH]
        if words not in self._commands:
            # ALFWorld said `put a in/on b` until 0.3.5 and says `move a to b` since; a game knows one.
            put = _PUT.match(words)
            if put is not None and f"move {put[1]} to {put[2]}" in self._commands:
                return f"move {put[1]} to {put[2]}"
        return words

    def _seen(self, state: Any, text: str) -> Seen:
        self._commands = list(state.admissible_commands)
        facts = [
            (fact.name.lower(), *(argument.name for argument in fact.arguments)) for fact in state["_facts"]
        ]
        return Seen(text.strip(), self._commands, bool(state.won), self._progress.met(facts))
