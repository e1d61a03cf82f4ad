"""Two rounds of real verl on the CPU, stopped on the way: what is on disk afterwards."""

import json
from pathlib import Path

import pytest

from envs.errors import WingspanError
from tasks.config.capacity import checkpoint_bytes, read_model_size
from tasks.data.trajectories import read_trajectories
from tasks.errors import Collapsed
from tasks.rollout.history import History
from tasks.rollout.spec import RolloutSpec
from tasks.runs.progress import Progress
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tests.support.verl_runs import prepare_toy_run
from tests.support.verl_toy import toy_items, toy_pipeline

pytestmark = pytest.mark.slow


def test_training_that_stopped_at_a_collapse_goes_on_and_counts_every_step_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A sign of a collapse stops it at step 2, which is saved; another process trains on from there. Each
    start of verl takes half a minute, hence the one story; that of a kill is in `test_verl_ppo.py`.
    """
    import ray
    from transformers import AutoModelForCausalLM

    model = prepare_toy_run(monkeypatch, tmp_path)
    # So little room that most episodes are of two segments, two rows for the trainer.
    pipeline = toy_pipeline(
        model,
        agent__context={"when_full": "drop"},
        rollout__context_length=136,
        train__steps=6,
        train__steps_per_round=3,
        train__save_every=3,
        train__watch={"on_collapse": "stop", "window": 2, "min_entropy": 50.0},
    )
    folder = tmp_path / "train"
    step_numbers: list[int] = []
    progress = Progress(on_step=lambda values: step_numbers.append(int(values["step"])))
    with (
        TrainSession(pipeline, tmp_path, progress) as session,
        pytest.raises(Collapsed, match="training stopped at step 2, which is saved: the entropy"),
    ):
        session.train_round(0)
    assert checkpoints.complete_steps(folder / "checkpoints") == [2]

    with TrainSession(pipeline, tmp_path, progress) as session:
        first = session.evaluate_round(session.train_round(0))
        assert checkpoints.complete_steps(folder / "checkpoints") == [2, 3]
        second = session.evaluate_round(session.train_round(1))
        groups = session.run_rollout(
            toy_items(2, first=200),
            RolloutSpec(name="greedy", max_turns={"parity": 4}, num_samples=2, temperature=0.0),
        )
        policy = session.export()

    assert step_numbers == [1, 2, 3, 4, 5, 6]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert [line["policy_version"] for line in lines] == [0, 1, 2, 3, 4, 5]
    assert [line["alerts"] for line in lines] == [0, 1, 1, 1, 1, 1]
    assert all(line["episodes"] == 16 and line["horizon"] == 4 for line in lines)
    assert all(line["segments"] > 1 for line in lines)
    assert all(line["trained"] == 16 * line["informative_groups"] for line in lines)  # episodes, not segments
    assert all(line["envs_live/parity"] == 16 for line in lines)  # an instance for each of 2 x 8 episodes
    assert [line["envs_created/parity"] for line in lines] == [16] * 6  # the first process's are gone
    assert [round(line["temperature"], 6) for line in lines] == [1.3, 1.24, 1.18, 1.12, 1.06, 1.0]
    assert (first.first_step, first.last_step) == (1, 3)
    assert (second.first_step, second.last_step) == (4, 6)
    assert second.evaluation["episodes"] == 4
    assert checkpoints.complete_steps(folder / "checkpoints") == [3, 6]
    # What decides about horizons and items has outlived the first process.
    history = History.read(checkpoints.checkpoint_folder(folder / "checkpoints", step=6))
    assert [step.episodes for step in history.evidence["parity"]] == [16] * 6
    assert len(history.success) == 12

    # What the plan counts with: weights and two moments in fp32, and the policy once more.
    size = read_model_size(model)
    assert size is not None
    actor = folder / "checkpoints" / "global_step_6" / "actor"
    files = [*actor.glob("model_*.pt"), *actor.glob("optim_*.pt"), *actor.glob("huggingface/*.safetensors")]
    assert len(files) == 3
    assert sum(file.stat().st_size for file in files) == pytest.approx(
        checkpoint_bytes(size, pipeline.train), rel=0.1
    )

    # Every turn carries the version that sampled it, the one before its step.
    for step in range(1, 7):
        trajectories = read_trajectories(folder / "trajectories" / f"step_{step:04d}.jsonl")
        assert {turn.completion.policy_version for t in trajectories for turn in t.turns} == {step - 1}

    # No item comes twice within the first 12 of an epoch, though another process goes on.
    item_ids = [
        t.item.item_id
        for s in (1, 2, 3)
        for t in read_trajectories(folder / "trajectories" / f"step_{s:04d}.jsonl")
    ]
    assert len(set(item_ids)) == 3 * 2

    # The policy of the most successful round is kept apart, the earlier of equals.
    best = max((first, second), key=lambda result: result.evaluation["success"])
    kept_weights, best_weights = (
        (path / "model.safetensors").read_bytes()
        for path in (folder / "best", checkpoints.policy_folder(folder / "checkpoints", step=best.last_step))
    )
    assert kept_weights == best_weights

    before, after = (AutoModelForCausalLM.from_pretrained(p).state_dict() for p in (model, policy))
    assert any((after[name] != before[name]).any() for name in before)
    for sample, repeated_sample in groups:  # greedy samples are equal
        assert [t.completion.token_ids for t in sample.turns] == [
            t.completion.token_ids for t in repeated_sample.turns
        ]

    # Finished rounds are read; nothing starts for them.
    with TrainSession(pipeline, tmp_path) as session:
        assert session.evaluate_round(session.train_round(0)) == first
        assert session.evaluate_round(session.train_round(1)) == second
    assert not ray.is_initialized()

    # With none that is whole, one line says so before anything starts.
    for file in (folder / "checkpoints").rglob("*.pt"):
        file.write_bytes(b"")
    with TrainSession(pipeline, tmp_path) as session, pytest.raises(WingspanError) as error:
        session.evaluate_round(session.train_round(1))
    assert f"delete {folder} to train from the start" in str(error.value)
    assert not ray.is_initialized()
