"""Episodes on the console as they are played: the task, then each turn's thought, action and observation."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from agents.types import StopReason, Trajectory, Turn
from envs.types import Image, Item, Message

_STYLES = {
    "task": "magenta",
    "thought": "dim",
    "action": "bold",
    "said": "bold red",
    "images": "green",
    "observation": "green",
}


class TurnPrinter:
    """Prints to one console. Episodes are played side by side, so every line says whose it is. On a terminal
    long lines are wrapped between words; elsewhere all are plain and whole, for programs that read them."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def opening(self, item: Item, sample_index: int, messages: Sequence[Message]) -> None:
        """See `agents.rollout.group.OnOpening`."""
        who = f"{item.item_id} #{sample_index} begins"
        for message in messages:
            label = "task" if message.role == "user" else f"task ({message.role})"
            self._lines(who, label, message.content, style=_STYLES["task"])
            self._lines(who, "images", _media(message.images), style=_STYLES["images"])

    def turn(self, item: Item, sample_index: int, turns: Sequence[Turn]) -> None:
        """See `agents.rollout.group.OnTurn`."""
        turn = turns[-1]
        who = f"{item.item_id} #{sample_index} turn {len(turns)}"
        facts = {
            "thought": turn.thought,
            # a turn that is not in the format has no action; it is shown whole
            "said" if turn.failed else "action": turn.text if turn.failed else turn.action,
            "images": _media(turn.images),
            "observation": turn.observation,
        }
        for label, text in facts.items():
            self._lines(who, label, text, style=_STYLES[label])

    def trajectory(self, trajectory: Trajectory) -> None:
        """One that has ended."""
        who = f"{trajectory.item.item_id} #{trajectory.sample_index}"
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

    def _lines(self, who: str, label: str, text: str, *, style: str) -> None:
        for line in filter(str.strip, text.splitlines()):
            self._line(who, f"{label}: {line}", style=style)

    def _line(self, who: str, text: str, *, style: str) -> None:
        at_terminal = self._console.is_terminal
        line = Text.assemble((who, "blue"), "  " if at_terminal else " ", (text, style))
        self._console.print(line, soft_wrap=not at_terminal)


def _media(images: Sequence[Image]) -> str:
    return ", ".join(image.media_type for image in images)
