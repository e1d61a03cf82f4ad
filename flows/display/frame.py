"""What a terminal shows of a run at one moment, as lines that fit into it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.text import Text

from flows.display.forecast import HorizonAt, seconds_left
from flows.display.plots import draw_rate, draw_sparkline
from flows.display.state import StageState, StageView
from flows.display.tables import mask_controls
from tasks.rollout.current_episode import EpisodeView

FORMATS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "warmup": {"loss": ("loss", "{:.3f}")},
    # Not the loss: GRPO's advantages sum to 0 in a group, so it always stays near 0.
    "train": {
        "horizon": ("horizon", "{:.0f}"),
        "success": ("success", "{:.2f}"),
        "reward": ("reward", "{:.2f}"),
        "informative_groups": ("informative groups", "{:.0%}"),
        "entropy": ("entropy", "{:.2f}"),
        "kl": ("kl", "{:z.4f}"),
        "imitation_loss": ("loss", "{:.3f}"),
        "preference_loss": ("loss", "{:.3f}"),
        "preference_accuracy": ("pairs in order", "{:.0%}"),
        "tokens_per_s": ("tokens/s", "{:,.0f}"),
    },
}
"""The metrics of steps that are shown, by stage: what they are called, and their format."""
UNITS = {"evaluate": "episode"}
"""What a stage counts, if not steps."""

_MARKS = {
    StageState.WAITING: ("·", "dim"),
    StageState.RUNNING: ("▸", "bold yellow"),
    StageState.DONE: ("✓", "green"),
    StageState.CACHED: ("=", "cyan"),
    StageState.FAILED: ("✗", "red"),
    StageState.STOPPED: ("■", "yellow"),
}
_PLAYS = ("train", "evaluate")
"""Stages that play episodes with the policy that is trained."""
_PLOTTED = "success"
_MIN_BARS, _MAX_BARS = 3, 8
"""Lines of the curve."""
_CELL, _NAME, _VALUE = 38, 18, 7
"""Least columns of a metric with its sparkline; columns of its name, and of its value."""


@dataclass(slots=True, kw_only=True)
class RunView:
    """What is known of a run."""

    title: str
    start: float
    stages: Mapping[str, StageView]
    steps_per_round: int
    horizon_at: HorizonAt | None = None
    """The turns of an episode at a training step from 1, where that is known in advance."""
    episode: EpisodeView | None = None
    """The one that is played now."""


@dataclass(slots=True)
class Frames:
    """Draws a run again and again: what changes with the steps alone is drawn once a step."""

    view: RunView
    _cache_key: tuple[object, ...] = ()
    _cached: list[Text] = field(default_factory=list)

    def draw(self, *, width: int, height: int, now: float) -> list[Text]:
        """At most `height` lines of at most `width` columns."""
        view = self.view
        title = Text(view.title, style="bold")
        clock = format_clock(now - view.start)
        title.truncate(max(1, width - len(clock) - 2), overflow="ellipsis", pad=True)
        title.append(f"  {clock}")
        lines = [title, *_stage_lines(view, now=now)]
        if len(lines) > height:  # the stages that are under way matter most
            is_shown = (StageState.RUNNING, StageState.FAILED, StageState.STOPPED)
            rows = zip(lines[1:], view.stages.values(), strict=True)
            lines = [title, *(line for line, stage in rows if stage.state in is_shown)]
        episode = []
        if view.episode is not None and any(
            stage.state is StageState.RUNNING and name in _PLAYS for name, stage in view.stages.items()
        ):
            episode = [Text(), *draw_episode(view.episode, width=width)]
        room = height - len(lines)
        if len(episode) > room or room - len(episode) < 3 + _MIN_BARS <= room:
            episode = []  # the curve comes first
        lines += [*self._draw_steps(width=width, height=room - len(episode)), *episode]
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return lines[:height]

    def _draw_steps(self, *, width: int, height: int) -> list[Text]:
        """The curve and the metrics of the stage that runs, or else of the training that has ended."""
        stages = self.view.stages
        name = next((name for name, stage in stages.items() if stage.state in _UNDER_WAY), "train")
        stage = stages.get(name)
        # Of a finished training the curve stays, beside the progress of the stage that runs.
        trained = stages.get("train")
        key = (name, width, height, *(x and (len(x.steps), x.done, x.total) for x in (stage, trained)))
        if key != self._cache_key:
            lines: list[Text] = []
            if stage is not None and stage.total and stage.state in _UNDER_WAY and not _rates(stage):
                lines += [Text(), _bar(stage.done / stage.total, width=min(width, 60))]
            if stage is not None and (cells := _metric_lines(name, stage, width=width)):
                lines += [Text(), *cells]
            if trained is not None and _rates(trained):
                bars = min(_MAX_BARS, height - len(lines) - 3)
                if bars < _MIN_BARS:  # the curve says more than the numbers
                    lines, bars = [], min(_MAX_BARS, height - 3)
                if bars >= _MIN_BARS:
                    lines = [Text(), *_curve(self.view, trained, width=width, bars=bars), *lines]
            self._cache_key, self._cached = key, lines[: max(0, height)]
        return self._cached


_UNDER_WAY = (StageState.RUNNING, StageState.FAILED, StageState.STOPPED)


def describe_position(view: RunView, name: str, *, now: float, is_short: bool = False) -> str:
    """Where a stage that counts its steps is, and what time is left; `is_short`: the most important first."""
    stage = view.stages[name]
    is_running = stage.state is StageState.RUNNING
    left = seconds_left(stage, now=now, horizon_at=view.horizon_at) if is_running else None
    per_round = view.steps_per_round
    round_ = f"round {(stage.done - 1) // per_round + 1}/{-(-stage.total // per_round)}"
    facts = [
        round_ if name == "train" and not is_short else "",
        f"{UNITS.get(name, 'step')} {stage.done}/{stage.total}",
        f"{format_clock(left)} left" if left is not None else "",
        round_ if name == "train" and is_short else "",
        stage.phase,
    ]
    return "  ".join(filter(None, facts))


def describe_metrics(name: str, stage: StageView) -> str:
    """The metrics of the last step that are shown."""
    values = stage.steps[-1] if stage.steps else {}
    return "  ".join(
        f"{text.format(values[key])} {label}"
        if label == "tokens/s"
        else f"{label} {text.format(values[key])}"
        for key, (label, text) in FORMATS.get(name, {}).items()
        if key in values
    )


def format_clock(seconds: float) -> str:
    """`4.2s`, `1:05`, `2:03:04`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest}s"


def _stage_lines(view: RunView, *, now: float) -> list[Text]:
    took = {
        name: format_clock(now - stage.start)
        if stage.state is StageState.RUNNING and stage.start is not None
        else format_clock(stage.seconds)
        if stage.seconds
        else ""
        for name, stage in view.stages.items()
    }
    name_width, took_width = max(map(len, took)), max(map(len, took.values()))
    lines = []
    for name, stage in view.stages.items():
        position = describe_position(view, name, now=now, is_short=True) if stage.steps else stage.phase
        if stage.state is StageState.CACHED:
            position = "nothing changed"
        rest = "" if stage.state is StageState.RUNNING else "dim"
        text = f" {name:<{name_width}}  {took[name]:>{took_width}}  {position}"
        lines.append(Text.assemble(_MARKS[stage.state], (text, rest)))
    return lines


def _bar(share: float, *, width: int) -> Text:
    done = round(share * width)
    return Text.assemble(("━" * done, "yellow"), ("─" * (width - done), "dim"))


def _rates(stage: StageView) -> Mapping[int, float]:
    return {int(step["step"]): step[_PLOTTED] for step in stage.steps if _PLOTTED in step}


def _curve(view: RunView, stage: StageView, *, width: int, bars: int) -> list[Text]:
    rates = _rates(stage)
    known = {int(step["step"]): step.get("horizon") for step in stage.steps}

    def horizon(step: int) -> float | None:
        if step in known:
            return known[step]
        return None if view.horizon_at is None else view.horizon_at(step)

    heading = Text.assemble(
        ("success ", "bold"), f"{rates[max(rates)]:.2f}", ("  in training, by step", "dim")
    )
    return [heading, *draw_rate(rates, horizons=horizon, steps=stage.total, width=width, height=bars)]


def _metric_lines(name: str, stage: StageView, *, width: int) -> list[Text]:
    """Metrics with their courses, as many beside each other as there is room for."""
    across = max(1, width // _CELL)
    room = max(4, width // across - _NAME - _VALUE - 4)
    cells: list[Text] = []
    for key, (label, text) in FORMATS.get(name, {}).items():
        values = [step[key] for step in stage.steps if key in step]
        is_elsewhere = key in (_PLOTTED, "horizon") or (key == "reward" and _is_success(stage.steps))
        if not values or is_elsewhere:
            continue
        spark = draw_sparkline(values, width=room)
        number = f"{text.format(values[-1]):>{_VALUE}}"
        cells.append(Text.assemble(f"{label:<{_NAME}} ", (f"{spark:<{room}}", "cyan"), f" {number} "))
    return [Text(" ").join(cells[first : first + across]) for first in range(0, len(cells), across)]


def _is_success(steps: Sequence[Mapping[str, float]]) -> bool:
    """Whether the reward is that of success, which the curve shows."""
    return all(step.get("reward") == step.get(_PLOTTED) for step in steps)


def _one_line(text: str) -> str:
    """`text` as `mask_controls` leaves it, on one line."""
    return " ".join(mask_controls(text).split())


def draw_episode(episode: EpisodeView, *, width: int) -> list[Text]:
    """Four lines: which episode it is, its task, the last action and the last observation."""
    lines = [
        Text.assemble(
            ("now  ", "bold"),
            f"{_one_line(episode.item)}  sample {episode.sample + 1}  "
            f"turn {episode.turn} of {episode.max_turns}",
        ),
        Text(f"     {_one_line(episode.task)}", style="magenta"),
        Text(f"   > {_one_line(episode.action)}", style="bold red" if episode.is_malformed else "bold"),
        Text(f"     {_one_line(episode.observation)}", style="green"),
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines
