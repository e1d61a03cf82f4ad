"""The trajectories that a report prints: pairs of episodes of one item, before and after training; and the
items that the trained policy does not solve.

The choice covers every outcome that training had, failures included, not just the best-looking episodes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from agents.types import Trajectory
from envs.types import Item
from tasks.evaluation.outcomes import POLICIES
from tasks.reporting.results import Results

PAIRS = 5
LISTED = 30
"""Items that are not solved, which the report lists."""
_OBSERVATION_CHARS = 160
"""The most characters of the last observation of an episode."""


class PairVerdict(StrEnum):
    """How training changed the result on one item."""

    NEWLY_SOLVED = "solved by training"
    STILL_UNSOLVED = "still not solved"
    NO_LONGER_SOLVED = "solved before, not after"
    STILL_SOLVED = "solved before and after"


ORDER = (
    PairVerdict.NEWLY_SOLVED,
    PairVerdict.STILL_UNSOLVED,
    PairVerdict.NEWLY_SOLVED,
    PairVerdict.NO_LONGER_SOLVED,
    PairVerdict.STILL_UNSOLVED,
)
"""The verdicts of the pairs, where such items exist; gaps are filled in `PairVerdict`'s order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcerptPair:
    """Episodes of one item by both policies; None where no episode was recorded.

    Lines are those of `evaluation_trajectories.jsonl`, counted from 1.
    """

    item: Item
    verdict: PairVerdict
    opening: str | None
    """The prompt, with the chat template's own tokens; None without a tokenizer."""
    before: Trajectory | None
    before_line: int | None
    after: Trajectory
    after_line: int


def choose_pairs(results: Results, *, decode: Callable[[Sequence[int]], str | None]) -> list[ExcerptPair]:
    """Choose at most `PAIRS` items with their sampled trajectories, the most informative first.

    Within a verdict, items of different kinds (the first integer metadata value, such as depth) come first,
    hard ones before easy ones. Deterministic.
    """
    before, after = (
        {item_id: episodes[0] for item_id, episodes in results.sampled(policy).items()} for policy in POLICIES
    )
    by_verdict: dict[PairVerdict, list[str]] = {verdict: [] for verdict in PairVerdict}
    for item_id, (_, last) in after.items():
        _, first = before.get(item_id, (None, None))
        if last.has_failed or (first and first.has_failed):
            continue  # says nothing about the policy
        by_verdict[_verdict(first, last)].append(item_id)
    queues = {
        verdict: _interleave_kinds(item_ids, kind_of=lambda item_id: _kind(after[item_id][1].item))
        for verdict, item_ids in by_verdict.items()
    }
    verdicts = [verdict for verdict in ORDER if queues[verdict]]
    verdicts += [verdict for verdict in PairVerdict for _ in queues[verdict]]
    pairs: list[ExcerptPair] = []
    for verdict in verdicts:
        if queues[verdict] and len(pairs) < PAIRS:
            item_id = queues[verdict].pop(0)
            before_line, first = before.get(item_id, (None, None))
            after_line, last = after[item_id]
            pairs.append(
                ExcerptPair(
                    item=last.item,
                    verdict=verdict,
                    opening=decode(last.prompt_ids),
                    before=first,
                    before_line=before_line,
                    after=last,
                    after_line=after_line,
                )
            )
    return sorted(pairs, key=lambda pair: list(PairVerdict).index(pair.verdict))


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingItem:
    """An item that some sampled episode after training did not solve."""

    before: Sequence[float]
    """Successes of the samples before training."""
    after: Sequence[float]
    episode: Trajectory
    """The item's first sampled episode after training that does not solve it."""
    line: int
    """The line of that episode, in the file of evaluated episodes."""

    @property
    def is_unsolved(self) -> bool:
        """Whether no episode after training solved it."""
        return not any(self.after)

    @property
    def last_observation(self) -> str:
        """The last observation of `episode`, on one line."""
        text = self.episode.turns[-1].observation if self.episode.turns else ""
        line = " ".join(text.split())
        return line if len(line) <= _OBSERVATION_CHARS else f"{line[: _OBSERVATION_CHARS - 1]}…"


def failing_items(results: Results) -> list[FailingItem]:
    """The items that not every sampled episode solves after training, those that fewest solve first."""
    before, after = (results.outcomes.get(policy, {}).get("sampled", {}) for policy in ("before", "after"))
    failing = []
    for item, episodes in results.sampled("after").items():
        unsolved = [(line, t) for line, t in episodes if not (t.success or t.has_failed)]
        if unsolved and after.get(item) and not all(after[item]):
            line, episode = unsolved[0]
            failing.append(
                FailingItem(before=before.get(item, []), after=after[item], episode=episode, line=line)
            )
    return sorted(failing, key=lambda row: fmean(row.after))


def _verdict(before: Trajectory | None, after: Trajectory) -> PairVerdict:
    solved_before = before is not None and before.success
    if after.success:
        return PairVerdict.STILL_SOLVED if solved_before else PairVerdict.NEWLY_SOLVED
    return PairVerdict.NO_LONGER_SOLVED if solved_before else PairVerdict.STILL_UNSOLVED


def _kind(item: Item) -> int:
    return next((value for value in item.metadata.values() if isinstance(value, int)), 0)


def _interleave_kinds(item_ids: Sequence[str], *, kind_of: Callable[[str], int]) -> list[str]:
    """One of every kind, then a second of every kind …; each time the highest kind first."""
    ranks: dict[int, int] = {}
    entries = []
    for item_id in item_ids:
        kind = kind_of(item_id)
        entries.append((ranks.setdefault(kind, 0), kind, item_id))
        ranks[kind] += 1
    entries.sort(key=lambda entry: entry[1], reverse=True)
    return [item_id for _, _, item_id in sorted(entries, key=lambda entry: entry[0])]
