"""The episode that is played now, as lines of a terminal."""

import unicodedata

from rich.text import Text

from tasks.rollout.current_episode import EpisodeView

_INVISIBLE = ("C", "Zl", "Zp")
"""Categories of Unicode: controls, marks of direction, surrogates, unassigned; separators of lines."""


def make_harmless(text: str) -> str:
    """`text` on one line, without characters that a terminal obeys or that reorder others."""
    return " ".join(
        "".join(" " if unicodedata.category(c).startswith(_INVISIBLE) else c for c in text).split()
    )


def draw_episode(episode: EpisodeView, *, width: int) -> list[Text]:
    """Four lines: which episode it is, its task, the last action and the last observation."""
    lines = [
        Text.assemble(
            ("now  ", "bold"),
            f"{make_harmless(episode.item)}  sample {episode.sample + 1}  "
            f"turn {episode.turn} of {episode.max_turns}",
        ),
        Text(f"     {make_harmless(episode.task)}", style="magenta"),
        Text(f"   > {make_harmless(episode.action)}", style="bold red" if episode.failed else "bold"),
        Text(f"     {make_harmless(episode.observation)}", style="green"),
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
