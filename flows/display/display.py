"""The live display of a run: its stages, the course of its training, and the episode that is played now.

Without a terminal it prints one plain line per event.
"""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console, ConsoleRenderable, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment, Segments

from flows.display.forecast import HorizonAt
from flows.display.frame import FORMATS, Frames, RunView, describe_metrics, describe_position, format_clock
from flows.display.state import Clock, StageState, StageView
from flows.display.tables import print_plain
from tasks.rollout.current_episode import EpisodeReader
from tasks.runs.progress import Progress

_PER_SECOND = 2
"""Frames: an episode that changes faster cannot be read."""
_PLAIN_LINES = 10
"""Lines printed by a stage that counts episodes, without a terminal."""
_KEPT = ("step", "horizon", "success", "seconds", "turns", "episodes", "stop_max_turns")
"""Metrics of a step that are kept besides those that are shown."""


class Display:
    """Shows one run while it is open as a context."""

    def __init__(
        self,
        title: str,
        *,
        stages: Sequence[str],
        steps: Mapping[str, int],
        steps_per_round: int,
        horizon_at: HorizonAt | None = None,
        episode_file: Path | None = None,
        console: Console | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """`steps`: the total number of steps of each stage that counts them; `horizon_at` as in `RunView`;
        `episode_file`: which `EpisodeWriter` writes if `is_live`."""
        self._clock = clock
        self._view = RunView(
            title=title,
            start=clock(),
            stages={stage: StageView(total=steps.get(stage, 0)) for stage in stages},
            steps_per_round=steps_per_round,
            horizon_at=horizon_at,
        )
        self._frames = Frames(self._view)
        self._episode_file = episode_file
        self._reader = None if episode_file is None else EpisodeReader(episode_file)
        self._console = console or Console()
        self.is_live = self._console.is_interactive
        """There is a terminal that can be drawn on: not TERM=dumb."""
        self._live = _Resizing(
            get_renderable=self.draw, console=self._console, refresh_per_second=_PER_SECOND
        )
        self._log_handlers: list[logging.Handler] = []

    def __enter__(self) -> Self:
        self._remove_episode()
        if self.is_live:
            self._live.start()
            # Prefect's handler would write into the frame.
            root = logging.getLogger()
            self._log_handlers, root.handlers = root.handlers, [_LogNotes(self)]
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_stopped = error is not None and not isinstance(error, Exception)
        for name, stage in self._view.stages.items():
            if stage.state is StageState.RUNNING:
                self.stage(name, StageState.STOPPED if is_stopped else StageState.FAILED)
        self._reader = self._view.episode = None
        if self.is_live:
            logging.getLogger().handlers = self._log_handlers
            self._live.stop()
        self._remove_episode()

    def stage(self, name: str, state: StageState) -> None:
        """Set the state of stage `name`."""
        stage = self._view.stages[name]
        now = self._clock()
        if state is StageState.RUNNING:
            self._remove_episode()  # of the stage before
            stage.start = now
        elif state is not StageState.CACHED and stage.start is not None:
            stage.seconds = now - stage.start
        stage.state = state
        if state is not StageState.FAILED:  # the phase shows where it failed
            stage.phase = ""
        if self.is_live:
            self._live.refresh()
        elif state is not StageState.WAITING:
            has_ended = state in (StageState.DONE, StageState.FAILED, StageState.STOPPED)
            took = f" in {format_clock(stage.seconds)}" if has_ended else ""
            self.note(f"{name}: {state}{took}")

    def history(self, name: str, steps: Sequence[Mapping[str, float]]) -> None:
        """The steps of stage `name` that count so far, after a resumption or a rewind."""
        stage = self._view.stages[name]
        stage.steps = [_select(name, values) for values in steps]
        stage.first_event = stage.last_event = None

    def step(self, name: str, values: Mapping[str, float]) -> None:
        """Show the metrics of a finished step of stage `name`, `step` (from 1) among them."""
        stage, now = self._view.stages[name], self._clock()
        if stage.last_event is not None and "seconds" in values:
            pause_s = now - stage.last_event[1] - values["seconds"]
            stage.pauses_s = [*stage.pauses_s, max(0.0, pause_s)]
        stage.last_event = int(values["step"]), now
        stage.first_event = stage.first_event or stage.last_event
        stage.steps = [*stage.steps, _select(name, values)]
        stage.phase = ""
        if not self.is_live:
            metrics = describe_metrics(name, stage)
            self.note(f"{name}: " + "  ".join(filter(None, (self._position(name), metrics))))

    def phase(self, name: str, text: str) -> None:
        """Show what stage `name` does until its next step or episode ends, e.g. "starting Ray"."""
        self._view.stages[name].phase = text
        if not self.is_live:
            self.note(f"{name}: {text}")

    def count(self, name: str, done: int, total: int) -> None:
        """Show that `done` of `total` episodes of stage `name` have ended."""
        stage = self._view.stages[name]
        before = stage.done
        stage.total = total
        stage.steps = [{"step": done}]
        stage.last_event = done, self._clock()
        stage.first_event = stage.first_event or stage.last_event
        stage.phase = ""
        if not self.is_live and before * _PLAIN_LINES // total < done * _PLAIN_LINES // total:
            self.note(f"{name}: {self._position(name)}")

    def progress(self, name: str) -> Progress:
        """Observers that show the progress of stage `name`."""
        return Progress(
            on_history=partial(self.history, name),
            on_step=partial(self.step, name),
            on_episodes=partial(self.count, name),
            on_phase=partial(self.phase, name),
            on_alert=lambda alert: self.note(f"{name}: step {alert.step}: sign of a collapse: {alert.text}"),
            on_note=lambda text: self.note(f"{name}: {text}"),
            episode_file=self._episode_file if self.is_live else None,
        )

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        print_plain(text, console=self._console)

    def _position(self, name: str) -> str:
        return describe_position(self._view, name, now=self._clock())

    def draw(self) -> Group:
        """What the terminal shows now."""
        if self._reader is not None:
            self._view.episode = self._reader.read()
        size = self._console.size
        return Group(*self._frames.draw(width=size.width, height=size.height - 1, now=self._clock()))

    def _remove_episode(self) -> None:
        if self._episode_file is not None:
            self._episode_file.unlink(missing_ok=True)


class _LogNotes(logging.Handler):
    """Shows what is logged as notes of the display."""

    def __init__(self, display: Display) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._display.note(f"{record.levelname.lower()}: {self.format(record)}")
        except Exception:  # as in every handler: what is logged never ends the program
            self.handleError(record)


class _Resizing(Live):
    """A live display that outlives a change of the terminal's size, and is drawn at once.

    A terminal breaks lines that have become too long for it, so that nobody knows any more where the last
    frame is: the screen is cleared. Terminals that know synchronized output (mode 2026) show no frame half
    drawn; others ignore it.
    """

    _size = None

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        size, before = self.console.size, self._size
        self._size = size
        clear: list[ConsoleRenderable] = (
            [Control.clear(), Control.home()] if before not in (None, size) else []
        )
        output = super().process_renderables(renderables)
        return [_mode_2026("h"), *clear, *output, _mode_2026("l")]


def _mode_2026(end: str) -> Segments:
    # The type of a control matters to the old console of Windows alone.
    return Segments([Segment(f"\x1b[?2026{end}", None, [(ControlType.BELL,)])])


def _select(name: str, values: Mapping[str, float]) -> Mapping[str, float]:
    metric_names: Iterable[str] = (*_KEPT, *FORMATS.get(name, ()))
    return {key: values[key] for key in metric_names if key in values}
