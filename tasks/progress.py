"""How a stage of the pipeline reports its progress."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.data.collapse import Alert


def _ignore(*_: object, **__: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Observers of one stage; a stage calls those that apply to it."""

    on_history: Callable[[Sequence[Mapping[str, float]]], object] = _ignore
    """Called with the metrics of the training steps that count so far, when training begins or resumes."""
    on_step: Callable[[Mapping[str, float]], object] = _ignore
    """Called after each training step with its metrics, `step` (from 1) among them."""
    on_episodes: Callable[[int, int], object] = _ignore
    """Called with the number of finished episodes and the total."""
    on_phase: Callable[[str], object] = _ignore
    """Called with what the stage does until its next step, e.g. "starting Ray"."""
    on_alert: Callable[["Alert"], object] = _ignore
    """Called with each sign of a collapse of training, as it appears."""
    on_note: Callable[[str], object] = _ignore
    """Called with a decision of the stage that a user should see, in one line."""
    episode_file: Path | None = None
    """Where the stage's `EpisodeWriter` writes the episode that is being played; None without a terminal."""


SILENT = Progress()
