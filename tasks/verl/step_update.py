"""The numbers of a step's update, by trajectory and turn: what `tasks/data/updates.py` keeps of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from agents.types import Trajectory
from tasks.data.updates import TrajectoryUpdate, TurnUpdate
from tasks.verl.advantages import JoinedRows, StepEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepUpdate:
    """What all conversations of a step are trained with, [C, T] as in `JoinedRows`."""

    trained: Mapping[str, Trajectory]
    """The conversations, in their order."""
    advantages: torch.Tensor
    log_ratios: torch.Tensor | None
    """The trainer's log-probs minus the sampler's; None where it has not computed them."""
    entropies: torch.Tensor | None

    @classmethod
    def collect(
        cls,
        rows: JoinedRows,
        estimate: StepEstimate,
        *,
        trained: Mapping[str, Trajectory],
        has_trainers_log_probs: bool,
    ) -> "StepUpdate":
        """`rows`: with `entropy`, and `old_log_probs` that are the trainer's, if `has_trainers_log_probs`."""
        log_ratios = entropies = None
        if has_trainers_log_probs:
            log_ratios = rows.join("old_log_probs") - rows.join("rollout_log_probs")
            entropies = rows.join("entropy")
        return cls(
            trained=trained, advantages=estimate.advantages, log_ratios=log_ratios, entropies=entropies
        )

    def of_turns(self, trajectory: Trajectory, *, place: int) -> list[TurnUpdate]:
        """The numbers of each turn of `trajectory`, which is in `place` among those of `trained`."""
        lengths = [len(turn.completion.token_ids) for turn in trajectory.turns]
        columns = [_split(values, place, lengths) for values in (self.log_ratios, self.entropies)]
        return [
            TurnUpdate(
                advantages=advantages[0] if len(set(advantages)) == 1 else advantages,
                log_ratios=log_ratios,
                entropies=entropies,
            )
            for advantages, log_ratios, entropies in zip(
                _split(self.advantages, place, lengths), *columns, strict=True
            )
        ]


def list_updates(update: StepUpdate | None, trajectories: Sequence[Trajectory]) -> list[TrajectoryUpdate]:
    """The updates of `trajectories`, in order; `update`: of their step, None if it trained on nothing."""
    places = {} if update is None else {id(t): place for place, t in enumerate(update.trained.values())}

    def turns_of(trajectory: Trajectory) -> list[TurnUpdate] | None:
        place = places.get(id(trajectory))
        return None if update is None or place is None else update.of_turns(trajectory, place=place)

    return [
        TrajectoryUpdate(item_id=t.item.item_id, sample_index=t.sample_index, turns=turns_of(t))
        for t in trajectories
    ]


def _split(values: torch.Tensor | None, place: int, lengths: Sequence[int]) -> Sequence[list[float] | None]:
    """Row `place` of [C, T] by turns of `lengths`, rounded; as many times None where there are no values."""
    if values is None:
        return [None] * len(lengths)
    rounded = iter([float(f"{value:.5g}") for value in values[place, : sum(lengths)].tolist()])
    return [_take(rounded, length) for length in lengths]


def _take(values: Iterator[float], count: int) -> list[float]:
    return [next(values) for _ in range(count)]
