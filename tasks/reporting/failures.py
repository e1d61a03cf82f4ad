"""The test items that the trained policy does not solve, for the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from agents.types import Trajectory
from tasks.reporting.results import Results

LISTED = 30
"""Items that the report lists."""
_CHARACTERS = 160
"""Of the last observation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingItem:
    """An item that some sampled episode after training did not solve."""

    before: Sequence[float]
    """Successes of the samples before training."""
    after: Sequence[float]
    episode: Trajectory
    """Its first sampled episode after training; if that succeeded, others of the item failed."""
    line: int
    """Of that episode, in the file of evaluated episodes."""

    @property
    def is_unsolved(self) -> bool:
        """Whether no episode after training solved it."""
        return not any(self.after)

    @property
    def last_observation(self) -> str:
        """Of `episode`, on one line."""
        text = self.episode.turns[-1].observation if self.episode.turns else ""
        line = " ".join(text.split())
        return line if len(line) <= _CHARACTERS else f"{line[: _CHARACTERS - 1]}…"


def failing_items(results: Results) -> list[FailingItem]:
    """The items that not every sampled episode solves after training, those that fewest solve first."""
    before, after = (results.outcomes.get(policy, {}).get("sampled", {}) for policy in ("before", "after"))
    failing = [
        FailingItem(before=before.get(item, []), after=after[item], episode=episode, line=line)
        for item, (line, episode) in results.sampled("after").items()
        if after.get(item) and not all(after[item])
    ]
    return sorted(failing, key=lambda row: fmean(row.after))
