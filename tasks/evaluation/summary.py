"""Outcomes and rates of an evaluation, by environment and by metadata key."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean

from agents.types import Trajectory
from tasks.data.trajectories import MAX_KINDS, group_by_kind
from tasks.evaluation.intervals import bootstrap
from tasks.evaluation.pass_at_k import passes
from tasks.evaluation.record import GroupResult, ItemOutcome, Rate


def outcome_of(group: Sequence[Trajectory], *, max_turns: int) -> ItemOutcome:
    """The samples of one item, whose episodes had at most `max_turns`."""
    item = group[0].item
    valid = [t for t in group if not t.has_failed]
    failed = [t for t in group if t.has_failed]
    return ItemOutcome(
        item=item.item_id,
        env=item.env,
        metadata=dict(item.metadata),
        max_turns=max_turns,
        successes=[t.success for t in valid],
        rewards=[t.reward for t in valid],
        turns=[len(t.turns) for t in valid],
        failures=Counter(t.error_class for t in failed),
    )


def results_of(
    outcomes: Sequence[ItemOutcome], *, samples: int, ks: Sequence[int]
) -> dict[str, dict[str, GroupResult]]:
    """Results of all items, of each environment, and by metadata keys with 2 to `MAX_KINDS` plain values."""
    return {
        key: {kind: _result(members, samples, ks) for kind, members in groups.items()}
        for key, groups in _groupings(outcomes)
    }


def _groupings(outcomes: Sequence[ItemOutcome]) -> Iterator[tuple[str, dict[str, list[ItemOutcome]]]]:
    """Each key with the outcomes of each of its values."""
    yield "all", {"all": [*outcomes]}
    yield "env", group_by_kind((outcome.env, outcome) for outcome in outcomes)
    for key in dict.fromkeys(key for outcome in outcomes for key in outcome.metadata):
        values = [(outcome.metadata.get(key), outcome) for outcome in outcomes]
        groups = group_by_kind((v, outcome) for v, outcome in values if isinstance(v, str | int | float))
        if key not in ("all", "env") and 2 <= len(groups) <= MAX_KINDS:
            yield key, groups


def _result(outcomes: Sequence[ItemOutcome], samples: int, ks: Sequence[int]) -> GroupResult:
    scored_outcomes = [outcome for outcome in outcomes if outcome.successes]
    passed = passes([outcome.successes for outcome in scored_outcomes], ks=ks)
    rates = {name: Rate.estimate(values) for name, values in passed.items() if values}
    if scored_outcomes:
        rates = {f"avg_at_{samples}": Rate.estimate([fmean(o.successes) for o in scored_outcomes]), **rates}
        rates["reward"] = Rate.estimate([fmean(o.rewards) for o in scored_outcomes])
        rates["turns"] = Rate.estimate([fmean(o.turns) for o in scored_outcomes], interval=bootstrap)
    return GroupResult(
        items=len(outcomes),
        episodes=sum(len(outcome.successes) for outcome in outcomes),
        failed=sum(sum(outcome.failures.values()) for outcome in outcomes),
        rates=rates,
    )
