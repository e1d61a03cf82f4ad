"""What an update computed about the trajectories that are kept: by hand, and of a real training."""

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.types import StopReason, Trajectory
from tasks.data.trajectories import read_trajectories
from tasks.data.updates import TrajectoryUpdate, TurnUpdate, read_updates, update_file, write_updates
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_runs import prepare_toy_run
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import rows_of_all, trajectories_of, turns_of
from tests.tasks.test_verl_loss import exact, make_groups, nearby, take_probabilities

torch = pytest.importorskip("torch")

PRECISION = 5e-5
"""Of five significant digits."""


def normalised(rewards: list[float]) -> list[float]:
    """GRPO's advantages: (reward − mean) / (unbiased standard deviation + 1e-6)."""
    mean = sum(rewards) / len(rewards)
    deviation = (sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]


def test_a_file_of_updates_is_read_as_it_was_written(tmp_path: Path) -> None:
    turn = TurnUpdate(advantages=0.5, log_ratios=None, entropies=[0.25, 1e-5])
    updates = [
        TrajectoryUpdate(item_id="a_1", sample_index=0, turns=[turn, replace(turn, advantages=[1.0, -1.0])]),
        TrajectoryUpdate(item_id="a_1", sample_index=1, turns=None),
    ]
    file = update_file(tmp_path / "new", 7)
    write_updates(file, updates)
    assert file.name == "update_0007.jsonl"
    assert read_updates(file) == updates
    assert len(file.read_text().splitlines()) == 2
    assert read_updates(tmp_path / "none.jsonl") == []


@pytest.mark.heavy
def test_numbers_are_those_of_the_trajectorys_own_tokens(verl: ModuleType, tmp_path: Path) -> None:
    """Segments and groups share a batch, rows come in any order, and one group has nothing to learn from."""
    from tasks.verl.advantages import JoinedRows, estimate_advantages
    from tasks.verl.rows import fields_of
    from tasks.verl.step_update import StepUpdate, list_updates

    model = save_tiny_model(tmp_path / "model")
    groups = make_groups(model, ((1, 2, 1), (2, 1), (1, 1)), ((1.0, 0.25, 0.0), (0.5, 1.0), (1.0, 1.0)))
    trainers = nearby(groups, seed=5)
    failed = replace(groups[0][0], stop_reason=StopReason.ERROR, error="EnvCrashed: x", sample_index=9)
    rows, trainer_rows = rows_of_all(groups[:2]), rows_of_all(trainers[:2])
    order = [3, 0, 5, 2, 1, 4]
    assert len(rows) == 7
    order.append(6)
    data = fields_of([rows[place] for place in order])
    data["old_log_probs"] = fields_of([trainer_rows[place] for place in order])["rollout_log_probs"]
    data["entropy"] = -2 * data["old_log_probs"]
    trained = trajectories_of(groups[:2])
    joined = JoinedRows([rows[place].key for place in order], data, trained)
    pipeline = toy_pipeline(model, train__algorithm="grpo")
    estimate = estimate_advantages(
        pipeline.train,
        joined,
        trajectories=trained,
        greedy_rewards={},
        teacher_scores=None,
        num_played=16,
        context_length=pipeline.rollout.context_length,
    )

    def collect(*, has_trainers_log_probs: bool) -> list[TrajectoryUpdate]:
        update = StepUpdate.collect(
            joined, estimate, trained=trained, has_trainers_log_probs=has_trainers_log_probs
        )
        return list_updates(update, [*groups[1], *groups[0], failed, *groups[2]])

    updates = collect(has_trainers_log_probs=True)
    assert [update.turns is None for update in updates] == [False] * 5 + [True] * 3
    advantages = [*normalised([0.5, 1.0]), *normalised([1.0, 0.25, 0.0])]
    episodes = list(zip([*groups[1], *groups[0]], [*trainers[1], *trainers[0]], strict=True))
    for update, (trajectory, trainer), advantage in zip(updates, episodes, advantages, strict=False):
        assert (update.item_id, update.sample_index) == (trajectory.item.item_id, trajectory.sample_index)
        assert update.turns is not None
        for turn, sampled, own in zip(update.turns, trajectory.turns, trainer.turns, strict=True):
            assert turn.advantages == pytest.approx(advantage, rel=PRECISION)
            ratios = [
                x - y for x, y in zip(own.completion.logprobs, sampled.completion.logprobs, strict=True)
            ]
            assert turn.log_ratios == pytest.approx(ratios, rel=1e-4, abs=1e-6)
            assert turn.entropies == pytest.approx([-2 * x for x in own.completion.logprobs], rel=PRECISION)

    without = collect(has_trainers_log_probs=False)
    for update, other in zip(updates[:5], without[:5], strict=True):
        assert other.turns is not None
        assert other.turns == [replace(t, log_ratios=None, entropies=None) for t in update.turns or []]
    assert [update.turns for update in list_updates(None, groups[0])] == [None] * 3


def test_an_advantage_that_differs_within_a_turn_is_kept_by_token(verl: ModuleType, tmp_path: Path) -> None:
    from tasks.verl.step_update import StepUpdate

    [[trajectory]] = make_groups(save_tiny_model(tmp_path / "model"), ((2,),), ((1.0,),))
    lengths = [len(turn.completion.token_ids) for turn in trajectory.turns]
    advantages = torch.arange(sum(lengths) + 3.0)[None] / 3
    update = StepUpdate(trained={"a_0": trajectory}, advantages=advantages, log_ratios=None, entropies=None)
    turns = update.of_turns(trajectory, place=0)
    tokens: list[float] = []
    for turn, length in zip(turns, lengths, strict=True):
        values = turn.advantages if isinstance(turn.advantages, list) else [turn.advantages]
        assert len(values) == length
        tokens += values
    assert tokens == [float(f"{number / 3:.5g}") for number in range(sum(lengths))]


@pytest.mark.slow
def test_training_keeps_what_can_be_computed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With episodes sampled ahead, the trainer's policy is one step ahead of the sampler's."""
    model = prepare_toy_run(monkeypatch, tmp_path)
    pipeline = toy_pipeline(
        model,
        train__algorithm="grpo",
        train__async={},
        train__rollout_correction={},
        train__steps=2,
        train__steps_per_round=2,
        train__save_every=1,
    )
    with TrainSession(pipeline, tmp_path) as session:
        session.train_round(0)
    train, size = tmp_path / "train", pipeline.rollout.group_size
    temperatures = [
        json.loads(line)["temperature"] for line in (train / "metrics.jsonl").read_text().splitlines()
    ]
    policies = [exact(model), exact(checkpoints.policy_folder(train / "checkpoints", step=1))]
    furthest = []
    for step, (policy, temperature) in enumerate(zip(policies, temperatures, strict=True), start=1):
        trajectories = read_trajectories(train / "trajectories" / f"step_{step:04d}.jsonl")
        updates = read_updates(update_file(train / "trajectories", step))
        assert len(updates) == len(trajectories) == 2 * size
        ratios = []
        for first in (0, size):
            group, group_updates = trajectories[first : first + size], updates[first : first + size]
            is_trained = len({t.reward for t in group}) > 1
            assert [update.turns is not None for update in group_updates] == [is_trained] * size
            if is_trained:
                advantages = normalised([t.reward for t in group])
                for trajectory, update, advantage in zip(group, group_updates, advantages, strict=True):
                    ratios += check_turns(trajectory, update, policy, advantage, temperature=temperature)
        furthest.append(max(map(abs, ratios)))
    assert furthest[0] < 1e-5 < 1e-3 < furthest[1]


def check_turns(
    trajectory: Trajectory, update: TrajectoryUpdate, policy: Any, advantage: float, *, temperature: float
) -> list[float]:
    """Compare an update with the policy's own distributions; returns the log-ratios."""
    assert update.turns is not None
    ratios: list[float] = []
    for (context, turn), numbers in zip(turns_of(trajectory), update.turns, strict=True):
        ids = turn.completion.token_ids
        with torch.no_grad():
            logits = policy(torch.tensor([[*context, *ids]])).logits[0, len(context) - 1 : -1]
        distribution = (logits / temperature).log_softmax(-1)
        log_probs = take_probabilities(distribution, ids) - torch.tensor(turn.completion.logprobs)
        entropies = -(distribution.exp() * distribution).sum(-1)
        assert numbers.advantages == pytest.approx(advantage, rel=PRECISION)
        assert numbers.log_ratios == pytest.approx(log_probs.tolist(), rel=1e-3, abs=1e-5)
        assert numbers.entropies == pytest.approx(entropies.tolist(), rel=1e-4)
        ratios += numbers.log_ratios or []
    return ratios
