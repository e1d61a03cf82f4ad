"""A training that collapses goes back: to which checkpoint, with which draws, and what is on disk then."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agents.huggingface.files import load_tokenizer
from agents.samplers.sampler import ScriptedSampler
from envs.errors import ConfigError
from tasks.config.pipelines import load_pipeline
from tasks.data.items import write_items
from tasks.data.trajectories import read_trajectories
from tasks.errors import Collapsed
from tasks.rollout.history import History
from tasks.runs.progress import Progress
from tasks.runs.rounds import RoundResult, episode_file
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tasks.verl.rewinds import RewindPoints, most_checkpoints, read_rewinds, seed_after
from tasks.verl.rollout import RolloutManager
from tests.support.scripted_process import ScriptedProcess
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import register, toy_items, toy_pipeline, write_sample_ahead

WINDOW = 3
BAD = {"kl": 9.0}
Script = Callable[[int, int], Mapping[str, float]]
"""(step, number of rewinds) → the metrics of that step."""


class SessionKilled(BaseException):
    """What `kill -9` is to a session: nothing else of it runs."""


class ProcessOfSession(ScriptedProcess):
    """Knows the rewinds so far; with `is_killed_at_end`, it takes its session with it."""

    def __init__(self, folder: Path, script: Script) -> None:
        super().__init__(lambda step: script(step, len(read_rewinds(folder))))
        self.is_killed_at_end = False

    def end(self, *, graceful: bool) -> None:
        if self.is_killed_at_end:
            raise SessionKilled
        super().end(graceful=graceful)


class ScriptedSession:
    """A session whose training process is a function."""

    def __init__(self, workspace: Path, script: Script, *, save_every: int = 2, **watch: Any) -> None:
        self.notes: list[str] = []
        self.process = ProcessOfSession(workspace / "train", script)
        self.pipeline = toy_pipeline(
            Path("m"),
            train__watch={"on_collapse": "rewind", "window": WINDOW} | watch,
            train__steps=20,
            train__steps_per_round=10,
            train__save_every=save_every,
        )
        write_items(workspace / "data" / "train.jsonl", toy_items(12))
        write_items(workspace / "data" / "test.jsonl", toy_items(4, first=100))
        progress = Progress(on_note=self.notes.append)
        self.session = TrainSession(self.pipeline, workspace, progress, process=self.process)

    def run(self) -> list[RoundResult]:
        session = self.session
        return [session.evaluate_round(session.train_round(index)) for index in range(session.num_rounds)]


def collapse_at(*steps: int) -> Script:
    """At `steps[k]` and after it, as long as training was rewound `k` times."""
    return lambda step, rewinds: BAD if rewinds < len(steps) and step >= steps[rewinds] else {"kl": 0.0}


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_training_goes_back_to_before_the_window_and_counts_each_step_once(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, collapse_at(13))
    results = session.run()
    # Two of three steps are bad at step 14: its window is 12 to 14, and 10 the last checkpoint before it.
    other_seed = seed_after(1, seed=0)
    assert session.process.steps_with_seeds == [(s, 0) for s in range(1, 15)] + [
        (s, other_seed) for s in range(11, 21)
    ]
    assert other_seed != 0
    assert [(r.from_step, r.to_step) for r in read_rewinds(tmp_path / "train")] == [(14, 10)]
    assert session.notes == ["step 14: training goes back to step 10 (rewind 1 of 3)"]
    steps = lines(tmp_path / "train" / "metrics.jsonl")
    assert [line["step"] for line in steps] == list(range(1, 21))
    assert [line["rewinds"] for line in steps] == [0] * 10 + [1] * 10
    assert not any(line["alerts"] for line in steps)
    assert lines(tmp_path / "train" / "alerts.jsonl") == []
    assert len(list((tmp_path / "train" / "trajectories").glob("step_*.jsonl"))) == 20
    assert [(result.first_step, result.last_step) for result in results] == [(1, 10), (11, 20)]


def test_a_start_before_the_warm_up_takes_nothing_from_a_training_that_is_given_up(tmp_path: Path) -> None:
    """The warm-up's inputs have changed: `train/` is cleared between the launch and the first step."""
    ScriptedSession(tmp_path, collapse_at(13)).run()
    again = ScriptedSession(tmp_path, lambda step, rewinds: {"kl": 0.0})
    again.session.prestart()
    shutil.rmtree(tmp_path / "train")
    again.run()
    assert again.process.steps_with_seeds == [(step, 0) for step in range(1, 21)]
    steps = lines(tmp_path / "train" / "metrics.jsonl")
    assert [line["step"] for line in steps] == list(range(1, 21))


def test_rounds_that_are_undone_are_trained_and_evaluated_again(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, collapse_at(10))
    session.run()
    assert [(r.from_step, r.to_step) for r in read_rewinds(tmp_path / "train")] == [(11, 8)]
    assert [step for step, _ in session.process.steps_with_seeds] == [*range(1, 12), *range(9, 21)]
    rounds = sorted((tmp_path / "train" / "rounds").iterdir())
    assert [json.loads(file.read_text())["last_step"] for file in rounds] == [10, 20]
    other_seed = seed_after(1, seed=0)
    for index in (0, 1):
        episodes = read_trajectories(episode_file(tmp_path / "train", index))
        assert [t.item.item_id for t in episodes] == [item.item_id for item in toy_items(4, first=100)]
        assert {t.error for t in episodes} == {f"Scripted: step {10 * (index + 1)}, seed {other_seed}"}


def test_a_collapse_before_the_first_checkpoint_that_is_old_enough_begins_anew(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, collapse_at(3))
    session.run()
    assert [(r.from_step, r.to_step) for r in read_rewinds(tmp_path / "train")] == [(4, 0)]
    assert [step for step, _ in session.process.steps_with_seeds] == [*range(1, 5), *range(1, 21)]


def test_the_checkpoint_that_training_went_back_to_stays_for_the_next_time(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, collapse_at(13, 11, 17))
    session.run()
    rewinds = [(r.from_step, r.to_step) for r in read_rewinds(tmp_path / "train")]
    assert rewinds == [(14, 10), (12, 10), (18, 14)]
    seeds = [seed for step, seed in session.process.steps_with_seeds if step == 18]
    assert seeds == [seed_after(2, seed=0), seed_after(3, seed=0)]


def test_after_the_last_rewind_training_stops_as_stop_does(tmp_path: Path) -> None:
    always = lambda step, _: BAD if step >= 13 else {"kl": 0.0}  # noqa: E731
    session = ScriptedSession(tmp_path, always, max_rewinds=2)
    with pytest.raises(Collapsed, match="stopped at step 14 after rewind 2 of 2, which is saved: the KL"):
        session.run()
    assert [step for step, _ in session.process.steps_with_seeds] == [
        *range(1, 15),
        *range(11, 15),
        *range(11, 15),
    ]
    assert checkpoints.complete_steps(tmp_path / "train" / "checkpoints")[-1] == 14
    assert lines(tmp_path / "train" / "metrics.jsonl")[-1]["alerts"] == 1
    # The same command trains on.
    again = ScriptedSession(tmp_path, always, max_rewinds=2)
    again.run()
    assert again.process.steps_with_seeds == [(step, seed_after(2, seed=0)) for step in range(15, 21)]
    assert len(lines(tmp_path / "train" / "metrics.jsonl")) == 20


@pytest.mark.parametrize("save_every", [1, 2, 5])
def test_a_kill_during_a_rewind_changes_nothing(save_every: int, tmp_path: Path) -> None:
    whole = ScriptedSession(tmp_path / "whole", collapse_at(13), save_every=save_every)
    whole.run()
    first_session = ScriptedSession(tmp_path / "killed", collapse_at(13), save_every=save_every)
    first_session.process.is_killed_at_end = True
    with pytest.raises(SessionKilled):
        first_session.run()
    assert read_rewinds(tmp_path / "killed" / "train") == []
    second_session = ScriptedSession(tmp_path / "killed", collapse_at(13), save_every=save_every)
    second_session.run()
    for name in ("metrics.jsonl", "rewinds.jsonl", "alerts.jsonl"):
        texts = {(tmp_path / folder / "train" / name).read_text() for folder in ("whole", "killed")}
        assert len(texts) == 1


def test_a_kill_after_a_rewind_does_not_forget_it(tmp_path: Path) -> None:
    def script(step: int, rewinds: int) -> Mapping[str, float]:
        if step == 12 and rewinds:
            raise SessionKilled
        return collapse_at(13)(step, rewinds)

    with pytest.raises(SessionKilled):
        ScriptedSession(tmp_path, script).run()
    second_session = ScriptedSession(tmp_path, collapse_at(13))
    second_session.run()
    assert second_session.process.steps_with_seeds == [
        (step, seed_after(1, seed=0)) for step in range(11, 21)
    ]
    assert len(read_rewinds(tmp_path / "train")) == 1


def test_few_checkpoints_remain(tmp_path: Path) -> None:
    session = ScriptedSession(tmp_path, lambda *_: {"kl": 0.0}, save_every=1)
    session.run()
    assert session.process.most_checkpoints == most_checkpoints(session.pipeline.train) == 5
    assert checkpoints.complete_steps(tmp_path / "train" / "checkpoints")[-2:] == [19, 20]


@pytest.mark.parametrize("window", [1, 3, 5, 8])
@pytest.mark.parametrize("save_every", [1, 2, 5, 20])
def test_what_an_alert_costs_is_bounded(window: int, save_every: int) -> None:
    on_disk: list[int] = []
    for step in range(1, 100):
        before = RewindPoints(window=window, safe_steps=on_disk, rewinds=())
        if step % save_every == 0:
            steps_to_keep = before.steps_to_keep(step)
            on_disk = [s for s in on_disk[:-1] if s in steps_to_keep] + on_disk[-1:] + [step]
        target = RewindPoints(window=window, safe_steps=on_disk, rewinds=()).target(step)
        assert before.target(step) <= target
        assert target == 0 or target <= step - window
        assert step - target <= 2 * window + 2 * save_every
        assert len(on_disk) <= 4


def points(safe_steps: Sequence[int]) -> RewindPoints:
    return RewindPoints(window=5, safe_steps=safe_steps, rewinds=())


def test_targets_by_hand() -> None:
    assert points([5, 10, 15]).target(20) == 15
    assert points([5, 10, 15]).target(19) == 10
    assert points([5, 10, 15]).steps_to_keep(19) == {10, 15}
    assert points([5, 10, 15]).steps_to_keep(20) == {15}
    assert points([5]).target(9) == 0
    assert points([5]).steps_to_keep(9) == {5}


def test_a_checkpoint_with_an_alert_at_its_step_is_not_safe(tmp_path: Path) -> None:
    alerts = {1: 0, 2: 0, 3: 0, 4: 1, 5: 0, 6: 0}
    metrics = "".join(json.dumps({"step": step, "alerts": count}) + "\n" for step, count in alerts.items())
    for step in (2, 4, 6):
        (tmp_path / "checkpoints" / f"global_step_{step}").mkdir(parents=True)
        checkpoints.mark_complete(tmp_path / "checkpoints", step=step, steps_to_keep={2})
    (tmp_path / "metrics.jsonl").write_text(metrics + '{"step": 7, "ale')
    assert RewindPoints.read(tmp_path, window=5).safe_steps == [2, 6]


def test_seeds_of_rewinds_are_apart_and_in_range() -> None:
    seeds = [seed_after(n, seed=2**31 - 1) for n in range(100)]
    assert len({seed + step for seed in seeds for step in range(1000)}) == 100_000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_after(0, seed=7) == 7


@pytest.mark.parametrize(("rewinds", "is_taken"), [(0, True), (1, False)])
def test_episodes_that_were_sampled_ahead_are_not_taken_after_a_rewind(
    rewinds: int, is_taken: bool, tmp_path: Path
) -> None:
    register()
    model = save_tiny_model(tmp_path / "model")
    pipeline = toy_pipeline(model, train__async={"staleness": 1})
    write_sample_ahead(tmp_path, pipeline, step=3, groups=[])
    manager = RolloutManager(
        pipeline.model_copy(update={"seed": seed_after(rewinds, seed=pipeline.seed)}),
        items=toy_items(12),
        sampler=ScriptedSampler([], encode=str.encode),
        tokenizer=load_tokenizer(model),
        history=History(),
    )
    manager.restore_ahead(tmp_path)
    (tmp_path / "next").mkdir()
    manager.save_ahead(tmp_path / "next")
    assert (tmp_path / "next" / "ahead.pickle").exists() == is_taken
    manager.close()


def test_a_number_of_rewinds_without_rewinding_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_rewinds is for on_collapse: rewind, and it is stop"):
        load_pipeline("textcraft-cpu", overrides={"train.watch": {"on_collapse": "stop", "max_rewinds": 2}})
