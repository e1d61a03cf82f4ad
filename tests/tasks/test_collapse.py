"""Signs of a collapse: monitors on series made by hand and on recorded runs, and a session that stops."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from agents.types import Completion, FinishReason
from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.config.watch import WatchSettings
from tasks.data.collapse import ALERTS, Alert, alerts_at_end, new_alerts
from tasks.data.items import write_items
from tasks.data.trajectories import NGRAM, repetition, summarise
from tasks.errors import Collapsed
from tasks.runs.progress import Progress
from tasks.runs.rounds import TrainedRound
from tasks.stages.train import TrainSession
from tests.support.report_toy import ITEMS, make_trajectory
from tests.support.scripted_process import ScriptedProcess
from tests.support.verl_toy import toy_items, toy_pipeline

RECORDED_RUNS = json.loads((Path(__file__).parent / "watched_runs.json").read_text())
"""Metrics of training steps: `textcraft-cpu`, as it learns; and a run on sums that collapses at step 9."""
HEALTHY = {
    "entropy": 0.5, "success": 0.5, "reward": 0.5, "turns": 4.0, "parse_failures": 0.4, "repetition": 0.1,
    "kl": 0.001, "kl_reference": 0.5, "informative_groups": 0.4, "episodes": 16, "dropped": 0,
}  # fmt: skip
LIMITS = WatchSettings(window=3, max_kl_reference=1.0)


def series(*values: dict[str, float]) -> list[dict[str, float]]:
    """Six healthy steps, and then those that have `values`."""
    return [{"step": n, **HEALTHY, **more} for n, more in enumerate([{}] * 6 + list(values), start=1)]


SIGNS: dict[str, tuple[dict[str, float], float]] = {
    "low_entropy": ({"entropy": 0.004}, 0.004),
    "high_entropy": ({"entropy": 1.5}, 1.0),
    "parse_failures": ({"parse_failures": 2.0}, 0.4),  # from .1 of the turns to .5
    "repetition": ({"repetition": 0.6}, 0.5),
    "kl": ({"kl": -0.3}, 0.3),
    "kl_reference": ({"kl_reference": 2.0}, 2.0),
    "informative_groups": ({"informative_groups": 0.0}, 0.0),
    "reward_gap": ({"success": 0.1, "reward": 0.9}, 0.4),
    "failures": ({"dropped": 48}, 0.75),
}


@pytest.mark.parametrize("monitor", SIGNS)
def test_two_of_three_steps_raise_one_alert_and_one_step_raises_none(monitor: str) -> None:
    sign, value = SIGNS[monitor]
    for harmless in ([sign], [sign, {}, sign, {}][:2], [{}, sign, {}, {}]):
        assert alerts_at_end(series(*harmless), LIMITS) == []
    steps = series(sign, {}, sign)
    (alert,) = new_alerts(steps, LIMITS)
    assert (alert.monitor, alert.step) == (monitor, 9)
    assert alert.value == pytest.approx(value)
    assert "\n" not in alert.text
    assert f"{alert.limit:g}" in alert.text
    assert "train.watch." in alert.text
    lasting = series(sign, {}, sign, sign)
    assert [any_alert.monitor for any_alert in alerts_at_end(lasting, LIMITS)] == [monitor]
    assert new_alerts(lasting, LIMITS) == []


@pytest.mark.parametrize("monitor", SIGNS)
def test_a_monitor_is_switched_off_by_null(monitor: str) -> None:
    sign, _ = SIGNS[monitor]
    (alert,) = alerts_at_end(series(sign, sign, sign), LIMITS)
    setting = alert.text.partition("train.watch.")[2].split()[0]
    assert alerts_at_end(series(sign, sign, sign), LIMITS.model_copy(update={setting: None})) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("metric", ["entropy", "success", "reward", "parse_failures", "repetition", "kl"])
def test_a_value_that_no_limit_can_be_compared_with_is_an_alert(metric: str, value: float) -> None:
    steps = series({metric: value}, {})
    (alert,) = new_alerts(steps[:7], LIMITS)
    assert (alert.monitor, alert.step) == ("not_finite", 7)
    assert metric in alert.text
    assert not any(other in alert.text for other in HEALTHY if other != metric and other not in metric)
    assert new_alerts(steps, LIMITS) == []  # it lasts
    assert alerts_at_end([*steps, *series({}, {})[6:]], LIMITS) == []  # 3 steps later, it is over
    read_back = Alert(**json.loads(json.dumps(asdict(alert), allow_nan=False)))
    assert read_back == alert


def test_medians_are_of_finite_values() -> None:
    """Else a NaN would hide what the other steps show: `sorted` leaves it anywhere."""
    signs = [{"kl": 0.5}, {"kl": math.nan}, {"kl": 0.3}]
    found = {alert.monitor: alert.value for alert in alerts_at_end(series(*signs), LIMITS)}
    assert found == {"kl": pytest.approx(0.4), "not_finite": 1.0}


def test_a_metric_without_a_limit_may_be_infinite() -> None:
    sign = {"kl_reference": math.inf, "lr": math.nan}
    (alert,) = alerts_at_end(series(sign), LIMITS)
    assert "kl_reference" in alert.text
    assert alerts_at_end(series(sign), LIMITS.model_copy(update={"max_kl_reference": None})) == []


def test_what_recovers_and_returns_is_a_new_alert() -> None:
    sign = {"kl": 0.5}
    steps = series(sign, sign, {}, {}, sign, sign)
    assert [n for n in range(1, len(steps) + 1) if new_alerts(steps[:n], LIMITS)] == [8, 12]


def test_success_that_falls_with_the_reward_is_no_gap() -> None:
    low_step = {"success": 0.1, "reward": 0.1}
    assert alerts_at_end(series(low_step, low_step, low_step), LIMITS) == []


def test_a_policy_that_solves_everything_may_be_certain() -> None:
    done = {"success": 1.0, "reward": 1.0, "entropy": 0.0, "informative_groups": 0.0}
    assert alerts_at_end(series(done, done, done), LIMITS) == []


def test_metrics_that_are_missing_say_nothing() -> None:
    assert alerts_at_end([{"step": n} for n in range(1, 9)], LIMITS) == []
    # A step without an update has no KL: two of three values are enough, one is not.
    steps_without_kl = [{k: v for k, v in step.items() if k != "kl"} for step in series({}, {}, {})]
    assert alerts_at_end([*steps_without_kl[:-1], {**steps_without_kl[-1], "kl": 9.0}], LIMITS) == []
    assert (
        len(
            alerts_at_end(
                [*steps_without_kl[:-2], *({**step, "kl": 9.0} for step in steps_without_kl[-2:])], LIMITS
            )
        )
        == 1
    )


def test_a_run_that_learns_raises_no_alert() -> None:
    """With entropy falling from .94 to .03 nats, and informative groups from .44 to .12."""
    steps, limits = RECORDED_RUNS["textcraft-cpu"], load_pipeline("textcraft-cpu").train.watch
    assert len(steps) == 51
    assert [alerts_at_end(steps[:n], limits) for n in range(1, 52)] == [[]] * 51


def test_a_run_that_collapsed_is_noticed_within_a_window() -> None:
    """At step 9 of this run, success fell from .5 to .06, and half of the turns could not be parsed."""
    steps = RECORDED_RUNS["sums"]
    alerts = list(chain.from_iterable(new_alerts(steps[:n], WatchSettings()) for n in range(1, 21)))
    assert [(alert.monitor, alert.step) for alert in alerts][:1] == [("parse_failures", 11)]
    assert "high_entropy" in {alert.monitor for alert in alerts}


# --- the metrics


def completion(tokens: Sequence[int]) -> Completion:
    return Completion(
        token_ids=tuple(tokens),
        logprobs=(-0.1,) * len(tokens),
        finish_reason=FinishReason.STOP,
        policy_version=0,
    )


def test_repetition_is_counted_within_each_completion() -> None:
    loop, long, short = [1, 2, 3, 4] * 4, [*range(20)], [7, 7, 7]
    episode = make_trajectory(ITEMS[0], success=True, turns=4)
    turns = [
        replace(turn, completion=completion(tokens))
        for turn, tokens in zip(episode.turns, (loop, long, long, short), strict=True)
    ]
    ngrams = num_repeated = 0
    for tokens in (loop, long, long):
        counts = Counter(tuple(tokens[i : i + NGRAM]) for i in range(len(tokens) - NGRAM + 1))
        ngrams += counts.total()
        num_repeated += counts.total() - len(counts)
    assert (ngrams, num_repeated) == (13 + 17 + 17, 9)
    trajectory = replace(episode, turns=tuple(turns))
    assert repetition([trajectory]) == pytest.approx(num_repeated / ngrams)
    assert repetition([replace(episode, turns=(turns[3],))]) is None
    assert repetition([]) is None


def test_a_summary_has_repetition_and_the_gap() -> None:
    episodes = [
        make_trajectory(ITEMS[0], success=True),
        replace(make_trajectory(ITEMS[0], success=False), reward=0.5),
    ]
    summary = summarise(episodes)
    assert summary["reward_gap"] == pytest.approx(0.75 - 0.5)
    assert "repetition" not in summary  # of three tokens


# --- the settings


@pytest.mark.parametrize(
    ("watch", "phrase"),
    [
        (
            {"on_collapse": "undo"},
            "train.watch.on_collapse: Input should be 'warn', 'stop' or 'rewind', but it is 'undo'",
        ),
        ({"max_entropy": 1.0}, "train.watch.max_entropy: unknown key"),
        ({"max_kl_reference": 1.0}, "train.watch: max_kl_reference limits what train.kl measures"),
        ({"window": 0}, "train.watch.window"),
    ],
)
def test_mistakes_are_named(watch: dict[str, Any], phrase: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_pipeline("textcraft-cpu", overrides={"train.watch": watch})
    assert phrase in str(refusal.value)


def test_without_groups_that_are_compared_none_is_expected_to_be_informative() -> None:
    overrides = {"train.algorithm": {"name": "reinforce_plus_plus"}}
    pipeline = load_pipeline("textcraft-cpu", overrides=overrides)
    assert pipeline.train.watch.min_informative_groups is None
    assert Pipeline.model_validate(pipeline.model_dump(mode="json")) == pipeline
    with pytest.raises(ConfigError, match="min_informative_groups: reinforce_plus_plus compares no groups"):
        load_pipeline("textcraft-cpu", overrides=overrides | {"train.watch.min_informative_groups": 0.1})


# --- the session


class ScriptedSession:
    """A session whose training process has these steps."""

    def __init__(self, workspace: Path, steps: Sequence[dict[str, float]], **watch: Any) -> None:
        self.alerts: list[Alert] = []
        self.process = ScriptedProcess(lambda step: steps[step - 1] | {"step": step})
        pipeline = toy_pipeline(
            Path("m"), train__watch=watch, train__steps=20, train__steps_per_round=20, train__save_every=20
        )
        write_items(workspace / "data" / "train.jsonl", toy_items(12))
        progress = Progress(on_alert=self.alerts.append)
        self._session = TrainSession(pipeline, workspace, progress, process=self.process)

    def train(self) -> TrainedRound:
        return self._session.train_round(0)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_run_stops_in_one_line_with_everything_saved(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, RECORDED_RUNS["sums"], on_collapse="stop")
    with pytest.raises(Collapsed) as end:
        session.train()
    assert str(end.value).startswith(
        "training stopped at step 11, which is saved: the share of turns that cannot"
    )
    assert "\n" not in str(end.value)
    assert session.process.calls == ["run_step"] * 11 + ["save_step"]
    steps = lines(tmp_path / "train" / "metrics.jsonl")
    assert [step["step"] for step in steps] == list(range(1, 12))
    assert [step["alerts"] for step in steps] == [0] * 10 + [1]
    assert lines(tmp_path / "train" / ALERTS) == [
        {name: getattr(alert, name) for name in ("monitor", "step", "value", "limit", "text")}
        for alert in session.alerts
    ]


def test_a_warning_lets_the_run_go_on(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, RECORDED_RUNS["sums"])
    assert session.train().last_step == 20
    assert session.process.calls == ["run_step"] * 20
    assert [alert.monitor for alert in session.alerts][:1] == ["parse_failures"]
    assert len(lines(tmp_path / "train" / ALERTS)) == len(session.alerts)
    assert lines(tmp_path / "train" / "metrics.jsonl")[-1]["alerts"] >= 1
