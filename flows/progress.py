"""The live display of a run: stages with their states and seconds, and where training stands.

Fed by calls from the flow and by `train/metrics.jsonl`; holds no state but its own. Without a terminal
it prints one plain line per event.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

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


_MARKS = {
    StageState.WAITING: Text("·", style="dim"),
    StageState.DONE: Text("✓", style="green"),
    StageState.CACHED: Text("=", style="cyan"),
    StageState.FAILED: Text("✗", style="red"),
}


@dataclass(slots=True)
class _Row:
    state: StageState = StageState.WAITING
    started: float = 0.0
    seconds: float = 0.0


class Display:
    """Shows one run while it is open as a context."""

    def __init__(
        self,
        title: str,
        *,
        stages: Sequence[str],
        steps: int,
        steps_per_round: int,
        console: Console | None = None,
    ) -> None:
        """`steps`: all that training will take."""
        self._title = title
        self._rows = {stage: _Row() for stage in stages}
        self._steps = steps
        self._steps_per_round = steps_per_round
        self._console = console or Console()
        self._started = time.perf_counter()
        self._training: dict[str, Any] = {}
        self._first_step: tuple[int, float] | None = None
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4)
        self._plain = not self._console.is_terminal

    def __enter__(self) -> Self:
        if not self._plain:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stage, row in self._rows.items():
            if row.state is StageState.RUNNING:
                self.stage(stage, StageState.FAILED)
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
            took = f" in {_clock(row.seconds)}" if state in (StageState.DONE, StageState.FAILED) else ""
            self.note(f"{name}: {state}{took}")

    def step(self, values: dict[str, Any]) -> None:
        """A training step has ended; `values` is its line of `train/metrics.jsonl`."""
        step = int(values["step"])
        if self._first_step is None:
            self._first_step = (step, time.perf_counter())
        self._training = values
        if self._plain:
            self.note(f"train: {self._describe_step()}")

    def note(self, text: str) -> None:
        """A line that stays on the screen."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _describe_step(self) -> str:
        values = self._training
        step, per_round = int(values["step"]), self._steps_per_round
        facts = [
            f"round {(step - 1) // per_round + 1}/{-(-self._steps // per_round)}",
            f"step {step}/{self._steps}",
            f"horizon {values['horizon']:.0f}" if "horizon" in values else "",
            f"success {values['success']:.2f}" if "success" in values else "",
            f"{values['tokens_per_s']:,.0f} tokens/s" if "tokens_per_s" in values else "",
            f"{_clock(left)} left" if (left := self._seconds_left()) is not None else "",
        ]
        return "  ".join(fact for fact in facts if fact)

    def _seconds_left(self) -> float | None:
        if self._first_step is None:
            return None
        first, at = self._first_step
        done = int(self._training["step"]) - first
        if done < 1:
            return None
        return (time.perf_counter() - at) / done * (self._steps - first - done)

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(width=1)
        table.add_column()
        table.add_column(justify="right")
        table.add_column()
        for name, row in self._rows.items():
            running = row.state is StageState.RUNNING
            seconds = time.perf_counter() - row.started if running else row.seconds
            mark = Spinner("dots", style="yellow") if running else _MARKS[row.state]
            told = self._describe_step() if name == "train" and self._training else ""
            if row.state is StageState.CACHED:
                told = "nothing changed"
            took = _clock(seconds) if seconds else ""
            table.add_row(mark, name, took, told, style="" if running else "dim")
        parts: list[RenderableType] = [
            Text(f"{self._title}  {_clock(time.perf_counter() - self._started)}", style="bold"),
            table,
        ]
        if self._rows.get("train", _Row()).state is StageState.RUNNING:
            done = int(self._training.get("step", 0))
            parts.append(ProgressBar(total=self._steps, completed=done, width=60))
        return Group(*parts)


def _clock(seconds: float) -> str:
    """`4.2s`, `1:05`, `2:03:04`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"
