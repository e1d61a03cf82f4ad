"""The test items that the trained policy does not solve, for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from envs.types import Item
from tasks.reporting.results import Results

LISTED = 30
"""Items that the report lists."""
_CHARACTERS = 160
"""Of the last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingItem:
    """An item that some sampled episode after training did not solve."""

    item: Item
    before: Sequence[float]
    """Successes of the samples before training."""
    after: Sequence[float]
    line: int
    """Of its first sampled episode after training, in the file of evaluated episodes."""
    stop_reason: str
    """How that episode ended."""
    turns: int
    is_solved: bool
    """Whether that episode succeeded; others of the item then failed."""
    last_observation: str

    @property
    def is_unsolved(self) -> bool:
        """Whether no episode after training solved it."""
        return not any(self.after)


def failing_items(results: Results) -> list[FailingItem]:
    """The items that not every sampled episode solves after training, those that fewest solve first."""
    before, after = (results.outcomes.get(policy, {}).get("sampled", {}) for policy in ("before", "after"))
    episodes, lines = results.find("after", "sampled"), results.find_lines("after", "sampled")
    failing = [
        FailingItem(
            item=episode.item,
            before=before.get(item, []),
            after=after[item],
            line=lines[item],
            stop_reason=episode.stop_reason.replace("_", " "),
            turns=len(episode.turns),
            is_solved=episode.success,
            last_observation=_shorten(episode.turns[-1].observation if episode.turns else ""),
        )
        for item, episode in episodes.items()
        if after.get(item) and not all(after[item])
    ]
    return sorted(failing, key=lambda row: fmean(row.after))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1]}…"
