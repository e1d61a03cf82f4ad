"""Which trajectories a report shows to be read, and what is told of each: pairs of one item, played
before and after training, chosen for what they teach rather than for how they look.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

from agents.types import FinishReason, StopReason, Trajectory
from envs.types import Item
from tasks.data.trajectories import sampled_tokens
from tasks.reporting.results import Results

PAIRS = 5


class Verdict(StrEnum):
    """What training made of one item."""

    SOLVED = "solved by training"
    FAILING = "still not solved"
    LOST = "solved before, not after"
    KEPT = "solved before and after"


ORDER = (Verdict.SOLVED, Verdict.FAILING, Verdict.SOLVED, Verdict.LOST, Verdict.FAILING)
"""What the pairs show, where there are such items; gaps are filled in `Verdict`'s order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTurn:
    """One turn, to be read."""

    thought: str
    action: str
    parsed: bool
    """False where no action was found in `text`."""
    text: str
    """All that the policy wrote in this turn."""
    cut: bool
    """The completion ran into the limit of tokens."""
    observation: str
    reward: float
    tokens: int
    mean_logprob: float
    policy_version: int
    sampling_s: float
    env_s: float
    """Seconds of sampling and of the environment; 0.0 where they were not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadEpisode:
    """One trajectory, to be read."""

    success: bool
    stop_reason: str
    reward: float
    tokens: int
    seconds: float
    turns: list[ReadTurn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One item, played by both policies; a side that was not kept is None."""

    item: Item
    verdict: Verdict
    opening: str | None
    """What the policy was told, the chat template's own tokens included; None without its tokenizer."""
    before: ReadEpisode | None
    after: ReadEpisode


def choose_pairs(results: Results, *, decode: Callable[[list[int]], str | None]) -> list[Pair]:
    """At most `PAIRS` items with their sampled trajectories, the most telling first.

    Of each verdict, items of different kinds (the first metadata key that tells kinds apart, such as
    depth) come first, hard ones before easy ones. The same results give the same choice.
    """
    before, after = (results.find(policy, "sampled") for policy in ("before", "after"))
    by_verdict: dict[Verdict, list[str]] = {verdict: [] for verdict in Verdict}
    for item_id, trajectory in after.items():
        if StopReason.ERROR in (trajectory.stop_reason, item_id in before and before[item_id].stop_reason):
            continue  # says nothing of the policy
        by_verdict[_verdict(before.get(item_id), trajectory)].append(item_id)
    queues = {
        verdict: _spread(item_ids, kind_of=lambda item_id: _kind(after[item_id].item))
        for verdict, item_ids in by_verdict.items()
    }
    wanted = [verdict for verdict in ORDER if queues[verdict]]
    wanted += [verdict for verdict in Verdict for _ in queues[verdict]]
    chosen: list[Pair] = []
    for verdict in wanted:
        if queues[verdict] and len(chosen) < PAIRS:
            item_id = queues[verdict].pop(0)
            first, then = before.get(item_id), after[item_id]
            chosen.append(
                Pair(
                    item=then.item,
                    verdict=verdict,
                    opening=decode(then.prompt_ids),
                    before=read_episode(first) if first else None,
                    after=read_episode(then),
                )
            )
    return sorted(chosen, key=lambda pair: list(Verdict).index(pair.verdict))


def read_episode(trajectory: Trajectory) -> ReadEpisode:
    """A trajectory as it is read."""
    turns = [
        ReadTurn(
            thought=turn.thought,
            action=turn.action,
            parsed=not turn.failed,
            text=turn.text,
            cut=turn.completion.finish_reason is FinishReason.LENGTH,
            observation=turn.observation,
            reward=turn.reward,
            tokens=len(turn.completion.token_ids),
            mean_logprob=fmean(turn.completion.logprobs),
            policy_version=turn.completion.policy_version,
            sampling_s=turn.sampling_s,
            env_s=turn.env_s,
        )
        for turn in trajectory.turns
    ]
    return ReadEpisode(
        success=trajectory.success,
        stop_reason=trajectory.stop_reason.replace("_", " "),
        reward=trajectory.reward,
        tokens=sampled_tokens(trajectory),
        seconds=trajectory.seconds,
        turns=turns,
    )


def _verdict(before: Trajectory | None, after: Trajectory) -> Verdict:
    solved_before = before is not None and before.success
    if after.success:
        return Verdict.KEPT if solved_before else Verdict.SOLVED
    return Verdict.LOST if solved_before else Verdict.FAILING


def _kind(item: Item) -> int:
    return next((value for value in item.metadata.values() if isinstance(value, int)), 0)


def _spread(item_ids: Sequence[str], *, kind_of: Callable[[str], int]) -> list[str]:
    """One of every kind, then a second of every kind …; within a round the greatest kind first."""
    ranks: dict[int, int] = {}
    ranked = []
    for item_id in item_ids:
        kind = kind_of(item_id)
        ranked.append((ranks.setdefault(kind, 0), kind, item_id))
        ranks[kind] += 1
    ranked.sort(key=lambda entry: entry[1], reverse=True)
    return [item_id for _, _, item_id in sorted(ranked, key=lambda entry: entry[0])]
