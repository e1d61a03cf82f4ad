"""How a stage of the pipeline reports its progress, and how it is watched while it works."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
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
    """Called with what the stage does until its next step or episode ends, e.g. "starting Ray"."""
    on_alert: Callable[["Alert"], object] = _ignore
    """Called with each sign of a collapse of training, as it appears."""
    on_note: Callable[[str], object] = _ignore
    """Called with a decision of the stage that a user should see, in one line."""
    episode_file: Path | None = None
    """Where the stage's `EpisodeWriter` writes the episode that is being played; None without a terminal."""


SILENT = Progress()


@contextmanager
def call_every(look: Callable[[], object], *, interval_s: float, name: str) -> Iterator[None]:
    """Call `look` every `interval_s` while the block runs, in a thread called `name`."""
    is_over = Event()

    def watch() -> None:
        while not is_over.wait(interval_s):
            look()

    thread = Thread(target=watch, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
