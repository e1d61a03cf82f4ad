"""Advantages and policy losses by hand, and beside verl's own functions where both mean the same."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import pytest

from agents.tools.tool import tool
from agents.tools.types import Summary
from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.algorithms.algorithm import OnlineAlgorithm
from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.offline import OfflineAlgorithm
from tasks.algorithms.registry import ALGORITHMS, parse_algorithm, register_algorithm
from tasks.config.pipelines import load_pipeline
from tasks.data.trajectories import is_informative
from tasks.verl.config import check_pipeline
from tests.support.algorithms import parse_online
from tests.support.turn_indices import turn_indices
from tests.support.verl_toy import toy_pipeline

torch = pytest.importorskip("torch")

from bench.advantages import random_batch  # noqa: E402
from tasks.algorithms.conversations import (  # noqa: E402
    Conversations,
    Estimate,
    by_rows,
    discounted_returns,
    gae,
    turn_scores_of,
    whiten_,
)
from tasks.algorithms.losses import PolicyLoss, TokenLosses, Tokens, Vanilla  # noqa: E402
from tasks.verl.rows import TrainingRow, fields_of, parent_key, rows_of, tag_of  # noqa: E402

GROUPS = (
    # tokens and reward of each turn
    (((3, 0.0), (2, 1.0)), ((4, 0.0),), ((1, 0.25), (1, 0.0), (2, 0.5))),
    (((2, 1.0),), ((5, 1.0),)),
    (((2, 0.0),), ((1, 0.0), (3, 0.0)), ((2, 1.0),), ((6, 0.0),)),
)
"""Unequal groups: the second has equal rewards."""
SCORES = ((1.0, 0.0, 0.75), (1.0, 1.0), (0.0, 0.0, 1.0, 0.0))
NUM_PLAYED = 12


def test_a_group_of_equal_rewards_has_no_advantage_at_all() -> None:
    """The mean of equal numbers may differ from them by rounding; a deviation near 0 magnifies that."""
    batch = conversations(((((1, 0.1),),) * 3,))
    for name in ("grpo", "dr_grpo", "rloo", "opo", "maxrl", "gpg"):
        assert not advantages(name, batch).any(), name


COMPARING = ("dr_grpo", "gpg", "grpo", "grpo_passk", "maxrl", "opo", "rloo")


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize(
    "rewards",
    [
        ((10.1, 20.2), (30.3,)),
        ((0.1, 0.2, 0.7), (0.3, 0.7)),
        ((0.1,) * 10, (1.0,)),
        ((0.1, 0.2, -0.3), (0.0,)),
    ],
)
def test_the_rounding_of_a_sum_of_rewards_is_no_advantage(
    name: str, rewards: Sequence[Sequence[float]]
) -> None:
    batch = conversations(([[(2, reward) for reward in turns] for turns in rewards],))
    assert not advantages(name, batch).any()
    scores = [trajectory.reward for trajectory in batch.trajectories]
    assert not parse_online(name).has_advantages(batch.trajectories, scores)
    assert not is_informative(batch.trajectories)


def test_rewards_that_differ_by_little_are_compared_with_all_their_digits() -> None:
    """In float32, 1000 + 1e-5 is 1000."""
    batch = conversations(([[(1, 1000.0)], [(1, 1000.00001)]],))
    by_hand = 0.000005 / (0.000005 * math.sqrt(2) + 1e-6)
    expected = [pytest.approx(-by_hand, rel=1e-3), pytest.approx(by_hand, rel=1e-3)]
    assert advantages("grpo", batch)[:, 0].tolist() == expected
    assert is_informative(batch.trajectories)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("grpo", lambda r, all_r, i: (r - fmean(all_r)) / (stdev(all_r) + 1e-6)),
        ("dr_grpo", lambda r, all_r, i: r - fmean(all_r)),
        ("rloo", lambda r, all_r, i: r - fmean([*all_r[:i], *all_r[i + 1 :]])),
        ("maxrl", lambda r, all_r, i: (r - fmean(all_r)) / fmean(all_r)),
        ("gpg", lambda r, all_r, i: NUM_PLAYED / 7 * (r - fmean(all_r))),
        (
            {"name": "grpo_passk", "normalize_by_std": False},
            lambda r, all_r, i: 0.0 if r < max(all_r) or all_r.count(r) > 1 else r - sorted(all_r)[-2],
        ),
    ],
)
def test_each_conversation_has_one_advantage(name: Any, reference: Any) -> None:
    batch = conversations(GROUPS)
    actual = advantages(name, batch)
    by_hand = [reference(r, list(group), i) for group in SCORES for i, r in enumerate(group)]
    torch.testing.assert_close(actual, torch.tensor(by_hand)[:, None] * batch.mask, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("rewards", [(0.1, 0.2, -0.3), (0.3, -0.1, -0.2), (1e6 + 0.1, -1e6, -0.1)])
def test_maxrl_divides_by_no_rounding(rewards: Sequence[float]) -> None:
    """Their mean is 0."""
    assert not advantages("maxrl", conversations([[((1, reward),) for reward in rewards]])).any()


def test_opo_weighs_the_baseline_by_sampled_tokens() -> None:
    baselines = [(5 * 1.0 + 4 * 0.0 + 4 * 0.75) / 13, 1.0, 2 / 14]
    by_hand = [r - b for group, b in zip(SCORES, baselines, strict=True) for r in group]
    batch = conversations(GROUPS)
    torch.testing.assert_close(advantages("opo", batch), torch.tensor(by_hand)[:, None] * batch.mask)


def test_reinforce_plus_plus_by_hand() -> None:
    """A token's return is the discounted sum of the rewards from it on; then whitened over all tokens."""
    gamma = 0.9
    per_token: list[list[float]] = []
    for group in GROUPS:
        for turns in group:
            rewards = [x for tokens, reward in turns for x in [0.0] * (tokens - 1) + [reward]]
            per_token.append(
                [
                    sum(gamma**step * reward for step, reward in enumerate(rewards[position:]))
                    for position in range(len(rewards))
                ]
            )
    flat = [x for row in per_token for x in row]
    mean, variance = fmean(flat), stdev(flat) ** 2
    actual = advantages({"name": "reinforce_plus_plus", "gamma": gamma}, conversations(GROUPS))
    for row, values in zip(actual, per_token, strict=True):
        reference = [(x - mean) / math.sqrt(variance + 1e-8) for x in values]
        assert row[: len(values)].tolist() == pytest.approx(reference, abs=1e-5)
        assert not row[len(values) :].any()


def test_gae_by_hand() -> None:
    gamma, lam = 0.9, 0.7
    batch = conversations(GROUPS)
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(batch.mask.shape, generator=generator) * batch.mask
    actual = gae(batch.token_rewards, values, gamma=gamma, lam=lam)
    for row, (v, r, m) in enumerate(
        zip(values.tolist(), batch.token_rewards.tolist(), batch.mask, strict=True)
    ):
        length = int(m.sum())
        following = [*v[1:length], 0.0]
        deltas = [r[k] + gamma * following[k] - v[k] for k in range(length)]
        for k in range(length):
            reference = sum((gamma * lam) ** (j - k) * deltas[j] for j in range(k, length))
            assert float(actual[row, k]) == pytest.approx(reference, abs=1e-6)


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.9, 0.0)])
def test_gae_of_long_conversations_is_the_recursion(gamma: float, lam: float) -> None:
    """1,100 steps are chunks of chunks, and 130 conversations more than are computed with at once."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 1101, (130, 1), generator=generator)
    mask = torch.arange(1100) < lengths
    rewards, values = torch.randn(2, *mask.shape, generator=generator) * mask
    actual = gae(rewards, values, gamma=gamma, lam=lam)
    assert torch.equal(actual, gae(rewards, values, gamma=gamma, lam=lam))
    following_value = following_advantage = torch.zeros(130, dtype=torch.float64)
    for place in reversed(range(1100)):
        delta = rewards[:, place] + gamma * following_value - values[:, place]
        following_advantage = delta + gamma * lam * following_advantage
        following_value = values[:, place].double()
        torch.testing.assert_close(actual[:, place].double(), following_advantage, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64])
def test_rows_are_computed_with_in_any_type(dtype: Any) -> None:
    """300 rows of 1,000 numbers are more than are computed with at once."""
    values = torch.arange(300_000).view(300, 1000).to(dtype)
    assert torch.equal(by_rows(torch.sub, values, values.flip(0)), values - values.flip(0))
    assert by_rows(torch.neg, values).dtype == dtype


def test_rows_in_bfloat16_are_estimated_as_the_same_numbers_in_float32(verl: ModuleType) -> None:
    rows = first_rows()
    train = load_pipeline("textcraft-cpu", overrides={"train.algorithm": "ppo"}).train
    narrow = (torch.rand_like(fields_of(rows)["rollout_log_probs"]) - 1).bfloat16()
    actual = estimate_rows(rows, train, narrow)
    expected = estimate_rows(rows, train, narrow.float())
    for name in ("advantages", "returns"):
        for row, expected_row in zip(
            actual.fields[name].unbind(), expected.fields[name].unbind(), strict=True
        ):
            assert torch.equal(row, expected_row)
    assert actual.metrics == expected.metrics


def first_rows() -> list[TrainingRow]:
    group = [conversation(turns, group=0, sample_index=i) for i, turns in enumerate(GROUPS[0])]
    return rows_of("uid", group)


def estimate_rows(rows: Sequence[TrainingRow], train: Any, log_probs: Any) -> Any:
    """The estimate of `rows` with `log_probs` of their tokens, and twice as much as values of a critic."""
    from tasks.verl.advantages import JoinedRows, estimate_advantages

    fields = fields_of(rows)
    fields["old_log_probs"], fields["values"] = log_probs, log_probs * 2
    trajectories = {parent_key(row.key): row.trajectory for row in rows}
    return estimate_advantages(
        train,
        JoinedRows([row.key for row in rows], fields, trajectories),
        trajectories=trajectories,
        greedy_rewards={},
        teacher_scores=None,
        num_played=3,
        context_length=64,
    )


def per_conversation(batch: Conversations) -> object:
    return Estimate(batch.scores)


def per_turn_and_token(batch: Conversations) -> object:
    return Estimate(batch.spread(batch.scores), returns=batch.turn_scores)


def no_estimate(batch: Conversations) -> object:
    return batch.spread(batch.scores)


def no_tensor(batch: Conversations) -> object:
    return Estimate(batch.spread(batch.scores).tolist())  # type: ignore[arg-type]


def no_end(batch: Conversations) -> object:
    raise KeyError("limit")


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (per_conversation, r"'mine' returned advantages of shape \(3,\); return \[C, T\], here \(3, \d+\)"),
        (per_turn_and_token, r"'mine' returned returns of shape \(3, \d\); return \[C, T\], here \(3, \d+\)"),
        (no_estimate, r"'mine' returned a Tensor; return an Estimate"),
        (no_tensor, r"'mine' returned advantages as a list; return a tensor of \[C, T\]"),
        (no_end, rf"'mine': estimate raised KeyError: 'limit' \(.*:{no_end.__code__.co_firstlineno + 1}\)$"),
    ],
)
def test_what_an_algorithm_of_a_users_returns_is_checked(
    verl: ModuleType, estimator: Callable[[Conversations], object], message: str
) -> None:
    class Mine(OnlineAlgorithm):
        name: str = "mine"

        def estimate(self, batch: Conversations) -> Any:
            return estimator(batch)

    rows = first_rows()
    train = load_pipeline("textcraft-cpu").train.model_copy(update={"algorithm": Mine()})
    with pytest.raises(ConfigError, match=message):
        estimate_rows(rows, train, fields_of(rows)["rollout_log_probs"])


def bare_losses(tokens: Tokens) -> object:
    return tokens.advantages


def losses_per_row(tokens: Tokens) -> object:
    return TokenLosses(tokens.advantages.sum(1))


def clipped_share(tokens: Tokens) -> object:
    return TokenLosses(tokens.advantages, clipped=0.5)  # type: ignore[arg-type]


def no_ratios(tokens: Tokens) -> object:
    raise KeyError("ratios")


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (bare_losses, r"loss 'mine' returned a Tensor; return TokenLosses"),
        (losses_per_row, r"'mine' returned losses as \(3,\); return a tensor of \[B, R\], here \(3, 7\)"),
        (clipped_share, r"'mine' returned clipped as a float; return a tensor of \[B, R\]"),
        (no_ratios, r"'mine': per_token raised KeyError: 'ratios' \(.*test_algorithms\.py:\d+\)$"),
    ],
)
def test_what_a_loss_of_a_users_returns_is_checked(
    verl: ModuleType, compute: Callable[[Tokens], object], message: str
) -> None:
    from tasks.verl.loss import compute_token_losses

    class Mine(PolicyLoss):
        name: str = "mine"

        def per_token(self, tokens: Tokens) -> Any:
            return compute(tokens)

    with pytest.raises(ConfigError, match=message):
        compute_token_losses(Mine(), tokens(loss_inputs()))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("of the GPU"), MemoryError()], ids=repr)
def test_a_lack_of_memory_is_no_fault_of_a_users_algorithm(verl: ModuleType, error: Exception) -> None:
    class Mine(OnlineAlgorithm):
        name: str = "mine"

        def estimate(self, batch: Conversations) -> Any:
            raise error

    rows = first_rows()
    train = load_pipeline("textcraft-cpu").train.model_copy(update={"algorithm": Mine()})
    with pytest.raises(type(error)) as error_info:
        estimate_rows(rows, train, fields_of(rows)["rollout_log_probs"])
    assert error_info.value is error


def test_numbers_of_conversations_and_turns_are_whitened_over_their_tokens() -> None:
    batch = conversations(GROUPS)
    lengths = batch.turn_lengths
    for per_part, counts, spread in (
        (batch.scores, batch.lengths, batch.spread),
        (batch.turn_scores, lengths, batch.spread_turns),
        (spread_far(batch), batch.mask, lambda values: values),
    ):
        tokens = spread(per_part)[batch.mask].tolist()
        mean, deviation = fmean(tokens), stdev(tokens)
        actual = spread(whiten_(per_part.clone(), counts))
        assert actual[batch.mask].tolist() == pytest.approx(
            [(x - mean) / deviation for x in tokens], abs=1e-5
        )
        assert not actual[~batch.mask].any()


def spread_far(batch: Conversations) -> Any:
    """[C, T], far from 0: a variance that is a difference of squares would be lost in rounding."""
    values = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(0))
    return (100 + values) * batch.mask


def test_remax_compares_with_the_greedy_episode_of_the_item() -> None:
    batch = conversations(GROUPS, greedy=[0.5, 1.0, 0.25])
    actual = advantages("remax", batch)
    returns = discounted_returns(batch.token_rewards, gamma=1.0)
    greedy = [0.5] * 3 + [1.0] * 2 + [0.25] * 4
    for row, baseline in enumerate(greedy):
        for position in range(int(batch.mask[row].sum())):
            assert float(actual[row, position]) == pytest.approx(float(returns[row, position]) - baseline)
    assert float(returns[2, 0]) == 0.75, "the first token of the third conversation sees both its rewards"


def test_gdpo_normalises_each_reward_apart() -> None:
    """A metric on a hundred times the scale has the same say."""
    trajectories = [
        conversation(((1, reward),), group=0, sample_index=i, metrics={"points": points})
        for i, (reward, points) in enumerate([(1.0, 0.0), (0.0, 100.0), (0.0, 0.0)])
    ]
    actual = advantages({"name": "gdpo", "rewards": {"reward": 1, "points": 1}}, batch_of(trajectories))
    assert float(actual[0, 0]) == pytest.approx(float(actual[1, 0]), abs=1e-4)
    missing = parse_online({"name": "gdpo", "rewards": {"point": 1}})
    with pytest.raises(WingspanError, match=r"'point', which x_0, sample 0, does not have; it has: points"):
        missing.estimate(batch_of(trajectories))


@pytest.mark.parametrize(
    ("name", "verl_name", "options"),
    [
        ("grpo", "grpo", {}),
        ("dr_grpo", "grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "rloo", {}),
        ("opo", "opo", {}),
        ("grpo_passk", "grpo_passk", {}),
        ("reinforce_plus_plus", "reinforce_plus_plus", {}),
        ("reinforce_plus_plus_baseline", "reinforce_plus_plus_baseline", {}),
        ("ppo", "gae", {}),
        ("optimal_token_baseline", "tir_optimal_token_baseline", {}),
    ],
)
def test_estimators_agree_with_verls(
    verl: ModuleType, name: str, verl_name: str, options: dict[str, Any]
) -> None:
    """On one segment a conversation, where verl's are right; theirs see observation tokens, ours do not."""
    import numpy as np
    from verl import DataProto
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.ray_trainer import compute_advantage

    batch = conversations(GROUPS, with_values=True)
    mask, positions = with_observations(batch)
    shape = mask.shape

    def lay_out(values: Any) -> Any:
        laid_out = torch.full(shape, 0.0)
        laid_out[positions] = values[batch.mask]
        return laid_out

    data = DataProto.from_dict(
        tensors={
            "response_mask": mask.float(),
            "token_level_rewards": lay_out(batch.token_rewards),
            "values": lay_out(batch.values),
            "old_log_probs": lay_out(batch.old_log_probs),
            "sum_pi_squared": lay_out(batch.sum_pi_squared),
        },
        non_tensors={"uid": np.array([str(g) for g in batch.group.tolist()], dtype=object)},
    )
    config = AlgoConfig(gamma=1.0, lam=1.0, **options)
    result = compute_advantage(data, verl_name, 1.0, 1.0, config=config, **options)
    reference = torch.zeros(batch.mask.shape)
    reference[batch.mask] = result.batch["advantages"][positions].float()
    torch.testing.assert_close(advantages(name, batch), reference, atol=1e-5, rtol=1e-4)


LOSSES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("vanilla", "vanilla", {}, {}),
    (
        "vanilla",
        "vanilla",
        {"clip_high": 0.28, "dual_clip": 1.5},
        {"clip_ratio_high": 0.28, "clip_ratio_c": 1.5},
    ),
    (
        "gspo",
        "gspo",
        {"clip_low": 0.01, "clip_high": 0.02},
        {"clip_ratio_low": 0.01, "clip_ratio_high": 0.02},
    ),
    ("cispo", "cispo", {"clip_low": 0.2, "clip_high": 0.3}, {"clip_ratio_high": 0.3}),
    (
        "dppo_tv",
        "dppo_tv",
        {"divergence_low": 0.05, "divergence_high": 0.1, "max_ratio": 1.2},
        {"clip_ratio_low": 0.05, "clip_ratio_high": 0.1, "clip_ratio_c": 1.2},
    ),
    (
        "dppo_kl",
        "dppo_kl",
        {"divergence_low": 0.01, "divergence_high": 0.02},
        {"clip_ratio_low": 0.01, "clip_ratio_high": 0.02, "clip_ratio_c": 20.0},
    ),
    ("gpg", "gpg", {}, {}),
    (
        "kl_cov",
        "kl_cov",
        {"share": 0.2, "coef": 0.5},
        {"policy_loss": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.5}},
    ),
    (
        "clip_cov",
        "clip_cov",
        {"share": 1.0, "lowest": 0.01, "highest": 5.0},
        {"policy_loss": {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.01}},
    ),
    ("dro", "dro", {"beta": 0.3}, {"policy_loss": {"dro_beta": 0.3}}),
]


@pytest.mark.parametrize(("name", "verl_name", "options", "verl_options"), LOSSES)
def test_losses_and_gradients_agree_with_verls(
    verl: ModuleType, name: str, verl_name: str, options: dict[str, Any], verl_options: dict[str, Any]
) -> None:
    """On rows that are whole conversations, averaged over tokens."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig
    from verl.workers.config.actor import PolicyLossConfig

    inputs = loss_inputs()
    mask = inputs["mask"]
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        **{key: value for key, value in verl_options.items() if key != "policy_loss"},
        policy_loss=PolicyLossConfig(loss_mode=verl_name, **verl_options.get("policy_loss", {})),
    )
    theirs = inputs["log_probs"].clone().requires_grad_()
    reference, _ = get_policy_loss_fn(verl_name)(
        old_log_prob=inputs["old_log_probs"],
        log_prob=theirs,
        advantages=inputs["advantages"],
        response_mask=mask.double(),
        loss_agg_mode="token-mean",
        config=config,
    )
    ours = inputs["log_probs"].clone().requires_grad_()
    actual = loss_of(name, options).per_token(tokens(inputs | {"log_probs": ours})).losses[mask].mean()
    torch.testing.assert_close(actual, reference)
    reference.backward()
    actual.backward()
    torch.testing.assert_close(ours.grad * mask, theirs.grad * mask)
    assert ours.grad.any()


def test_clip_cov_draws_by_its_seed_alone() -> None:
    inputs = loss_inputs()
    clip_cov = loss_of("clip_cov", {"share": 0.1, "lowest": -9.0, "highest": 9.0})

    def chosen_tokens(seed: int) -> list[list[int]]:
        torch.rand(seed + 1)  # whatever else has drawn
        is_clipped = clip_cov.per_token(replace(tokens(inputs), seed=seed)).clipped
        assert is_clipped is not None
        return is_clipped.nonzero().tolist()

    assert chosen_tokens(3) == chosen_tokens(3)
    assert len({str(chosen_tokens(seed)) for seed in range(9)}) > 1


def test_sapo_by_hand() -> None:
    """verl's averages over rows whatever it is told, so the terms are compared one by one."""
    inputs = loss_inputs()
    losses = loss_of("sapo", {"tau_positive": 0.7, "tau_negative": 1.4}).per_token(tokens(inputs)).losses
    for row, position in inputs["mask"].nonzero().tolist():
        advantage = float(inputs["advantages"][row, position])
        ratio = math.exp(float(inputs["log_probs"][row, position] - inputs["old_log_probs"][row, position]))
        tau = 0.7 if advantage > 0 else 1.4
        reference = -advantage * 4 / tau / (1 + math.exp(-tau * (ratio - 1)))
        assert float(losses[row, position]) == pytest.approx(reference, rel=1e-9)


@pytest.mark.parametrize("name", ["gspo", "geo_mean"])
def test_a_ratio_of_sequences_is_one_of_whole_conversations(name: str) -> None:
    """Two rows of one conversation have the loss of the same tokens in one row."""
    inputs = loss_inputs()
    whole = loss_of(name).per_token(tokens(inputs)).losses
    cut = split_row(inputs, row=1, position=3)
    parts = loss_of(name).per_token(tokens(cut, conversation=[0, 1, 1, 2], lengths=[7, 5, 5, 6])).losses
    torch.testing.assert_close(parts[1, :3], whole[1, :3])
    torch.testing.assert_close(parts[2, :2], whole[1, 3:5])
    torch.testing.assert_close(parts[[0, 3]], whole[[0, 2]])
    only_first = {key: value[:2] for key, value in cut.items()}
    with pytest.raises(WingspanError, match="only a part of a conversation's segments"):
        loss_of(name).per_token(tokens(only_first, conversation=[0, 1], lengths=[7, 5]))


@pytest.mark.parametrize("name", ["gspo", "geo_mean"])
def test_a_padding_row_of_verls_changes_no_ratio_of_sequences(verl: ModuleType, name: str) -> None:
    """It copies the numbers of the step's first row, and may be in a micro-batch without that row."""
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template

    group = [conversation(((count, 1.0),), group=0, sample_index=i) for i, count in enumerate((7, 5, 6))]
    rows = rows_of("uid", group)
    fields = fields_of(rows)
    padding, _ = construct_minimal_padding_template(fields[0], tag_of(rows[0], step=1), 0)
    assert not padding["response_mask"].any()
    inputs = loss_inputs()
    whole = loss_of(name).per_token(tokens(inputs)).losses
    for first in (0, 1):  # with the row that is copied, and without
        padded_inputs = {key: torch.cat([x[first:], torch.zeros_like(x[:1])]) for key, x in inputs.items()}
        padded = tokens(
            padded_inputs,
            conversation=[*fields["conversation"][first:].tolist(), int(padding["conversation"])],
            lengths=[*fields["conversation_tokens"][first:].tolist(), int(padding["conversation_tokens"])],
        )
        losses = loss_of(name).per_token(padded).losses
        torch.testing.assert_close(losses[:-1], whole[first:])
        assert losses.isfinite().all()


def test_gspo_and_geo_mean_by_hand() -> None:
    inputs = loss_inputs()
    gspo = loss_of("gspo", {"clip_low": 0.05, "clip_high": 0.1}).per_token(tokens(inputs)).losses
    geo_mean = loss_of("geo_mean", {"clip_low": 0.1, "clip_high": 0.2}).per_token(tokens(inputs)).losses
    for row in range(3):
        positions = inputs["mask"][row].nonzero().squeeze(1).tolist()
        log_ratios = [float((inputs["log_probs"] - inputs["old_log_probs"])[row, p]) for p in positions]
        all_advantages = [float(inputs["advantages"][row, p]) for p in positions]
        ratio = math.exp(fmean(log_ratios))
        for position, advantage in zip(positions, all_advantages, strict=True):
            clipped_ratio = min(max(ratio, 0.95), 1.1)
            reference = max(-advantage * ratio, -advantage * clipped_ratio)
            assert float(gspo[row, position]) == pytest.approx(reference, rel=1e-9)
        pessimistic = [
            min(x, 0.2) if a > 0 else max(x, -0.1) if a < 0 else 0.0
            for x, a in zip(log_ratios, all_advantages, strict=True)
        ]
        reference = -fmean(all_advantages) * math.exp(fmean(pessimistic))
        assert geo_mean[row, positions].tolist() == pytest.approx([reference] * len(positions), rel=1e-9)


def test_geo_mean_counts_the_tokens_that_lose_their_gradient() -> None:
    """With an advantage above 0 those of high ratio, below 0 those of low ratio, as in PPO."""
    inputs = loss_inputs()
    log_probs = inputs["log_probs"].clone().requires_grad_()
    result = loss_of("geo_mean", {"clip_low": 0.1, "clip_high": 0.2}).per_token(
        tokens(inputs | {"log_probs": log_probs})
    )
    result.losses[inputs["mask"]].sum().backward()
    mask = inputs["mask"]
    assert result.clipped is not None
    assert log_probs.grad is not None
    assert result.clipped[mask].tolist() == (log_probs.grad[mask] == 0).tolist()
    assert 0 < int(result.clipped[mask].sum()) < int(mask.sum())


REQUIRED_VALUES: dict[str, dict[str, Any]] = {
    "distill": {"teacher": "models/teacher"},
    "gdpo": {"rewards": {"reward": 1.0}},
    "sft": {"data": ["episodes.jsonl"]},
}


def test_every_algorithm_is_named_by_its_key() -> None:
    for name in ALGORITHMS:
        algorithm = parse_algorithm({"name": name, **REQUIRED_VALUES.get(name, {})})
        assert algorithm.name == name
        assert parse_algorithm(algorithm.model_dump()) == algorithm, "what is recorded can be read"


@pytest.mark.parametrize(
    ("parameters", "with_reward"),
    [
        ({"name": "graphgpo", "episode_weight": 0}, {"episode_weight": 0.5}),
        ({"name": "gdpo", "rewards": {"m": 1.0}}, {"rewards": {"m": 1.0, "reward": 0.5}}),
        ({"name": "gdpo", "rewards": {"m": 1.0, "reward": 0.0}}, {"rewards": {"reward": 1.0}}),
    ],
)
def test_a_penalty_in_a_reward_that_has_no_effect_is_refused(
    parameters: dict[str, Any], with_reward: dict[str, Any]
) -> None:
    """The KL penalty of a token changes some advantage, or `train.kl.place: reward` is refused."""
    batch = random_batch(16, 32)
    with_metric = [replace(t, metrics={"m": float(i % 3)}) for i, t in enumerate(batch.trajectories)]
    penalty = torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0)) * batch.mask
    batch = replace(batch, trajectories=with_metric)
    kl = {"coef": 0.1, "place": "reward"}
    for algorithm, has_effect in ((parameters, False), (parameters | with_reward, True)):
        changed = advantages(algorithm, replace(batch, kl_penalty=penalty))
        assert torch.equal(changed, advantages(algorithm, batch)) is not has_effect
        pipeline = load_pipeline("textcraft-cpu", overrides={"train.algorithm": algorithm, "train.kl": kl})
        if has_effect:
            check_pipeline(pipeline)
            continue
        with pytest.raises(ConfigError, match=r"kl\.place reward: .* does not use the reward of the episode"):
            check_pipeline(pipeline)


def test_a_loss_that_averages_advantages_is_refused_where_they_differ_within_a_conversation() -> None:
    batch = random_batch(16, 32)
    teacher = batch.old_log_probs - torch.rand(batch.mask.shape, generator=torch.Generator().manual_seed(0))
    batch = replace(batch, teacher_log_probs=teacher)
    refused = []
    for name in ALGORITHMS:
        if not issubclass(ALGORITHMS.find(name), OnlineAlgorithm):
            continue
        algorithm = {"name": name, **REQUIRED_VALUES.get(name, {})}
        found = advantages(algorithm, batch)
        if torch.equal(found, found[:, :1].expand_as(found)):
            assert parse_online(algorithm | {"loss": "geo_mean"}).loss.name == "geo_mean"
            continue
        refused.append(name)
        with pytest.raises(ValueError, match="geo_mean takes the mean of a conversation's advantages"):
            parse_online(algorithm | {"loss": "geo_mean"})
    assert {"gigpo", "turn_rloo", "turn_ppo", "ppo", "distill"} < set(refused)


@tool
def forget(keep: str) -> Summary | str:
    """Begin anew.

    Args:
        keep: What is not to be forgotten.
    """
    return Summary(keep, too_long="Too long.")


def test_the_optimal_token_baseline_is_a_mean_of_returns_where_the_policy_is_certain() -> None:
    """1 − 2·π + Σπ² is 0 or more; in float32, that of a π near 1 may come out below."""
    batch = conversations([[((6, float(i % 2)),) for i in range(8)] for _ in range(50)])
    logits = torch.randn(*batch.mask.shape, 400, generator=torch.Generator().manual_seed(0))
    logits[..., 0] += torch.linspace(12.0, 22.0, len(logits)).unsqueeze(1)
    squares = (torch.logsumexp(2 * logits, -1) - 2 * torch.logsumexp(logits, -1)).exp()  # as verl does
    batch = replace(batch, old_log_probs=logits.log_softmax(-1)[..., 0], sum_pi_squared=squares)
    assert (1 - 2 * batch.old_log_probs.exp() + squares).min() < 0
    assert advantages("optimal_token_baseline", batch).abs().max() <= 1


@pytest.mark.parametrize("name", ["gspo", "geo_mean"])
@pytest.mark.parametrize(
    ("agent", "cause"),
    [
        ({"program": "tests.support.program_toy:play"}, "agent.program tests.support.program_toy:play"),
        ({"tools": ["calculator", "summarize"], "format": "hermes"}, "the tool summarize"),
        ({"tools": [f"{__name__}:forget"], "format": "hermes"}, "the tool forget"),
        ({"context": {"when_full": "drop"}}, "agent.context"),
        ({"context": {"keep_thoughts": False}}, "agent.context"),
    ],
)
def test_a_ratio_of_sequences_is_refused_where_mini_batches_may_separate_a_conversation(
    name: str, agent: dict[str, Any], cause: str
) -> None:
    options = {f"agent__{key}": value for key, value in agent.items()}
    options |= {"train__algorithm": {"name": "grpo", "loss": name}}
    with pytest.raises(ConfigError, match=f"{name}: .* a whole conversation, which {cause} may cut into"):
        check_pipeline(toy_pipeline(Path("m"), train__mini_batches=2, **options))
    check_pipeline(toy_pipeline(Path("m"), train__mini_batches=1, **options))
    del options[f"agent__{next(iter(agent))}"]
    check_pipeline(toy_pipeline(Path("m"), train__mini_batches=2, **options))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("grop", "unknown algorithm 'grop'; did you mean 'grpo'"),
        (
            {"name": "grpo", "critic": {"lr": 1e-4}},
            "grpo: critic: unknown key; 'critic' is a key of ppo, turn_ppo$",
        ),
        ({"name": "grpo", "clip_high": 0.3}, "grpo: clip_high: unknown key; 'clip_high' is a key of loss$"),
        ("nowhere_at_all.x:Mine", "'nowhere_at_all.x:Mine' cannot be imported: .*'nowhere_at_all'"),
        (f"{__name__}:WithoutEstimate", "WithoutEstimate.*, which has no `estimate`; implement it"),
        (f"{__name__}:parse_online", "give a subclass of OnlineAlgorithm or OfflineAlgorithm"),
        (
            {"name": "grpo", "loss": {"clip_hihg": 0.3}},
            "grpo: loss.vanilla.clip_hihg: unknown key; did you mean 'clip_high'",
        ),
        (
            {"name": "grpo", "loss": {"name": "vanilla", "loss": 0.9}},
            r"grpo: loss\.vanilla\.loss: unknown key$",
        ),
        ({"name": "grpo", "loss": "vanila"}, "vanila"),
        (
            {"name": "rloo", "loss": {"name": "gspo", "clip_high": -1}},
            "loss.gspo.clip_high: Input should be greater than 0",
        ),
        ({"name": "gigpo", "step_weight": 0, "gamma": 0.5}, "gamma 0.5 is of the turns' advantages"),
        ({"name": "graphgpo", "step_weight": 0, "distance_discount": 0.5}, "distance_discount 0.5 is of the"),
        ({"name": "grpo", "loss": {"name": "clip_cov", "lowest": 5}}, "lowest 5.0 is not below highest 5.0"),
        ({"name": "gdpo", "rewards": {"reward": 0.0}}, "with weights of 0 there are no advantages"),
        ({"name": "graphgpo", "step_weight": 0, "episode_weight": 0}, "leave no advantages; raise one"),
        ({"name": "graphgpo", "episode_weight": 0, "overlong": {}}, r"no effect \(episode_weight 0\)"),
        ({"name": "gdpo", "rewards": {"m": 1.0}, "overlong": {}}, "no effect .rewards do not name `reward`"),
        ({"name": "distill", "teacher": "m", "overlong": {}}, r"no effect \(reward_weight 0\); leave it out"),
        ({"name": "ppo", "dynamic_sampling": {}}, "ppo learns from groups of equal rewards, too"),
        ({"lr": 1}, "names no algorithm"),
        (3, "names no algorithm"),
    ],
)
def test_what_an_algorithm_does_not_know_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_algorithm(value)


class WithoutEstimate(OnlineAlgorithm):
    name: str = "without_estimate"


def test_only_online_algorithms_estimate_and_one_that_does_not_is_refused() -> None:
    classes = [ALGORITHMS.find(name) for name in ALGORITHMS]
    offline = [found for found in classes if not issubclass(found, OnlineAlgorithm)]
    assert offline
    assert all(issubclass(found, OfflineAlgorithm) and not hasattr(found, "estimate") for found in offline)
    assert not any(issubclass(found, OfflineAlgorithm) for found in classes if found not in offline)
    with ALGORITHMS.scope(), pytest.raises(ConfigError, match="has no `estimate`"):
        register_algorithm("without_estimate", WithoutEstimate)


class WithAnyLoss(Grpo):
    name: str = "with_any_loss"
    loss: PolicyLoss = Vanilla()  # type: ignore[assignment]


def test_an_algorithm_whose_type_of_loss_cannot_be_made_is_refused() -> None:
    with (
        ALGORITHMS.scope(),
        pytest.raises(ConfigError, match=r"'with_any_loss': the type of `loss` is .*PolicyLoss"),
    ):
        register_algorithm("with_any_loss", WithAnyLoss)


def test_a_loss_without_a_name_is_the_algorithms_own() -> None:
    dapo = parse_online({"name": "dapo", "loss": {"dual_clip": 5}})
    assert isinstance(dapo.loss, Vanilla)
    assert (dapo.loss.name, dapo.loss.clip_high, dapo.loss.dual_clip) == ("vanilla", 0.28, 5)
    assert parse_online({"name": "rloo", "loss": "cispo"}).loss.name == "cispo"


def advantages(algorithm: Any, batch: Conversations) -> Any:
    return parse_online(algorithm).estimate(batch).advantages


def conversations(
    groups: Sequence[Sequence[Sequence[tuple[int, float]]]],
    *,
    greedy: Sequence[float] | None = None,
    with_values: bool = False,
) -> Conversations:
    trajectories = [
        conversation(turns, group=group, sample_index=i)
        for group, members in enumerate(groups)
        for i, turns in enumerate(members)
    ]
    return batch_of(trajectories, greedy=greedy, with_values=with_values)


def batch_of(
    trajectories: Sequence[Trajectory], *, greedy: Sequence[float] | None = None, with_values: bool = False
) -> Conversations:
    lengths = torch.tensor([sum(len(turn.completion.token_ids) for turn in t.turns) for t in trajectories])
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    group = torch.tensor([int(t.item.item_id.removeprefix("x_")) for t in trajectories])
    generator = torch.Generator().manual_seed(1)
    values, probabilities, rest = torch.rand(3, *mask.shape, generator=generator) * mask
    probabilities = probabilities.clamp(min=1e-3)
    return Conversations(
        trajectories=trajectories,
        group=group,
        mask=mask,
        turn_scores=turn_scores_of(trajectories),
        old_log_probs=probabilities.log() * mask,
        # of the sampled token, and of all others
        sum_pi_squared=(probabilities.square() + rest * (1 - probabilities).square()) * mask,
        values=values if with_values else None,
        greedy_rewards=None if greedy is None else torch.tensor(greedy)[group],
        num_played=NUM_PLAYED,
    )


def with_observations(batch: Conversations) -> tuple[Any, tuple[Any, Any]]:
    """A mask with two observed tokens between turns, and where the sampled tokens lie in it."""
    rows, columns = batch.mask.nonzero(as_tuple=True)
    columns = columns + 2 * turn_indices(batch)[batch.mask]
    mask = torch.zeros(len(batch.mask), int(columns.max()) + 1, dtype=torch.bool)
    mask[rows, columns] = True
    return mask, (rows, columns)


def conversation(
    turns: Sequence[tuple[int, float]],
    *,
    group: int,
    sample_index: int,
    metrics: dict[str, float] | None = None,
) -> Trajectory:
    def turn(num_tokens: int, reward: float) -> Turn:
        completion = Completion(
            token_ids=(7,) * num_tokens,
            logprobs=(-1.0,) * num_tokens,
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )
        return Turn(
            completion=completion, text="", action="", observation="", reward=reward, observation_ids=(8, 9)
        )

    reward = sum(reward for _, reward in turns)
    return Trajectory(
        item=Item(item_id=f"x_{group}", env="x"),
        sample_index=sample_index,
        prompt_ids=(1, 2),
        turns=tuple(turn(*values) for values in turns),
        stop_reason=StopReason.TERMINATED,
        reward=reward,
        success=reward > 0,
        seconds=0.0,
        metrics=metrics or {},
    )


def loss_of(name: str, options: dict[str, Any] | None = None) -> PolicyLoss:
    return parse_online({"name": "grpo", "loss": {"name": name, **(options or {})}}).loss


def loss_inputs() -> dict[str, Any]:
    """Three conversations of 7, 5 and 6 tokens in float64; some ratios are far from 1."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([7, 5, 6])
    mask = torch.arange(7) < lengths.unsqueeze(1)
    old = -torch.rand(3, 7, generator=generator, dtype=torch.float64) * 2 - 0.05
    step = torch.randn(3, 7, generator=generator, dtype=torch.float64) * 0.4
    return {
        "log_probs": (old + step).clamp(max=-0.01) * mask,
        "old_log_probs": old * mask,
        "advantages": torch.tensor([[1.2], [-0.7], [0.4]], dtype=torch.float64) * mask,
        "mask": mask,
    }


def tokens(
    inputs: dict[str, Any], *, conversation: Sequence[int] = (0, 1, 2), lengths: Sequence[int] = (7, 5, 6)
) -> Tokens:
    return Tokens(
        **inputs, conversation=torch.tensor(conversation), conversation_tokens=torch.tensor(lengths)
    )


def split_row(inputs: dict[str, Any], *, row: int, position: int) -> dict[str, Any]:
    """One row as two segments."""

    def split(values: Any) -> Any:
        first, second = torch.zeros_like(values[row]), torch.zeros_like(values[row])
        first[:position] = values[row, :position]
        second[: len(values[row]) - position] = values[row, position:]
        return torch.stack([*values[:row], first, second, *values[row + 1 :]])

    return {key: split(value) for key, value in inputs.items()}
