"""Prints episodes as they run: the task, then the thought, action and observation of each turn."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from agents.types import Trajectory, Turn
from envs.types import Image, Item, Message
from flows.display.tables import mask_controls, print_plain
from tasks.reporting.pages import format_count

_STYLES = {
    "task": "magenta",
    "thought": "dim",
    "action": "bold",
    "unparsed": "bold red",
    "images": "green",
    "observation": "green",
}

_INDENT = " " * 4


class TurnPrinter:
    """Prints the turns of concurrent episodes to one console.

    The first line of each text names its episode and its turn; its other lines are indented. On a terminal
    long lines are wrapped between words; elsewhere lines are plain and whole, for programs.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def opening(self, item: Item, sample_index: int, messages: Sequence[Message]) -> None:
        """Print the first messages of an episode."""
        episode = f"{item.item_id} #{sample_index} begins"
        for message in messages:
            label = "task" if message.role == "user" else f"task ({message.role})"
            self._lines(episode, label, message.content, style=_STYLES["task"])
            self._lines(episode, "images", _media(message.images), style=_STYLES["images"])

    def turn(
        self, item: Item, sample_index: int, turns: Sequence[Turn], *, is_repeated: bool = False
    ) -> None:
        """Print the last of `turns`; `is_repeated`: that it comes from a record."""
        turn = turns[-1]
        episode = f"{item.item_id} #{sample_index} turn {len(turns)}{' (repeated)' if is_repeated else ''}"
        facts = {
            "thought": turn.thought,
            # a turn that is not in the format has no action; it is shown whole
            "unparsed" if turn.is_malformed else "action": turn.text if turn.is_malformed else turn.action,
            "images": _media(turn.images),
            "observation": turn.observation,
        }
        for label, text in facts.items():
            self._lines(episode, label, text, style=_STYLES[label])

    def trajectory(self, trajectory: Trajectory) -> None:
        """Print how an episode ended."""
        episode = f"{trajectory.item.item_id} #{trajectory.sample_index}"
        if trajectory.has_failed:
            self._line(
                episode,
                f"dropped after {format_count(trajectory.attempts, 'attempt')}: {trajectory.error}",
                style="red",
            )
            return
        outcome = "success" if trajectory.success else "no success"
        self._line(
            episode,
            f"{trajectory.stop_reason}, {outcome}, reward {trajectory.reward:g}, "
            f"{format_count(len(trajectory.turns), 'turn')} in {trajectory.seconds:.1f} s",
            style="cyan",
        )

    def note(self, text: str) -> None:
        """Print a line that belongs to no episode."""
        print_plain(text, console=self._console)

    def _lines(self, episode: str, label: str, text: str, *, style: str) -> None:
        lines = list(filter(str.strip, text.splitlines()))
        for line in lines[:1]:
            self._line(episode, f"{label}: {line}", style=style)
        for line in lines[1:]:
            self._print(Text(f"{_INDENT}{mask_controls(line)}", style=style))

    def _line(self, episode: str, text: str, *, style: str) -> None:
        space = "  " if self._console.is_terminal else " "
        self._print(Text.assemble((mask_controls(episode), "blue"), space, (mask_controls(text), style)))

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=not self._console.is_terminal)


def _media(images: Sequence[Image]) -> str:
    return ", ".join(image.media_type for image in images)
