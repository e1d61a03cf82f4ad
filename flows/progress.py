"""The live display of a run: stages with their states and seconds, and where training stands.

Fed by calls from the flow and by `train/metrics.jsonl`; holds no state but its own. Without a terminal
it prints one plain line per event.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text


class StageState(StrEnum):
    """Where a stage stands."""

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


_SHOWN = {
    "loss": "loss {:.3f}",
    "horizon": "horizon {:.0f}",
    "success": "success {:.2f}",
    "tokens_per_s": "{:,.0f} tokens/s",
}
"""What is shown of a step, where it is there."""


@dataclass(slots=True)
class _Row:
    state: StageState = StageState.WAITING
    started: float = 0.0
    seconds: float = 0.0
    values: Mapping[str, float] = field(default_factory=dict)
    """Of the last step."""
    first_step: tuple[int, float] | None = None
    """The first step that was seen, and when: a resumed run begins anywhere."""


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
        """`steps`: by stage, all that a stage which counts them will take."""
        self._title = title
        self._rows = {stage: _Row() for stage in stages}
        self._steps = steps
        self._steps_per_round = steps_per_round
        self._console = console or Console()
        self._started = time.perf_counter()
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
        self._plain = not self._console.is_terminal

    def __enter__(self) -> Self:
        if not self._plain:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_stopped = error is not None and not isinstance(error, Exception)
        for stage, row in self._rows.items():
            if row.state is StageState.RUNNING:
                self.stage(stage, StageState.STOPPED if is_stopped else StageState.FAILED)
        if not self._plain:
            self._live.stop()

    def stage(self, name: str, state: StageState) -> None:
        """Stage `name` has come to `state`."""
        row = self._rows[name]
        now = time.perf_counter()
        if state is StageState.RUNNING:
            row.started = now
        elif state is not StageState.CACHED and row.started:
            row.seconds = now - row.started
        row.state = state
        if self._plain and state is not StageState.WAITING:
            has_ended = state in (StageState.DONE, StageState.FAILED, StageState.STOPPED)
            took = f" in {_clock(row.seconds)}" if has_ended else ""
            self.note(f"{name}: {state}{took}")

    def step(self, stage: str, values: Mapping[str, float]) -> None:
        """A step of `stage` has ended; `values` are its numbers, `step` (from 1) among them."""
        row = self._rows[stage]
        if row.first_step is None:
            row.first_step = (int(values["step"]), time.perf_counter())
        row.values = values
        if self._plain:
            self.note(f"{stage}: {self._describe_step(stage)}")

    def note(self, text: str) -> None:
        """A line that stays on the screen."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _describe_step(self, stage: str) -> str:
        values, per_round, steps = self._rows[stage].values, self._steps_per_round, self._steps[stage]
        step = int(values["step"])
        left = self._seconds_left(stage)
        facts = [
            f"round {(step - 1) // per_round + 1}/{-(-steps // per_round)}" if stage == "train" else "",
            f"step {step}/{steps}",
            *(spelled.format(values[name]) for name, spelled in _SHOWN.items() if name in values),
            f"{_clock(left)} left" if left is not None else "",
        ]
        return "  ".join(fact for fact in facts if fact)

    def _seconds_left(self, stage: str) -> float | None:
        row = self._rows[stage]
        if row.first_step is None:
            return None
        first, at = row.first_step
        step = int(row.values["step"])
        return (
            (time.perf_counter() - at) / (step - first) * (self._steps[stage] - step)
            if step > first
            else None
        )

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        title = Text(f"{self._title}  {_clock(time.perf_counter() - self._started)}", style="bold")
        bar: RenderableType = ""
        for name, row in self._rows.items():
            running = row.state is StageState.RUNNING
            seconds = time.perf_counter() - row.started if running else row.seconds
            mark = Spinner("dots", style="yellow") if running else _MARKS[row.state]
            told = self._describe_step(name) if row.values else ""
            if row.state is StageState.CACHED:
                told = "nothing changed"
            took = _clock(seconds) if seconds else ""
            table.add_row(mark, name, took, told, style="" if running else "dim")
            if running and name in self._steps:
                bar = ProgressBar(total=self._steps[name], completed=row.values.get("step", 0), width=60)
        return Group(title, table, bar)


def _clock(seconds: float) -> str:
    """`4.2s`, `1:05`, `2:03:04`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"
