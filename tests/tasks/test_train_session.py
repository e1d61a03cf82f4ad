"""What a training session does without starting anything: refusals, and finished rounds."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agents.types import Trajectory
from envs.errors import ConfigError, DamagedFile, WingspanError
from envs.types import Item
from tasks.data.collapse import ALERTS, Alert
from tasks.data.items import write_items
from tasks.data.trajectories import write_trajectories
from tasks.data.updates import TrajectoryUpdate, read_updates, update_file, write_updates
from tasks.errors import describe_remote
from tasks.rollout.spec import RolloutSpec
from tasks.runs.progress import Progress
from tasks.runs.rounds import RoundResult, TrainedRound, episode_file, find_best, read_round
from tasks.stages.rounds import choose_best, drop_steps_after, evaluate_round
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tasks.verl.actor import StepRecord
from tasks.verl.config import check_pipeline
from tests.support.scripted_process import ScriptedProcess
from tests.support.verl_toy import toy_items, toy_pipeline

WARMUP = {"demonstrations": 1, "noise": 0.0, "steps": 1, "batch_size": 1, "lr": 1e-3}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"backend": {"device": "cpu", "rollout": "vllm"}}, "use cpu or vllm-cpu with cpu, vllm with cuda"),
        ({"backend": {"device": "cuda", "rollout": "vllm-cpu"}}, "use cpu or vllm-cpu with cpu"),
        ({"backend": {"device": "cpu", "rollout": "vllm-cpu"}, "rollout__top_k": 9}, "top_k 9"),
        ({"train__micro_batch_tokens": 100}, "train.micro_batch_tokens 100"),
        ({"train__mini_batches": 5}, "train.mini_batches 5"),
        (
            {"backend": {"device": "cpu", "rollout": "cpu", "workers": 2, "tensor_parallel": 2}},
            "backend.tensor_parallel 2 is for backend.device cuda",
        ),
        (
            {"backend": {"device": "cpu", "rollout": "vllm-cpu", "gpu_memory_utilization": 0.9}},
            "backend.gpu_memory_utilization 0.9 is for backend.device cuda",
        ),
        ({"backend": {"device": "cuda", "rollout": "vllm", "workers": 3, "tensor_parallel": 2}}, "workers 3"),
        ({"backend": {"device": "cuda", "rollout": "vllm"}, "rollout__top_p": 0.9}, "top_p 0.9"),
        ({"backend": {"device": "cuda", "rollout": "vllm", "samplers": 2}}, "samplers 2"),
        (
            {"backend": {"device": "cuda", "rollout": "vllm", "max_sequences": 8193}},
            "at least one of each sequence; lower it to 8192 or less",
        ),
        ({"backend": {"device": "cuda", "rollout": "vllm"}, "train__observation_loss": 0.1}, "logits"),
        (
            {
                "agent": {"instructions": False, "context": {"keep_thoughts": False}},
                "train__observation_loss": 0.1,
            },
            "keep_thoughts: true",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_pipeline(toy_pipeline(Path("m"), **overrides))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_finished_rounds_are_read_and_nothing_starts(tmp_path: Path) -> None:
    done = RoundResult(
        temperature=1.0, index=0, first_step=1, last_step=2, evaluation={"success": 0.5}, seconds=1.0
    )
    path = tmp_path / "train" / "rounds" / "00.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(asdict(done)))
    (tmp_path / "train" / "checkpoints" / "global_step_2").mkdir(parents=True)
    checkpoints.mark_complete(tmp_path / "train" / "checkpoints", step=2)
    with TrainSession(toy_pipeline(Path("m")), tmp_path) as session:
        assert session.num_rounds == 2
        assert session.evaluate_round(session.train_round(0)) == done


def test_a_round_is_recorded_with_the_temperature_of_its_evaluation(tmp_path: Path) -> None:
    pipeline = toy_pipeline(Path("m"), evaluate__temperature=0.5, rollout__temperature=1.3)
    write_items(tmp_path / "data" / "test.jsonl", toy_items(2))
    temperatures: list[float] = []

    def run(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        temperatures.append(spec.temperature)
        return []

    steps = TrainedRound(index=0, first_step=1, last_step=2, seconds=1.0)
    result = evaluate_round(steps, pipeline, tmp_path, policy=Path("m"), run=run)
    assert (result.temperature, temperatures) == (0.5, [0.5])
    assert read_round(tmp_path / "train", 0) == result


def test_the_last_round_is_as_long_as_the_steps_that_are_left(tmp_path: Path) -> None:
    with TrainSession(toy_pipeline(Path("m"), train__steps=5), tmp_path) as session:
        assert session.num_rounds == 3


def test_metrics_are_cut_to_the_steps_of_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "loss": 0.5}) + "\n" for step in (1, 2, 3, 4)]
    path.write_text("".join(lines))
    drop_steps_after(path, 3)
    assert path.read_text() == "".join(lines[:3])
    drop_steps_after(path, 0)
    assert path.read_text() == ""
    drop_steps_after(tmp_path / "absent.jsonl", 3)


@pytest.mark.parametrize("line", ['{"step": "2"}', '{"loss": 0.5}', '{"step": null}'])
def test_metrics_without_the_number_of_a_step_are_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with pytest.raises(DamagedFile, match=rf"line 2 of {path} is damaged \(its step is no integer\)"):
        drop_steps_after(path, 1)


def test_a_step_that_nobody_wrote_down_is_in_its_checkpoint(tmp_path: Path) -> None:
    """The training process saves a step before the session hears of it, which may be killed in between."""
    file = tmp_path / "train" / "metrics.jsonl"
    checkpoint = tmp_path / "train" / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    update = TrajectoryUpdate(item_id="parity_0", sample_index=0, turns=None)
    StepRecord(step=2, metrics={"success": 0.5}, trajectories=[], updates=[update]).write(checkpoint)
    checkpoints.mark_complete(checkpoint.parent, step=2)
    write_items(tmp_path / "data" / "train.jsonl", toy_items(12))
    file.write_text(json.dumps({"step": 1, "success": 0.25}) + "\n")
    for _ in range(2):
        process = ScriptedProcess(lambda _: {})
        with TrainSession(toy_pipeline(Path("m")), tmp_path, process=process) as session:
            session.train_round(0)
        assert not process.calls
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    assert steps == [{"step": 1, "success": 0.25}, {"step": 2, "success": 0.5, "alerts": 0}]
    assert read_updates(update_file(tmp_path / "train" / "trajectories", 2)) == [update]


def test_a_last_round_that_becomes_longer_is_trained_to_its_end(tmp_path: Path) -> None:
    """Of an interrupted training that was to have three steps, and is resumed with six."""
    write_items(tmp_path / "data" / "train.jsonl", toy_items(24))
    write_items(tmp_path / "data" / "test.jsonl", toy_items(4))

    def train(steps: int) -> list[tuple[int, int]]:
        pipeline = toy_pipeline(Path("m"), train__steps=steps)
        with TrainSession(pipeline, tmp_path, process=ScriptedProcess(lambda _: {})) as session:
            rounds = [session.train_round(index) for index in range(session.num_rounds)]
            results = [session.evaluate_round(done) for done in rounds]
        return [(result.first_step, result.last_step) for result in results]

    assert train(3) == [(1, 2), (3, 3)]
    first_end = (tmp_path / "train" / "rounds" / "00.json").read_text()
    assert train(6) == [(1, 2), (3, 4), (5, 6)]
    assert (tmp_path / "train" / "rounds" / "00.json").read_text() == first_end
    steps = [json.loads(line)["step"] for line in (tmp_path / "train" / "metrics.jsonl").open()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_an_alert_is_recorded_once_if_its_step_was_interrupted_before_its_line(tmp_path: Path) -> None:
    train = tmp_path / "train"
    checkpoint = train / "checkpoints" / "global_step_2"
    checkpoint.mkdir(parents=True)
    StepRecord(step=2, metrics={"kl": 0.5}, trajectories=[], updates=[]).write(checkpoint)
    checkpoints.mark_complete(checkpoint.parent, step=2)
    write_items(tmp_path / "data" / "train.jsonl", toy_items(12))
    (train / "metrics.jsonl").write_text(json.dumps({"step": 1, "kl": 0.01}) + "\n")
    # A step's alerts are written before its line, and a kill came between the two.
    alert = Alert(monitor="kl", step=2, value=0.5, limit=0.1, text="the KL is 0.5")
    (train / ALERTS).write_text(json.dumps(asdict(alert)) + "\n")
    pipeline = toy_pipeline(Path("m"), train__watch={"window": 1, "max_kl": 0.1})
    with TrainSession(pipeline, tmp_path, process=ScriptedProcess(lambda _: {})) as session:
        session.train_round(0)
    alerts = [json.loads(line) for line in (train / ALERTS).read_text().splitlines()]
    assert [(alert["monitor"], alert["step"]) for alert in alerts] == [("kl", 2)]


def test_an_export_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with (
        TrainSession(toy_pipeline(Path("m")), tmp_path) as session,
        pytest.raises(WingspanError, match="no complete"),
    ):
        session.export()


def test_missing_files_are_named_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="prepare"):
        TrainSession(toy_pipeline(Path("m")), tmp_path).train_round(0)
    write_items(tmp_path / "data" / "train.jsonl", toy_items(4))
    with pytest.raises(ConfigError, match="warm-up"):
        TrainSession(toy_pipeline(Path("m"), warmup=WARMUP), tmp_path).train_round(0)


def test_rounds_after_the_checkpoint_that_is_resumed_are_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    for index, last in ((0, 2), (1, 4)):
        checkpoint = folder / "checkpoints" / f"global_step_{last}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights").write_bytes(bytes(100))
        checkpoints.mark_complete(folder / "checkpoints", step=last)
        done = RoundResult(
            temperature=1.0, index=index, first_step=last - 1, last_step=last, evaluation={}, seconds=1.0
        )
        (folder / "rounds").mkdir(exist_ok=True)
        (folder / "rounds" / f"{index:02d}.json").write_text(json.dumps(asdict(done)))
    for step in (2, 3):
        write_trajectories(folder / "trajectories" / f"step_{step:04d}.jsonl", [])
        write_updates(update_file(folder / "trajectories", step), [])
    for index in (0, 1, 2):  # the last session was killed before it had written the third result
        write_trajectories(episode_file(folder, index), [])
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in (1, 2, 3, 4)))
    (folder / "checkpoints" / "global_step_4" / "weights").write_bytes(b"")
    notes: list[str] = []
    with TrainSession(toy_pipeline(Path("m")), tmp_path, Progress(on_note=notes.append)) as session:
        assert session.evaluate_round(session.train_round(0)).last_step == 2
    assert not (folder / "rounds" / "01.json").exists()
    assert {file.name for file in (folder / "trajectories").iterdir()} == {
        *("round_01.jsonl", "step_0002.jsonl", "update_0002.jsonl")
    }
    assert (folder / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 2}\n'
    (note,) = notes
    assert note.startswith("training goes back to step 2: ")
    assert "weights has 0 of 100 bytes" in note


def test_the_best_policy_is_that_of_a_round_that_is_still_believed(tmp_path: Path) -> None:
    """Training goes back to before its best round: the best of those before it takes its place."""
    folder = tmp_path / "train"
    for index, success in enumerate((0.5, 0.3, 0.9)):
        last = 2 * index + 2
        policy = checkpoints.policy_folder(folder / "checkpoints", step=last)
        policy.mkdir(parents=True)
        (policy / "config.json").write_text(json.dumps({"round": index}))
        save_file({"weight": torch.zeros(1)}, policy / "model.safetensors")
        checkpoints.mark_complete(folder / "checkpoints", step=last, steps_to_keep={2, 4, 6})
        done = RoundResult(
            temperature=1.0,
            index=index,
            first_step=last - 1,
            last_step=last,
            evaluation={"success": success},
            seconds=1.0,
        )
        (folder / "rounds").mkdir(exist_ok=True)
        (folder / "rounds" / f"{index:02d}.json").write_text(json.dumps(asdict(done)))
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in range(1, 7)))

    def best() -> tuple[int, int]:
        result = find_best(folder)
        assert result is not None
        return result.index, json.loads((folder / "best" / "config.json").read_text())["round"]

    choose_best(folder, folder / "checkpoints")
    assert best() == (2, 2)
    (checkpoints.policy_folder(folder / "checkpoints", step=6) / "config.json").write_text("")
    with TrainSession(toy_pipeline(Path("m"), train__steps=6), tmp_path) as session:
        assert session.evaluate_round(session.train_round(1)).last_step == 4
    assert best() == (0, 0)
    shutil.rmtree(folder / "checkpoints")
    choose_best(folder, folder / "checkpoints")
    assert find_best(folder) is None
    assert not (folder / "best").exists()


def test_a_remote_traceback_in_an_error_is_cut_to_its_cause() -> None:
    from ray.exceptions import OutOfMemoryError

    remote = "\x1b[36mray::Worker.update()\x1b[39m (pid=7)\n  File \"x.py\", line 3\nKeyError: 'x'\n"
    assert describe_remote(RuntimeError(remote)) == "RuntimeError: KeyError: 'x'"
    assert describe_remote(RuntimeError("two\n lines")) == "RuntimeError: two lines"
    killed = OutOfMemoryError("1 worker(s) were killed.\n ray::Trainer 5 GB\nRefer to the documentation")
    assert describe_remote(killed) == "OutOfMemoryError: 1 worker(s) were killed."
