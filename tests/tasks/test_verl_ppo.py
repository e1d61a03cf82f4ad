"""Real verl on the CPU: PPO of adapters, sampled ahead, through a kill -9 of training and Ray."""

import json
import math
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from tasks.config.capacity import checkpoint_bytes, read_model_size
from tasks.data.trajectories import read_trajectories, summarise
from tasks.rollout.history import History
from tasks.runs.progress import Progress
from tasks.runs.rounds import episode_file
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tasks.verl.policies import copy_policy
from tests.support.adapters import check_adapter
from tests.support.verl_runs import (
    Repeats,
    are_equal,
    checkpoint_tensors,
    pid_of_trainer,
    prepare_toy_run,
    sampled_tokens,
)
from tests.support.verl_toy import toy_pipeline

pytestmark = pytest.mark.slow


def test_ppo_that_samples_ahead_survives_what_kills_it_and_resumes_policy_critic_and_the_step_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """At step 5 the training process is killed with Ray's control service, and the checkpoint of step 4 is
    cut short: a second process repeats what is lost, steps 3 to 5 and the first round's evaluation.
    """
    model = prepare_toy_run(monkeypatch, tmp_path)
    pipeline = toy_pipeline(
        model,
        train__algorithm={"name": "ppo", "lam": 0.9, "critic": {"lr": 1e-3, "warmup_steps": 2}},
        train__async={},
        train__lora={"rank": 8},
        train__kl={"coef": 0.01},  # the reference is the policy without its adapters
        train__optimizer={"schedule": "cosine", "min_lr_ratio": 0.0},
        train__steps=6,
        train__steps_per_round=4,
        backend__samplers=2,
    )
    folder = tmp_path / "train"
    weights: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    lost_tensors: dict[str, torch.Tensor] = {}
    repeated_tensors: dict[str, torch.Tensor] = {}
    lost_completions: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
    step_numbers: list[int] = []
    repeats = Repeats(folder)

    def on_step(values: Mapping[str, float]) -> None:
        step = int(values["step"])
        step_numbers.append(step)
        assert values["staleness"] == min(step - 1, 1)
        repeats.compare(values)
        if step in (2, 4):
            weights.update({(step, role): read_weights(folder, step, role) for role in ("actor", "critic")})
        if step_numbers == [1, 2, 3, 4, 5]:  # step 5 is in no checkpoint, nor is the policy that sampled it
            lost_completions.extend(sampled_tokens(episode_file(folder, 0)))
            last = folder / "checkpoints" / "global_step_4"
            lost_tensors.update(checkpoint_tensors(last))
            actor = next((last / "actor").glob("model_world_size_1_rank_0.pt"))
            actor.write_bytes(actor.read_bytes()[:1000])
            (folder / "checkpoints" / "global_step_5").mkdir()  # as if it died while writing one
            (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("")
            [control_service] = [p for p in psutil.Process().children() if p.name() == "gcs_server"]
            trainer = pid_of_trainer()
            control_service.kill()  # the next steps may not miss it
            os.kill(trainer, signal.SIGKILL)
        if step_numbers == [1, 2, 3, 4, 5, 3, 4]:
            repeated_tensors.update(checkpoint_tensors(folder / "checkpoints" / "global_step_4"))

    with TrainSession(pipeline, tmp_path, Progress(on_step=on_step)) as session:
        first = session.evaluate_round(session.train_round(0))
        second = session.evaluate_round(session.train_round(1))

    output = "".join(capfd.readouterr())
    assert not [word for word in ("Traceback", "state-dump") if word in output], output

    # The second process has left the same bits as the first.
    assert step_numbers == [1, 2, 3, 4, 5, 3, 4, 5, 6]
    assert repeats.count == 3
    assert are_equal(repeated_tensors, lost_tensors)
    for step, version in ((1, 0), (2, 0), (3, 1), (4, 2), (5, 3), (6, 4)):
        trajectories = read_trajectories(folder / "trajectories" / f"step_{step:04d}.jsonl")
        assert {turn.completion.policy_version for t in trajectories for turn in t.turns} == {version}

    # What decides about horizons and items has outlived the killed process.
    history = History.read(checkpoints.checkpoint_folder(folder / "checkpoints", step=6))
    assert [step.episodes for step in history.evidence["parity"]] == [16] * 6
    assert len(history.success) == 12
    item_ids = [
        t.item.item_id
        for s in (1, 2, 3)
        for t in read_trajectories(folder / "trajectories" / f"step_{s:04d}.jsonl")
    ]
    assert len(set(item_ids)) == 3 * 2  # none comes twice within the first 12 of an epoch

    # The round that was evaluated before the kill was evaluated again, as it was.
    with TrainSession(pipeline, tmp_path) as session:
        repeated = session.evaluate_round(session.train_round(0))
        assert session.evaluate_round(session.train_round(1)) == second
    assert repeated != first
    assert repeated.evaluation == first.evaluation
    assert summarise(read_trajectories(episode_file(folder, 0))) == first.evaluation
    assert sampled_tokens(episode_file(folder, 0)) == lost_completions != []

    start = load_file(model / "model.safetensors")
    assert not differ(start, weights[2, "actor"]), "the first two steps train the critic alone"
    assert weights[2, "critic"]["score.weight"].any(), "it started at 0"
    assert differ(start, weights[4, "actor"])
    copy_policy(checkpoints.policy_folder(folder / "checkpoints", step=6), tmp_path / "policy")
    check_adapter(model, tmp_path / "policy")
    assert differ(weights[4, "critic"], read_weights(folder, 6, "critic"))
    # The second process went on with the critic's optimizer where it was.
    [optimizer_file] = (folder / "checkpoints" / "global_step_6" / "critic").glob("optim_*.pt")
    state = torch.load(optimizer_file, weights_only=False)["state"]
    assert {int(values["step"]) for values in state.values()} == {6 * 2}, "two mini-batches a step"

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert ["loss" in line for line in lines] == [False, False, True, True, True, True]
    # half a cosine over the four steps that train the policy; the critic's rate is constant
    shares = [(1 + math.cos(math.pi * step / 4)) / 2 for step in (1, 2, 3, 4)]
    assert [line["lr"] for line in lines[2:]] == pytest.approx([1e-3 * share for share in shares], abs=1e-12)
    assert {line["critic_lr"] for line in lines} == {1e-3}
    assert all(line["value_loss"] > 0 and line["critic_grad_norm"] > 0 for line in lines)
    assert ["kl_reference" in line for line in lines] == [False, False, True, True, True, True]
    assert lines[-1]["kl_reference"] > 0
    assert [line["value_mean"] != 0 for line in lines] == [False, True, True, True, True, True]
    assert lines[0]["explained_variance"] == pytest.approx(0, abs=1e-6)

    size = read_model_size(model)
    assert size is not None
    checkpoint = folder / "checkpoints" / "global_step_6"
    files = [
        *checkpoint.rglob("model_*.pt"),
        *checkpoint.rglob("optim_*.pt"),
        *checkpoint.rglob("*.safetensors"),
    ]
    assert len(files) == 6
    written = sum(file.stat().st_size for file in files)
    assert written == pytest.approx(checkpoint_bytes(size, pipeline.train), rel=0.1)


def read_weights(folder: Path, step: int, role: str) -> dict[str, torch.Tensor]:
    """Of the whole policy, or of the critic."""
    if role == "actor":
        return load_file(checkpoints.policy_folder(folder / "checkpoints", step=step) / "model.safetensors")
    [file] = (folder / "checkpoints" / f"global_step_{step}" / role).glob("model_*.pt")
    return {name: x.full_tensor() for name, x in torch.load(file, weights_only=False).items()}


def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return any(not torch.equal(one[name], other[name]) for name in one)
