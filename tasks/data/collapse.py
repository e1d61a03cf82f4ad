"""Signs of a collapse in the recorded metrics of training steps; pure functions of `train/metrics.jsonl`.

A monitor compares the median of a metric over the last `train.watch.window` steps with a limit, so that fewer
than half of the steps in a window never raise an alert. A rise or a fall is counted from the best earlier
window that has no step in common with the last one. A step that lacks a metric is left out of its median; a
window with less than half of its values says nothing.

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
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tasks.config.watch import WatchSettings

ALERTS = "alerts.jsonl"
"""The file below `train/` with one `Alert` a line."""
CONVERGED = 0.95
"""Success from which a certain policy and equal rewards are what was wanted."""

Step = Mapping[str, float]
Metric = Callable[[Step], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A monitor whose limit is passed at a step."""

    monitor: str
    step: int
    value: float
    limit: float
    text: str
    """One line: the value, the limit and its setting."""


def new_alerts(steps: Sequence[Step], limits: WatchSettings) -> list[Alert]:
    """Alerts of the last of `steps` that the step before it does not have: what lasts is one alert."""
    earlier = {alert.monitor for alert in alerts_at_end(steps[:-1], limits)}
    return [alert for alert in alerts_at_end(steps, limits) if alert.monitor not in earlier]


def alerts_at_end(steps: Sequence[Step], limits: WatchSettings) -> list[Alert]:
    """Alerts of the last of `steps`, which are all steps so far, in order."""
    if len(steps) < limits.window:
        return []
    history = _History(steps, limits.window)
    alerts = []
    for monitor in _MONITORS:
        limit, value = getattr(limits, monitor.setting), monitor.measure(history)
        if limit is None or value is None:
            continue
        if value < limit if monitor.setting.startswith("min_") else value > limit:
            rule = f"train.watch.{monitor.setting} is {limit:g}"
            text = f"{monitor.words} {value:.3g} (median of {limits.window} steps; {rule})"
            step = int(steps[-1]["step"])
            alerts.append(Alert(monitor=monitor.name, step=step, value=value, limit=limit, text=text))
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
        success = self.now(_key("success"))
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

    def _parts(self) -> Iterator[Sequence[Step]]:
        ends = range(self._window, len(self._earlier) + 1)
        return (self._earlier[end - self._window : end] for end in ends)


@dataclass(frozen=True, slots=True)
class _Monitor:
    name: str
    setting: str
    """The field of `WatchSettings`; a `min_…` is a lower limit."""
    measure: Callable[[_History], float | None]
    words: str
    """Before the value."""


def _median(steps: Sequence[Step], metric: Metric) -> float | None:
    values = [value for step in steps if (value := metric(step)) is not None]
    return median(values) if 2 * len(values) >= len(steps) else None


def _key(name: str) -> Metric:
    return lambda step: step.get(name)


def _kl(step: Step) -> float | None:
    return abs(step["kl"]) if "kl" in step else None


def _parse_failures(step: Step) -> float | None:
    turns = step.get("turns")
    return step["parse_failures"] / turns if turns and "parse_failures" in step else None


def _failures(step: Step) -> float | None:
    num_dropped = step.get("dropped", 0)
    episodes = step.get("episodes", 0) + num_dropped
    return num_dropped / episodes if episodes else None


_MONITORS = (
    _Monitor(
        "low_entropy",
        "min_entropy",
        lambda history: history.while_learning(_key("entropy")),
        "the entropy (nats per token) is",
    ),
    _Monitor(
        "high_entropy",
        "max_entropy_rise",
        lambda history: history.rise(_key("entropy")),
        "the entropy (nats per token) rose by",
    ),
    _Monitor(
        "parse_failures",
        "max_parse_failure_rise",
        lambda history: history.rise(_parse_failures),
        "the share of turns that cannot be parsed rose by",
    ),
    _Monitor(
        "repetition",
        "max_repetition_rise",
        lambda history: history.rise(_key("repetition")),
        "repetition in completions rose by",
    ),
    _Monitor("kl", "max_kl", lambda history: history.now(_kl), "the KL to the policy that sampled is"),
    _Monitor(
        "kl_reference",
        "max_kl_reference",
        lambda history: history.now(_key("kl_reference")),
        "the KL to the reference is",
    ),
    _Monitor(
        "informative_groups",
        "min_informative_groups",
        lambda history: history.while_learning(_key("informative_groups")),
        "the share of informative groups is",
    ),
    _Monitor(
        "reward_gap",
        "max_success_fall",
        lambda history: history.fall_without(_key("success"), _key("reward")),
        "the reward did not fall, and success fell by",
    ),
    _Monitor(
        "failures", "max_failures", lambda history: history.now(_failures), "the share of failed episodes is"
    ),
)
