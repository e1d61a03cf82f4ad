"""What the composed configuration of a GPU pipeline makes of a sampler that differs from the trainer."""

import math
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.verl.config import check_pipeline, verl_config
from tests.support.verl_toy import toy_pipeline

NAME = "textcraft-qwen2.5-3b"


def compose(pipeline: Pipeline, folder: Path) -> Any:
    return verl_config(pipeline, model="m", checkpoints=folder)


def correct_weights(config: Any) -> tuple[Any, dict[str, float]]:
    """verl's batch of two rows after its correction, and the metrics; the last token is padding."""
    import torch
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

    sampler = torch.tensor([[0.5, 0.2, 0.1, 1.0], [0.8, 0.4, 0.25, 1.0]])
    ratio = torch.tensor([[1.0, 1.5, 3.0, 1.0], [0.5, 2.5, 1.0, 1.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]])
    data = DataProto.from_dict(
        {
            "rollout_log_probs": sampler.log(),
            "old_log_probs": (sampler * ratio).log(),
            "response_mask": mask,
            "responses": mask,
        }
    )
    return compute_rollout_correction_and_add_to_batch(data, config.algorithm.rollout_correction)


def test_a_tokens_loss_is_weighed_by_the_ratio_up_to_the_cap(verl: ModuleType, tmp_path: Path) -> None:
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    from tasks.verl.actor import _VERL_METRICS

    config = compose(load_pipeline(NAME), tmp_path)
    batch, metrics = correct_weights(config)
    weights = torch.tensor([[1.0, 1.5, 2.0, 0.0], [0.5, 2.0, 1.0, 0.0]])
    torch.testing.assert_close(batch.batch["rollout_is_weights"], weights)
    assert metrics[_VERL_METRICS["importance_mean"]] == pytest.approx(8 / 6)
    assert metrics[_VERL_METRICS["importance_capped"]] == pytest.approx(2 / 6)

    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    old = batch.batch["old_log_probs"]
    advantages = torch.tensor([[1.0] * 4, [-1.0] * 4])
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(
        old_log_prob=old,
        log_prob=old,  # before the first update: the ratio of PPO is 1
        advantages=advantages,
        response_mask=batch.batch["response_mask"].bool(),
        loss_agg_mode="token-mean",
        config=actor,
        rollout_is_weights=batch.batch["rollout_is_weights"],
    )
    assert float(loss) == pytest.approx(-(1.0 + 1.5 + 2.0 - 0.5 - 2.0 - 1.0) / 6)


def test_what_verl_says_of_the_difference_is_recorded(verl: ModuleType, tmp_path: Path) -> None:
    from verl.utils.debug.metrics import calculate_debug_metrics

    from tasks.verl.actor import _VERL_METRICS

    batch, _ = correct_weights(compose(load_pipeline(NAME), tmp_path))
    metrics = calculate_debug_metrics(batch)
    differences = [0.0, 0.1, 0.2, 0.4, 0.6, 0.0]
    assert metrics[_VERL_METRICS["rollout_probs_diff_mean"]] == pytest.approx(sum(differences) / 6, abs=1e-6)
    assert metrics[_VERL_METRICS["rollout_probs_diff_max"]] == pytest.approx(0.6, abs=1e-6)


def test_the_correction_can_be_set_and_switched_off(verl: ModuleType, tmp_path: Path) -> None:
    import torch

    batch, _ = correct_weights(
        compose(load_pipeline(NAME, overrides={"train.importance_cap": 1.2}), tmp_path)
    )
    assert math.isclose(float(batch.batch["rollout_is_weights"].max()), 1.2, rel_tol=1e-6)
    batch, metrics = correct_weights(
        compose(load_pipeline(NAME, overrides={"train.importance_cap": None}), tmp_path)
    )
    assert "rollout_is_weights" not in batch.batch
    assert torch.isfinite(torch.tensor(list(metrics.values()))).all()  # the difference is still measured


def test_on_a_cpu_a_cap_is_refused() -> None:
    assert load_pipeline("textcraft-cpu").train.importance_cap is None
    assert load_pipeline(NAME).train.importance_cap == 2.0
    with pytest.raises(ConfigError, match=r"train.importance_cap 2.0 is for backend.device cuda"):
        check_pipeline(toy_pipeline(Path("m"), train__importance_cap=2.0))
