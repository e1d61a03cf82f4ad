"""Importance weights where the sampler's probabilities are not the trainer's: by hand, and beside verl's."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError

from envs.errors import ConfigError
from tasks.config.pipelines import load_pipeline
from tasks.config.training import RolloutCorrectionSettings
from tasks.verl.config import check_pipeline, verl_config
from tests.support.scored_episodes import episode
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import policy_worker, turns_of, update
from tests.tasks.test_verl_loss import exact, make_groups, nearby, next_tokens, take_probabilities

torch = pytest.importorskip("torch")

NAME = "textcraft-qwen2.5-3b"
KEYS = ("b_0_0", "a_0_1", "pad_0_0", "a_0_0")
"""The second segment of conversation a comes before the first, and padding in between."""
MASKS = ([1, 0, 1], [1], [0, 0], [1, 0, 1, 1])
RATIOS = ([0.5, 9.0, 1.2], [4.0], [9.0, 9.0], [0.5, 9.0, 1.5, 3.0])
"""Of the trainer's probability to the sampler's; a conversation's product is 0.6 (b) and 9.0 (a)."""


def nest(rows: Any) -> Any:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def weigh(**block: Any) -> tuple[list[list[float]], dict[str, float]]:
    """By row of `KEYS`, and the metrics."""
    from tasks.verl.advantages import JoinedRows, rollout_weights

    ratios = nest(RATIOS).log()
    data = {
        "response_mask": nest(MASKS),
        "old_log_probs": ratios - 1.0,
        "rollout_log_probs": torch.zeros_like(ratios) - 1.0,
    }
    trajectories = {"a_0": episode(0, shape=((3,), (1,))), "b_0": episode(1, shape=((2,),))}
    weights, metrics = rollout_weights(
        RolloutCorrectionSettings(**block), JoinedRows(KEYS, data, trajectories)
    )
    return [row.tolist() for row in weights.unbind()], metrics


BY_HAND: list[tuple[dict[str, Any], list[list[float]], tuple[float, float]]] = [
    ({}, [[0.5, 0, 1.2], [2.0], [0, 0], [0.5, 0, 1.5, 2.0]], (2 / 6, 0)),
    ({"cap": 1.0}, [[0.5, 0, 1.0], [1.0], [0, 0], [0.5, 0, 1.0, 1.0]], (4 / 6, 0)),
    (
        {"cap": None, "reject_below": 0.6, "reject_above": 3.5},
        [[0, 0, 1.2], [0], [0, 0], [0, 0, 1.5, 3.0]],
        (0, 3 / 6),
    ),
    ({"reject_above": 3.5}, [[0.5, 0, 1.2], [0], [0, 0], [0.5, 0, 1.5, 2.0]], (1 / 6, 1 / 6)),
    ({"level": "sequence"}, [[0.6, 0, 0.6], [2.0], [0, 0], [2.0, 0, 2.0, 2.0]], (4 / 6, 0)),
    (
        {"level": "sequence", "cap": None, "reject_above": 5.0},
        [[0.6, 0, 0.6], [0], [0, 0], [0, 0, 0, 0]],
        (0, 4 / 6),
    ),
    (
        {"level": "sequence", "reject_below": 0.7},
        [[0, 0, 0], [2.0], [0, 0], [2.0, 0, 2.0, 2.0]],
        (4 / 6, 2 / 6),
    ),
]


def test_segments_are_joined_in_their_order_and_split_again(verl: ModuleType) -> None:
    from tasks.verl.advantages import JoinedRows

    values = nest([[10.0, -1.0, 11.0], [24.0], [-1.0, -1.0], [21.0, -1.0, 22.0, 23.0]])
    data: Any = {"response_mask": nest(MASKS), "values": values}
    trajectories = {"b_0": episode(1, shape=((1, 1),)), "a_0": episode(0, shape=((2, 1), (1,)))}
    rows = JoinedRows(KEYS, data, trajectories)
    joined = rows.join("values")
    assert joined.tolist() == [[10, 11, 0, 0], [21, 22, 23, 24]]
    assert rows.mask.tolist() == (joined > 0).tolist()
    assert [row.tolist() for row in rows.split(joined).unbind()] == [
        [10, 0, 11],
        [24],
        [0, 0],
        [21, 0, 22, 23],
    ]


@pytest.mark.parametrize(("block", "expected_weights", "shares"), BY_HAND)
def test_a_ratio_is_cut_and_rejected_by_token_and_by_conversation(
    verl: ModuleType, block: dict[str, Any], expected_weights: list[list[float]], shares: tuple[float, float]
) -> None:
    weights, metrics = weigh(**block)
    for actual, row in zip(weights, expected_weights, strict=True):
        assert actual == pytest.approx(row, rel=1e-5)
    assert (metrics["rollout_corr/capped"], metrics["rollout_corr/rejected"]) == pytest.approx(shares)
    assert metrics["rollout_corr/mean"] == pytest.approx(sum(map(sum, expected_weights)) / 6, rel=1e-5)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("bounds", [(None, None), (0.8, 1.6), (None, 1.6)])
def test_of_conversations_of_one_row_the_weights_are_verls(
    verl: ModuleType, level: Any, bounds: tuple[float | None, float | None]
) -> None:
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    from tasks.verl.advantages import JoinedRows, rollout_weights

    torch.manual_seed(0)
    lengths = (1, 7, 30, 4)
    old, rollout_log_probs = (torch.randn(4, 30) * 0.2 - 1 for _ in range(2))
    mask = torch.arange(30) < torch.tensor(lengths).unsqueeze(1)
    below, above = bounds
    # verl's k1 is −log ratio: its band is that of the inverse
    band = f"{1 / (above or 1e12)}_{1 / (below or 1e-12)}"
    expected_weights, kept_mask, _ = compute_rollout_correction_and_rejection_mask(
        old,
        rollout_log_probs,
        mask.long(),
        rollout_is=level,
        rollout_is_threshold=1.3,
        rollout_rs={"token": "token_k1", "sequence": "seq_sum_k1"}[level],
        rollout_rs_threshold=band,
    )

    def rows(values: Any) -> Any:
        parts = [row[:length] for row, length in zip(values, lengths, strict=True)]
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    data = {
        "response_mask": rows(mask.long()),
        "old_log_probs": rows(old),
        "rollout_log_probs": rows(rollout_log_probs),
    }
    keys = [f"x{row}_0_0" for row in range(4)]
    trajectories = {f"x{row}_0": episode(row, shape=((length,),)) for row, length in enumerate(lengths)}
    correction = RolloutCorrectionSettings(level=level, cap=1.3, reject_below=below, reject_above=above)
    weights, _ = rollout_weights(correction, JoinedRows(keys, data, trajectories))
    assert expected_weights is not None
    torch.testing.assert_close(
        weights.to_padded_tensor(0.0), expected_weights.batch["rollout_is_weights"] * kept_mask
    )


@pytest.mark.heavy
def test_the_policy_loss_alone_is_weighed(verl: ModuleType, tmp_path: Path) -> None:
    model = save_tiny_model(tmp_path / "model")
    groups = make_groups(model, ((1, 2),), ((1.0, 0.0),))
    trainers = nearby(groups, seed=5)
    pipeline = toy_pipeline(
        model,
        rollout__temperature=1.3,
        train__mini_batches=1,
        train__async={"staleness": 1},
        train__entropy_coef=0.02,
        train__rollout_correction={"cap": 1.2, "reject_below": 0.8},
    )
    check_pipeline(pipeline)
    with policy_worker(pipeline, model) as worker:
        actual = update(worker, pipeline, groups, trainer_groups=trainers)

    policy = exact(model)
    policy_loss = entropy = 0.0
    for trajectory, trainer, advantage in zip(groups[0], trainers[0], (1, -1), strict=True):
        losses, entropies = [], []
        for (context, turn), (_, old) in zip(turns_of(trajectory), turns_of(trainer), strict=True):
            with torch.no_grad():
                distribution = next_tokens(policy, context, turn.completion.token_ids)
            log_probs = take_probabilities(distribution, turn.completion.token_ids)
            weights = (torch.tensor(old.completion.logprobs) - torch.tensor(turn.completion.logprobs)).exp()
            weights = weights.clamp(max=1.2) * (weights >= 0.8)
            ratio = (log_probs - torch.tensor(old.completion.logprobs)).exp()
            scale = advantage * (0.5 / (0.5**0.5 + 1e-6))
            losses.append(-weights * torch.minimum(ratio * scale, ratio.clamp(0.8, 1.2) * scale))
            entropies.append(-(distribution.exp() * distribution).sum(-1))
        policy_loss += float(torch.cat(losses).mean()) / 16
        entropy += float(torch.cat(entropies).mean()) / 16
    assert sum(actual["actor/pg_loss"]) == pytest.approx(policy_loss, rel=1e-4)
    assert sum(actual["actor/entropy_loss"]) == pytest.approx(entropy, rel=1e-5)


def test_what_verl_says_of_the_difference_is_recorded(verl: ModuleType) -> None:
    from verl import DataProto
    from verl.utils.debug.metrics import calculate_debug_metrics

    from tasks.verl.actor import VERL_METRICS

    sampler = torch.tensor([[0.5, 0.2, 0.1, 1.0], [0.8, 0.4, 0.25, 1.0]])
    ratio = torch.tensor([[1.0, 1.5, 3.0, 1.0], [0.5, 2.5, 1.0, 1.0]])
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 0]])
    batch = DataProto.from_dict(
        {
            "rollout_log_probs": sampler.log(),
            "old_log_probs": (sampler * ratio).log(),
            "response_mask": mask,
            "responses": mask,
        }
    )
    metrics = calculate_debug_metrics(batch)
    differences = [0.0, 0.1, 0.2, 0.4, 0.6, 0.0]
    assert metrics[VERL_METRICS["rollout_probs_diff_mean"]] == pytest.approx(sum(differences) / 6, abs=1e-6)
    assert metrics[VERL_METRICS["rollout_probs_diff_max"]] == pytest.approx(0.6, abs=1e-6)
    assert {"rollout_corr/mean", "rollout_corr/capped", "rollout_corr/rejected"} <= {*VERL_METRICS.values()}


@pytest.mark.heavy
def test_it_is_on_by_default_where_the_probabilities_differ(tmp_path: Path) -> None:
    on_gpus = load_pipeline(NAME)
    assert on_gpus.train.rollout_correction == RolloutCorrectionSettings(level="token", cap=2.0)
    correction = load_pipeline(NAME, overrides={"train.rollout_correction.cap": 1.2}).train.rollout_correction
    assert correction == RolloutCorrectionSettings(cap=1.2)
    assert load_pipeline(NAME, overrides={"train.rollout_correction": None}).train.rollout_correction is None
    on_a_cpu = toy_pipeline(Path("m"))
    assert on_a_cpu.train.rollout_correction is None
    pipeline_with_block = toy_pipeline(Path("m"), train__async={}, train__rollout_correction={})
    by_vllm = toy_pipeline(Path("m"), backend__rollout="vllm-cpu")
    assert by_vllm.train.rollout_correction == RolloutCorrectionSettings(level="token", cap=2.0)
    without_block = toy_pipeline(Path("m"), backend__rollout="vllm-cpu", train__rollout_correction=None)
    assert without_block.train.rollout_correction is None
    bypass = []
    for pipeline in (on_gpus, on_a_cpu, pipeline_with_block, by_vllm, without_block):
        check_pipeline(pipeline)
        config = verl_config(pipeline, model="m", checkpoints=tmp_path)
        bypass.append(config.algorithm.rollout_correction.bypass_mode)
    assert bypass == [False, True, False, False, False]


def test_where_it_has_no_effect_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train.rollout_correction is for vLLM, and for train.async"):
        check_pipeline(toy_pipeline(Path("m"), train__rollout_correction={}))


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"cap": None}, "give cap or reject_above"),
        ({"reject_above": 1.5}, r"cap 2\.0 has no effect below reject_above 1\.5"),
        ({"reject_below": 1.0}, "less than 1"),
        ({"level": "turn"}, "'token' or 'sequence'"),
    ],
)
def test_bounds_that_do_not_act_are_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RolloutCorrectionSettings.model_validate(block)
