"""The live display of a run: stages with their states and seconds, and the progress of training.

Without a terminal it prints one plain line per event.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tasks.progress import Progress


class StageState(StrEnum):
    """The state of a stage."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    CACHED = "cached"
    FAILED = "failed"
    STOPPED = "stopped"
    """By a signal."""


_MARKS = {
    StageState.WAITING: Text("·", style="dim"),
    StageState.DONE: Text("✓", style="green"),
    StageState.CACHED: Text("=", style="cyan"),
    StageState.FAILED: Text("✗", style="red"),
    StageState.STOPPED: Text("■", style="yellow"),
}


_FORMATS = {
    "warmup": {"loss": "loss {:.3f}"},
    # Not the loss: GRPO's advantages sum to 0 in a group, so it always stays near 0.
    "train": {
        "horizon": "horizon {:.0f}",
        "success": "success {:.2f}",
        "reward": "reward {:.2f}",
        "informative_groups": "informative groups {:.0%}",
        "entropy": "entropy {:.2f}",
        "kl": "kl {:.4f}",
        "imitation_loss": "loss {:.3f}",
        "preference_loss": "loss {:.3f}",
        "preference_accuracy": "pairs in order {:.0%}",
        "tokens_per_s": "{:,.0f} tokens/s",
    },
}
"""The format of each metric that is shown, by stage."""
_UNITS = {"evaluate": "episode"}
"""What a stage counts, if not steps."""
_PLAIN_LINES = 10
"""Lines printed by a stage that counts episodes, without a terminal."""


@dataclass(slots=True)
class _Row:
    state: StageState = StageState.WAITING
    start: float = 0.0
    seconds: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)
    """Metrics of the last step."""
    first_step: tuple[int, float] | None = None
    """The first step of this run, and its time: a resumed run does not begin at 1."""
    phase: str = ""
    """What the stage does until its next step."""


class Display:
    """Shows one run while it is open as a context."""

    def __init__(
        self,
        title: str,
        *,
        stages: Sequence[str],
        steps: Mapping[str, int],
        steps_per_round: int,
        console: Console | None = None,
    ) -> None:
        """`steps`: the total number of steps of each stage that counts them."""
        self._title = title
        self._rows = {stage: _Row() for stage in stages}
        self._steps = dict(steps)
        self._steps_per_round = steps_per_round
        self._console = console or Console()
        self._start = time.perf_counter()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
        self._is_plain = not self._console.is_terminal

    def __enter__(self) -> Self:
        if not self._is_plain:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_stopped = error is not None and not isinstance(error, Exception)
        for stage, row in self._rows.items():
            if row.state is StageState.RUNNING:
                self.stage(stage, StageState.STOPPED if is_stopped else StageState.FAILED)
        if not self._is_plain:
            self._live.stop()

    def stage(self, name: str, state: StageState) -> None:
        """Set the state of stage `name`."""
        row = self._rows[name]
        now = time.perf_counter()
        if state is StageState.RUNNING:
            row.start = now
        elif state is not StageState.CACHED and row.start:
            row.seconds = now - row.start
        row.state = state
        if state is not StageState.FAILED:  # the phase shows where it failed
            row.phase = ""
        if self._is_plain and state is not StageState.WAITING:
            has_ended = state in (StageState.DONE, StageState.FAILED, StageState.STOPPED)
            took = f" in {_clock(row.seconds)}" if has_ended else ""
            self.note(f"{name}: {state}{took}")

    def step(self, stage: str, values: Mapping[str, float]) -> None:
        """Show the metrics of a finished step of `stage`, `step` (from 1) among them."""
        row = self._rows[stage]
        if row.first_step is None:
            row.first_step = (int(values["step"]), time.perf_counter())
        row.values = values
        row.phase = ""
        if self._is_plain:
            self.note(f"{stage}: " + "  ".join(filter(None, (self._position(stage), self._numbers(stage)))))

    def phase(self, stage: str, text: str) -> None:
        """Show what `stage` does until its next step ends, e.g. "starting Ray"."""
        self._rows[stage].phase = text
        if self._is_plain:
            self.note(f"{stage}: {text}")

    def count(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` episodes of `stage` have ended."""
        row = self._rows[stage]
        before = int(row.values.get("step", 0))
        self._steps[stage] = total
        row.values = {"step": done}
        if row.first_step is None:
            row.first_step = (done, time.perf_counter())
        if self._is_plain and before * _PLAIN_LINES // total < done * _PLAIN_LINES // total:
            self.note(f"{stage}: {self._position(stage)}")

    def progress(self, stage: str) -> Progress:
        """Observers that show the progress of `stage`."""
        return Progress(
            on_step=partial(self.step, stage),
            on_episodes=partial(self.count, stage),
            on_phase=partial(self.phase, stage),
            on_alert=lambda alert: self.note(f"{stage}: step {alert.step}: sign of a collapse: {alert.text}"),
            on_note=lambda text: self.note(f"{stage}: {text}"),
        )

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _position(self, stage: str) -> str:
        """The position of a stage that counts its steps, and its remaining time."""
        row, per_round, steps = self._rows[stage], self._steps_per_round, self._steps[stage]
        step = int(row.values["step"])
        left = self._seconds_left(stage) if row.state is StageState.RUNNING else None
        facts = [
            f"round {(step - 1) // per_round + 1}/{-(-steps // per_round)}" if stage == "train" else "",
            f"{_UNITS.get(stage, 'step')} {step}/{steps}",
            f"{_clock(left)} left" if left else "",
            row.phase,
        ]
        return "  ".join(fact for fact in facts if fact)

    def _numbers(self, stage: str) -> str:
        """The metrics of the last step that are shown."""
        values, formats = self._rows[stage].values, _FORMATS.get(stage, {})
        return "  ".join(text.format(values[name]) for name, text in formats.items() if name in values)

    def _seconds_left(self, stage: str) -> float | None:
        row = self._rows[stage]
        if row.first_step is None:
            return None
        first, start = row.first_step
        step = int(row.values["step"])
        return (
            (time.perf_counter() - start) / (step - first) * (self._steps[stage] - step)
            if step > first
            else None
        )

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        title = Text(f"{self._title}  {_clock(time.perf_counter() - self._start)}", style="bold")
        below: list[RenderableType] = []
        for name, row in self._rows.items():
            running = row.state is StageState.RUNNING
            seconds = time.perf_counter() - row.start if running else row.seconds
            mark = Spinner("dots", style="yellow") if running else _MARKS[row.state]
            text = self._position(name) if row.values else row.phase
            if row.state is StageState.CACHED:
                text = "nothing changed"
            took = _clock(seconds) if seconds else ""
            table.add_row(mark, name, took, text, style="" if running else "dim")
            if row.state in (StageState.RUNNING, StageState.FAILED) and (numbers := self._numbers(name)):
                below.append(Text(numbers))
            if running and name in self._steps:
                done = row.values.get("step", 0)  # the bar comes last: it does not end its line
                below.append(ProgressBar(total=self._steps[name], completed=done, width=60))
        return Group(title, table, *below)


def _clock(seconds: float) -> str:
    """`4.2s`, `1:05`, `2:03:04`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"
