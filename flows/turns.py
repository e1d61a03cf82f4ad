"""Turns on the console as they are played: who, thought, action, observation."""

from collections.abc import Sequence

from rich.console import Console

from agents.types import StopReason, Trajectory, Turn
from envs.types import Item

_STYLES = {"thought": "dim", "action": "bold", "said": "bold red", "images": "green", "observation": "green"}


class TurnPrinter:
    """Prints to one console. Episodes are played side by side, so every line says whose it is; without a
    terminal all lines are plain, and none is wrapped."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def turn(self, item: Item, chain: int, turns: Sequence[Turn]) -> None:
        """See `agents.group.OnTurn`."""
        turn = turns[-1]
        who = f"{item.item_id} #{chain} turn {len(turns)}"
        facts = {
            "thought": turn.thought,
            # a turn that is not in the format has no action; it is shown whole
            "said" if turn.failed else "action": turn.text if turn.failed else turn.action,
            "images": ", ".join(image.media_type for image in turn.images),
            "observation": turn.observation,
        }
        for label, text in facts.items():
            for line in text.strip().splitlines():
                self._line(who, f"{label}: {line}", style=_STYLES[label])

    def trajectory(self, trajectory: Trajectory) -> None:
        """One that has ended."""
        who = f"{trajectory.item.item_id} #{trajectory.chain}"
        if trajectory.stop_reason is StopReason.ERROR:
            self._line(who, f"dropped after {trajectory.attempts} tries: {trajectory.error}", style="red")
            return
        outcome = "success" if trajectory.success else "no success"
        self._line(
            who,
            f"{trajectory.stop_reason}, {outcome}, reward {trajectory.reward:g}, "
            f"{len(trajectory.turns)} turns in {trajectory.seconds:.1f} s",
            style="cyan",
        )

    def note(self, text: str) -> None:
        """A line of nobody's."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _line(self, who: str, text: str, *, style: str) -> None:
        if self._console.is_terminal:
            self._console.print(who, style="blue", end="  ", markup=False, highlight=False)
        else:
            text = f"{who} {text}"
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
