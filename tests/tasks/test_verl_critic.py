"""The critic on the CPU, against loops over whole trajectories that know of no rows."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agents.types import Trajectory
from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.errors import Diverged
from tasks.verl.config import verl_config
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import compute_values, critic_worker, rows_of_all, turns_of, update_critic
from tests.tasks.test_verl_loss import NUM_PLAYED, REWARDS, SEGMENTS, Groups, make_groups

torch = pytest.importorskip("torch")

GAMMA, LAM, CLIP = 0.95, 0.8, 0.3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def worker(verl: ModuleType, model: Path) -> Iterator[Any]:
    with critic_worker(pipeline("ppo"), model) as value_worker:
        yield value_worker


@pytest.fixture(scope="module")
def groups(model: Path) -> Groups:
    return make_groups(model, SEGMENTS, REWARDS)


def pipeline(name: str, **critic: Any) -> Pipeline:
    """A micro-batch holds a few rows; the rate is so small that mini-batches meet the same weights."""
    algorithm = {
        "name": name,
        "gamma": GAMMA,
        "lam": LAM,
        "critic": {"lr": 1e-12, "clip_range": CLIP} | critic,
    }
    return toy_pipeline(
        Path("model"), train__algorithm=algorithm, train__mini_batches=1, train__micro_batch_tokens=160
    )


def test_a_critic_starts_with_values_of_0(worker: Any, groups: Groups) -> None:
    values = compute_values(worker, pipeline("ppo"), groups)
    assert values.values().numel() > 0
    assert not values.values().any()


@pytest.mark.parametrize("name", ["ppo", "turn_ppo"])
def test_values_loss_and_gradient_of_the_critic(worker: Any, model: Path, groups: Groups, name: str) -> None:
    """A value is of the state before its token; returns go through segments; conversations weigh the same."""
    critic = exact_critic(model)
    for ours, exact in zip(worker.engine.module.score.parameters(), critic.score.parameters(), strict=True):
        ours.to_local().data.copy_(exact.data)
    settings = pipeline(name)
    values = compute_values(worker, settings, groups)
    by_hand = [[value.item() for value in values_by_hand(critic, t)] for group in groups for t in group]
    assert of_trajectories(values, groups) == [pytest.approx(row, abs=1e-5) for row in by_hand]

    rng = random.Random(1)
    old = torch.nested.as_nested_tensor(
        [row + torch.tensor([rng.gauss(0.0, 0.5) for _ in row]) for row in values.unbind()],
        layout=torch.jagged,
    )
    reference_loss = loss_by_hand(critic, groups, of_trajectories(old, groups), by_turn=name == "turn_ppo")
    actual = update_critic(worker, settings, groups, values=old)
    assert sum(actual["critic/vf_loss"]) == pytest.approx(reference_loss.loss, rel=1e-5)
    assert actual["grad_norm"] == pytest.approx([reference_loss.grad_norm], rel=1e-5)
    assert actual["critic/vf_clipfrac"] == [pytest.approx(reference_loss.clip_fraction, rel=1e-5)]
    assert 0 < reference_loss.clip_fraction < 1


@pytest.mark.parametrize(
    ("critic", "steps", "message"),
    [
        ({"warmup_steps": 4}, 4, "train.algorithm.critic.warmup_steps 4 leave none of train.steps 4"),
        ({"warmup_steps": 3}, 4, None),
    ],
)
def test_a_warm_up_that_leaves_the_policy_no_step_is_refused(
    critic: dict[str, Any], steps: int, message: str | None, tmp_path: Path
) -> None:
    settings = toy_pipeline(
        Path("model"), train__algorithm={"name": "ppo", "critic": critic}, train__steps=steps
    )
    if message is None:
        config = verl_config(settings, model="m", checkpoints=tmp_path)
        # verl updates the policy from this step on: steps 1 to 3 are the critic's
        assert config.trainer.critic_warmup == 4
        return
    with pytest.raises(ConfigError, match=message):
        verl_config(settings, model="m", checkpoints=tmp_path)


@pytest.mark.parametrize("name", ["textcraft-cpu", "textcraft-qwen2.5-3b"])
def test_verl_accepts_the_configuration_of_a_critic(
    verl: ModuleType, model: Path, name: str, tmp_path: Path
) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    shipped_pipeline = load_pipeline(name)
    values = shipped_pipeline.model_dump(mode="json", exclude_unset=True)
    values["train"]["algorithm"] = {"name": "ppo", "critic": {"lr": 3e-5, "epochs": 2}}
    settings = Pipeline.model_validate(values)
    config = verl_config(settings, model=model, checkpoints=tmp_path)
    validate_config(config, use_reference_policy=settings.train.kl is not None, use_critic=True)
    critic = omega_conf_to_dataclass(config.critic)
    assert (critic.model.path, critic.optim.lr, critic.ppo_epochs) == (str(model), 3e-5, 2)
    assert critic.ppo_infer_max_token_len_per_gpu == settings.train.micro_batch_tokens
    assert critic.engine.strategy == "fsdp2"
    assert not critic.model.use_fused_kernels, "they replace the forward of a model with logits"
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert critic.engine.mixed_precision == actor.engine.mixed_precision
    attention = config.actor_rollout_ref.model.override_config.attn_implementation
    assert critic.model.override_config["attn_implementation"] == attention


def test_a_critic_that_diverges_ends_the_run(verl: ModuleType) -> None:
    from tasks.verl.trainer import check_update

    train = pipeline("ppo").train
    with pytest.raises(Diverged, match=r"step 3: the critic's gradient norm is nan; lower train\.algorithm"):
        check_update({"critic/grad_norm": float("nan")}, train, step=3)


@dataclass(frozen=True, slots=True)
class ValueLoss:
    loss: float
    clip_fraction: float
    grad_norm: float


def loss_by_hand(
    critic: Any, groups: Groups, old_values: Sequence[Sequence[float]], *, by_turn: bool
) -> ValueLoss:
    """In float64: half the mean over a trajectory's steps, tokens or turns, summed, by `NUM_PLAYED`; the
    share of its steps that are clipped, weighed by its tokens."""
    total = torch.zeros(())
    clipped_tokens = 0.0
    trajectories = [t for group in groups for t in group]
    for trajectory, old in zip(trajectories, old_values, strict=True):
        values = values_by_hand(critic, trajectory)
        lengths = [len(turn.completion.token_ids) for turn in trajectory.turns]
        ends = [sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
        rewards = [0.0] * len(old)
        for end, turn in zip(ends, trajectory.turns, strict=True):
            rewards[end] = turn.reward
        if by_turn:
            starts = [end + 1 - length for end, length in zip(ends, lengths, strict=True)]
            values, old = values[starts], [old[start] for start in starts]
            rewards = [turn.reward for turn in trajectory.turns]
        targets = torch.tensor(returns_by_hand(rewards, old))
        clipped_values = values.clamp(torch.tensor(old) - CLIP, torch.tensor(old) + CLIP)
        free_errors, clipped_errors = (values - targets) ** 2, (clipped_values - targets) ** 2
        errors = torch.maximum(free_errors, clipped_errors)
        clipped_tokens += sum(lengths) * (clipped_errors > free_errors).double().mean().item()
        total = total + 0.5 * errors.mean() / NUM_PLAYED
    critic.zero_grad()
    total.backward()
    squares = [p.grad.square().sum() for p in critic.parameters() if p.grad is not None]
    clip_fraction = clipped_tokens / sum(map(len, old_values))
    return ValueLoss(total.item(), clip_fraction, sum(squares).item() ** 0.5)


def returns_by_hand(rewards: Sequence[float], values: Sequence[float]) -> list[float]:
    following = [*values[1:], 0.0]
    deltas = [r + GAMMA * after - v for r, after, v in zip(rewards, following, values, strict=True)]
    return [
        value + sum((GAMMA * LAM) ** (j - k) * deltas[j] for j in range(k, len(deltas)))
        for k, value in enumerate(values)
    ]


def exact_critic(model: Path) -> Any:
    from transformers import AutoModelForTokenClassification

    critic = AutoModelForTokenClassification.from_pretrained(
        model, num_labels=1, attn_implementation="eager", dtype=torch.float64
    )
    generator = torch.Generator().manual_seed(5)
    for parameter in critic.score.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator).double() * 0.1
    return critic


def values_by_hand(critic: Any, trajectory: Trajectory) -> Any:
    """[sampled tokens]: each of the context that its token was sampled on."""
    return torch.cat(
        [
            critic(torch.tensor([[*context, *turn.completion.token_ids]])).logits[0, len(context) - 1 : -1, 0]
            for context, turn in turns_of(trajectory)
        ]
    )


def of_trajectories(values: Any, groups: Groups) -> list[list[float]]:
    """Of the sampled tokens of each trajectory, from nested [rows, tokens]."""
    result: dict[int, list[float]] = {}
    for row, row_values in zip(rows_of_all(groups), values.unbind(), strict=True):
        sampled_values = row_values[torch.tensor(row.packed.response_mask) > 0]
        result.setdefault(id(row.trajectory), []).extend(sampled_values.tolist())
    return list(result.values())
