"""What a step's update computed about the trajectories that are kept: `train/trajectories/update_NNNN.jsonl`.

Line N is about line N of `step_NNNN.jsonl`. The numbers are the trainer's and no part of an episode, so they
have a file of their own, which readers of trajectories need not know.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.files import read_lines_as, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnUpdate:
    """What the update computed of the [C] sampled tokens of a turn, rounded to five significant digits."""

    advantages: float | list[float]
    """[C], or the number that all tokens have."""
    log_ratios: list[float] | None
    """[C], nats: the trainer's log-prob before the update minus the sampler's; None where the trainer took
    the sampler's as they were."""
    entropies: list[float] | None
    """[C], nats: of the trainer's whole distributions before the update; None where `log_ratios` are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryUpdate:
    """What the update computed of a trajectory."""

    item_id: str
    sample_index: int
    turns: list[TurnUpdate] | None
    """None: the trajectory was not trained on."""


def update_file(folder: Path, step: int) -> Path:
    """The file of updates of the trajectories of a step; `folder`: theirs."""
    return folder / f"update_{step:04d}.jsonl"


def write_updates(path: Path, updates: Sequence[TrajectoryUpdate]) -> None:
    """Write one a line to `path`, completely or not at all."""
    write_atomically(path, "".join(json.dumps(update, default=_values) + "\n" for update in updates))


def read_updates(path: Path) -> list[TrajectoryUpdate]:
    """The updates in `path`, in order; none if there is no such file. Raises `DamagedFile`."""
    return read_lines_as(TrajectoryUpdate, path)


def _values(record: TrajectoryUpdate | TurnUpdate) -> dict[str, object]:
    # `asdict` copies every number, which takes longer than all else
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
