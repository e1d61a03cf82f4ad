"""Rewinds of a training that collapsed: where it goes back to, which checkpoints that needs, the new draws.

A checkpoint is *safe* if no alert stood at its step. Training goes back to the newest safe one that is at
least a window of `train.watch` older than the alert, so that no step that raised it has shaped its weights;
one that training went back to before counts as such. Where there is none, training begins anew.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from envs.files import read_lines_as, write_atomically
from tasks.config.training import TrainSettings
from tasks.runs.parameters import try_read_lines
from tasks.verl import checkpoints

REWINDS = "rewinds.jsonl"
"""The file below `train/` with one `Rewind` a line."""
MAX_KEPT = 2
"""Checkpoints that are kept for rewinds at most, besides the newest."""
_STRIDE = 1_000_003
"""Seeds of a run are this far apart, farther than it has steps, which are added to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """Training went back once."""

    from_step: int
    """The step that raised the alerts."""
    to_step: int
    """The step of the checkpoint; 0 is the start."""
    reasons: str
    """The alerts' texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindPoints:
    """The checkpoints that training could go back to."""

    window: int
    """`train.watch.window`."""
    safe_steps: Sequence[int]
    """The steps of the safe checkpoints, ascending."""
    rewinds: Sequence[Rewind]

    @classmethod
    def read(cls, train: Path, *, window: int) -> "RewindPoints":
        """Read the points in `train`, the folder of the train stage."""
        steps = checkpoints.complete_steps(train / "checkpoints")
        alert_steps = _steps_with_alerts(train / "metrics.jsonl")
        return cls(
            window=window,
            safe_steps=[step for step in steps if step not in alert_steps],
            rewinds=read_rewinds(train),
        )

    def target(self, step: int) -> int:
        """The step that an alert at `step` goes back to; never before the target of an earlier step."""
        earlier_targets = {rewind.to_step for rewind in self.rewinds}
        return max(
            (safe for safe in self.safe_steps if safe <= step - self.window or safe in earlier_targets),
            default=0,
        )

    def steps_to_keep(self, step: int) -> set[int]:
        """The checkpoints to keep when that of `step` is written: the target, and the first after it, which
        becomes the target when it is old enough."""
        target = self.target(step)
        later = [safe for safe in self.safe_steps if safe > target]
        return {safe for safe in (target, *later[:1]) if safe > 0}


def most_checkpoints(train: TrainSettings) -> int:
    """The most checkpoints of a training that are on disk at once, with the one that is being written."""
    return checkpoints.MAX_CHECKPOINTS + 1 + (MAX_KEPT if train.watch.rewinds else 0)


def read_rewinds(train: Path) -> list[Rewind]:
    """All rewinds so far, in order; `train`: the folder of the train stage.

    Raises `DamagedFile`.
    """
    return read_lines_as(Rewind, train / REWINDS)


def write_rewind(train: Path, rewind: Rewind) -> None:
    """Delete the checkpoints after `rewind.to_step`, and then write the rewind down.

    A process that is killed in between leaves a training that goes on from an earlier checkpoint with the
    same draws: it collapses once more, and is rewound then.
    """
    checkpoints.delete_after(train / "checkpoints", step=rewind.to_step)
    lines = [json.dumps(asdict(entry)) + "\n" for entry in (*read_rewinds(train), rewind)]
    write_atomically(train / REWINDS, "".join(lines))


def seed_after(rewinds: int, *, seed: int) -> int:
    """The seed of all draws of a training that was rewound so many times; `seed`: the pipeline's."""
    return (seed + rewinds * _STRIDE) % 2**31


def _steps_with_alerts(metrics: Path) -> set[int]:
    return {int(values["step"]) for values in try_read_lines(metrics) if values.get("alerts", 0)}
