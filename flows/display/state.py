"""What the display of a run knows: the state of each stage and the numbers of its steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

Clock = Callable[[], float]
"""Seconds since some moment."""


class StageState(StrEnum):
    """The state of a stage."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"
    STOPPED = "stopped"
    """The stage was stopped by a signal."""


@dataclass(slots=True, kw_only=True)
class StageView:
    """One stage."""

    state: StageState = StageState.WAITING
    start: float | None = None
    """The start on the display's clock, as all times here."""
    seconds: float = 0.0
    """How long it took."""
    total: int = 0
    """The number of the steps or episodes that it counts; 0 if it counts none, or does not know yet."""
    steps: Sequence[Mapping[str, float]] = field(default_factory=list)
    """The metrics of its steps, `step` (from 1) among them, those of earlier attempts included."""
    first_event: tuple[int, float] | None = None
    """The first step or count of this process, and its time: a resumed run does not begin at 1."""
    last_event: tuple[int, float] | None = None
    pauses_s: Sequence[float] = ()
    """The times between the steps of this process, where steps say how long they took: evaluations and
    checkpoints."""
    phase: str = ""
    """What the stage does until its next step."""

    @property
    def done(self) -> int:
        """The last step, or the number of episodes that have ended."""
        return int(self.steps[-1]["step"]) if self.steps else 0
