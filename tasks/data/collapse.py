"""Signs of a collapse in the recorded metrics of training steps; pure functions of `train/metrics.jsonl`.

A monitor compares the median of a metric over the last `train.watch.window` steps with a limit, so that fewer
than half of the steps in a window never raise an alert, except `not_finite`. A rise or a fall is counted from
the best earlier window that has no step in common with the last one. A step without a finite value of a
metric is left out of its median; a window with less than half of its values says nothing.

| monitor | alert |
|---|---|
| `low_entropy` | `entropy` < `min_entropy`, while `success` < `CONVERGED` |
| `high_entropy` | `entropy` has risen by more than `max_entropy_rise` |
| `parse_failures` | `parse_failures` / `turns` has risen by more than `max_parse_failure_rise` |
| `repetition` | `repetition` has risen by more than `max_repetition_rise` |
| `kl` | the magnitude of `kl` > `max_kl` |
| `kl_reference` | `kl_reference` > `max_kl_reference` |
| `informative_groups` | `informative_groups` < `min_informative_groups`, while `success` < `CONVERGED` |
| `reward_gap` | `success` has fallen by more than `max_success_fall`, and `reward` has not |
| `failures` | `dropped` / (`episodes` + `dropped`) > `max_failures` |
| `not_finite` | a metric of one of these with a limit is NaN or infinite in any step of the last window |
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tasks.config.watch import WatchSettings

ALERTS = "alerts.jsonl"
"""The file below `train/` with one `Alert` a line."""
CONVERGED = 0.95
"""Success from which a certain policy and equal rewards are what was wanted."""

NOT_FINITE = "not_finite"
"""The monitor of values that cannot be compared with a limit."""

Step = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Metric:
    """What a monitor reads of each step."""

    name: str
    read: Callable[[Step], float | None]
    """None if the step lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A monitor whose limit is passed at a step."""

    monitor: str
    step: int
    value: float
    """Of `NOT_FINITE`, the steps of the last window that have such a value of one metric."""
    limit: float
    text: str
    """One line: the value, the limit and its setting; of `NOT_FINITE`, the metrics."""


def new_alerts(steps: Sequence[Step], limits: WatchSettings) -> list[Alert]:
    """Alerts of the last of `steps` that the step before it does not have: what lasts is one alert."""
    earlier = {alert.monitor for alert in alerts_at_end(steps[:-1], limits)}
    return [alert for alert in alerts_at_end(steps, limits) if alert.monitor not in earlier]


def alerts_at_end(steps: Sequence[Step], limits: WatchSettings) -> list[Alert]:
    """Alerts of the last of `steps`, which are all steps so far, in order."""
    if len(steps) < limits.window:
        return []
    history, step = _History(steps, limits.window), int(steps[-1]["step"])
    alerts = []
    watched_metrics: dict[str, Metric] = {}
    for monitor in _MONITORS:
        limit, value = getattr(limits, monitor.setting), monitor.measure(history, *monitor.metrics)
        if limit is None:
            continue
        watched_metrics |= {metric.name: metric for metric in monitor.metrics}
        if value is None:
            continue
        if value < limit if monitor.setting.startswith("min_") else value > limit:
            rule = f"train.watch.{monitor.setting} is {limit:g}"
            text = f"{monitor.words} {value:.3g} (median of {limits.window} steps; {rule})"
            alerts.append(Alert(monitor=monitor.name, step=step, value=value, limit=limit, text=text))
    counts = {
        name: count for name, metric in watched_metrics.items() if (count := history.count_not_finite(metric))
    }
    if counts:
        parts = [f"{name} in {count} of the last {limits.window} steps" for name, count in counts.items()]
        text = f"NaN or infinite: {', '.join(parts)}"
        largest = float(max(counts.values()))
        alerts.append(Alert(monitor=NOT_FINITE, step=step, value=largest, limit=0.0, text=text))
    return alerts


class _History:
    """Medians over windows of steps."""

    def __init__(self, steps: Sequence[Step], window: int) -> None:
        self._window = window
        self._last, self._earlier = steps[-window:], steps[:-window]

    def now(self, metric: Metric) -> float | None:
        """The median of the last window."""
        return _median(self._last, metric)

    def while_learning(self, metric: Metric) -> float | None:
        """Like `now`, but None where nearly all episodes succeed."""
        success = self.now(_SUCCESS)
        return None if success is not None and success >= CONVERGED else self.now(metric)

    def rise(self, metric: Metric) -> float | None:
        """How far the last window is above the lowest earlier one."""
        values = [value for part in self._parts() if (value := _median(part, metric)) is not None]
        now = self.now(metric)
        return None if now is None or not values else now - min(values)

    def fall_without(self, metric: Metric, other_metric: Metric) -> float | None:
        """How far `metric` is below its highest earlier window, if `other_metric` is not below its value
        there."""
        pairs = [
            (value, other_value)
            for part in self._parts()
            if (value := _median(part, metric)) is not None
            and (other_value := _median(part, other_metric)) is not None
        ]
        now, beside_now = self.now(metric), self.now(other_metric)
        if now is None or beside_now is None or not pairs:
            return None
        best, beside_best = max(pairs)
        return best - now if beside_now >= beside_best else None

    def count_not_finite(self, metric: Metric) -> int:
        """In how many steps of the last window the metric is NaN or infinite."""
        values = [metric.read(step) for step in self._last]
        return sum(value is not None and not math.isfinite(value) for value in values)

    def _parts(self) -> Iterator[Sequence[Step]]:
        ends = range(self._window, len(self._earlier) + 1)
        return (self._earlier[end - self._window : end] for end in ends)


@dataclass(frozen=True, slots=True)
class _Monitor:
    name: str
    setting: str
    """The field of `WatchSettings`; a `min_…` is a lower limit."""
    measure: Callable[..., float | None]
    """A method of `_History`, which takes `metrics`."""
    metrics: tuple[Metric, ...]
    words: str
    """Before the value."""


def _median(steps: Sequence[Step], metric: Metric) -> float | None:
    values = [value for step in steps if (value := metric.read(step)) is not None and math.isfinite(value)]
    return median(values) if 2 * len(values) >= len(steps) else None


def _recorded(name: str) -> Metric:
    return Metric(name, lambda step: step.get(name))


def _read_kl(step: Step) -> float | None:
    return abs(step["kl"]) if "kl" in step else None


def _read_parse_failures(step: Step) -> float | None:
    turns = step.get("turns")
    return step["parse_failures"] / turns if turns and "parse_failures" in step else None


def _read_failures(step: Step) -> float | None:
    num_dropped = step.get("dropped", 0)
    episodes = step.get("episodes", 0) + num_dropped
    return num_dropped / episodes if episodes else None


_ENTROPY, _SUCCESS, _REWARD = (_recorded(name) for name in ("entropy", "success", "reward"))
_MONITORS = (
    _Monitor(
        "low_entropy", "min_entropy", _History.while_learning, (_ENTROPY,), "the entropy (nats per token) is"
    ),
    _Monitor(
        "high_entropy", "max_entropy_rise", _History.rise, (_ENTROPY,), "the entropy (nats per token) rose by"
    ),
    _Monitor(
        "parse_failures",
        "max_parse_failure_rise",
        _History.rise,
        (Metric("parse_failures", _read_parse_failures),),
        "the share of turns that cannot be parsed rose by",
    ),
    _Monitor(
        "repetition",
        "max_repetition_rise",
        _History.rise,
        (_recorded("repetition"),),
        "repetition in completions rose by",
    ),
    _Monitor("kl", "max_kl", _History.now, (Metric("kl", _read_kl),), "the KL to the policy that sampled is"),
    _Monitor(
        "kl_reference",
        "max_kl_reference",
        _History.now,
        (_recorded("kl_reference"),),
        "the KL to the reference is",
    ),
    _Monitor(
        "informative_groups",
        "min_informative_groups",
        _History.while_learning,
        (_recorded("informative_groups"),),
        "the share of informative groups is",
    ),
    _Monitor(
        "reward_gap",
        "max_success_fall",
        _History.fall_without,
        (_SUCCESS, _REWARD),
        "the reward did not fall, and success fell by",
    ),
    _Monitor(
        "failures",
        "max_failures",
        _History.now,
        (Metric("failures", _read_failures),),
        "the share of failed episodes is",
    ),
)
