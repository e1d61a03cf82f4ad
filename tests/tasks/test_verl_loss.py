"""verl's update in this process, against a loop over whole trajectories that knows of no rows."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.verl.rows import count_mini_batches, fields_of, has_gradient_without_advantage, rows_of
from tests.support.examples import examples
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import policy_worker, turns_of, update

torch = pytest.importorskip("torch")

Groups = list[list[Trajectory]]

CLIP, KL_COEF, ENTROPY_COEF, TEMPERATURE = 0.2, 0.05, 0.02, 1.3
OBSERVATION_LOSS = 0.25
SEGMENTS = ((1, 1, 2, 1), (3, 1, 3, 2))
"""Of each trajectory of each group: 14 rows, and the 7th is in the middle of a trajectory."""
REWARDS = ((1.0, 0.0, 0.25, 0.0), (0.0, 1.0, 1.0, 0.0))
NUM_PLAYED = 16
"""Episodes of a step, of which 8 are trained on."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def worker(verl: ModuleType, model: Path) -> Iterator[Any]:
    with policy_worker(pipeline(), model) as actor_worker:
        yield actor_worker


@pytest.fixture(scope="module")
def groups(model: Path) -> Groups:
    """Sampled by a policy near the one that is trained: ratios are not 1, and some are clipped."""
    return make_groups(model, SEGMENTS, REWARDS)


def pipeline(**train: Any) -> Pipeline:
    """A micro-batch holds a few rows; the rate is so small that mini-batches meet the same weights."""
    options = {
        "mini_batches": 1,
        "micro_batch_tokens": 160,
        "lr": 1e-12,
        "algorithm": {"name": "grpo", "loss": {"clip_low": CLIP, "clip_high": CLIP}},
        "kl": {"coef": KL_COEF},
        "entropy_coef": ENTROPY_COEF,
    } | train
    return toy_pipeline(
        Path("model"),
        rollout__temperature=TEMPERATURE,
        **{f"train__{name}": v for name, v in options.items()},
    )


def test_every_trajectory_weighs_the_same(worker: Any, model: Path, groups: Groups) -> None:
    reference = nearby(groups, seed=3)
    reference_loss = loss_by_hand(model, groups, reference)
    actual = update(worker, pipeline(), groups, reference=reference)
    assert sum(actual["actor/pg_loss"]) == pytest.approx(reference_loss.policy, abs=1e-7)
    assert sum(actual["kl_loss"]) == pytest.approx(reference_loss.kl, rel=1e-5)
    assert sum(actual["actor/entropy_loss"]) == pytest.approx(reference_loss.entropy, rel=1e-5)
    assert actual["grad_norm"] == pytest.approx([reference_loss.grad_norm], rel=1e-5)
    assert 0 < fmean(actual["actor/pg_clipfrac"]) < 1


def test_mini_batches_may_separate_a_trajectory(worker: Any, model: Path, groups: Groups) -> None:
    rows = [row for group in groups for row in rows_of("uid", group)]
    assert rows[6].trajectory is rows[7].trajectory, "the first of two mini-batches ends within a trajectory"
    reference = nearby(groups, seed=3)
    reference_loss = loss_by_hand(model, groups, reference)
    actual = update(worker, pipeline(mini_batches=2), groups, reference=reference)
    assert len(actual["grad_norm"]) == 2
    # each is divided by the half of the episodes that were played
    assert sum(actual["actor/pg_loss"]) / 2 == pytest.approx(reference_loss.policy, abs=1e-7)
    assert sum(actual["kl_loss"]) / 2 == pytest.approx(reference_loss.kl, rel=1e-5)
    assert sum(actual["actor/entropy_loss"]) / 2 == pytest.approx(reference_loss.entropy, rel=1e-5)


def test_no_mini_batch_is_empty(worker: Any, model: Path, groups: Groups) -> None:
    """Twelve equal parts of 14 rows would be seven of two rows, and five without one."""
    actual = update(worker, pipeline(mini_batches=12, kl=None, entropy_coef=0.0), groups)
    assert len(actual["grad_norm"]) == 7
    assert all(actual["grad_norm"])
    # each is divided by the seventh of the episodes that were played
    reference_loss = loss_by_hand(model, groups, groups)
    assert sum(actual["actor/pg_loss"]) / 7 == pytest.approx(reference_loss.policy, abs=1e-7)


@given(rows=st.integers(1, 300), most=st.integers(1, 40), workers=st.integers(1, 4))
@settings(max_examples=examples(200))
def test_mini_batches_are_equal_parts_of_which_none_is_empty(rows: int, most: int, workers: int) -> None:
    count = count_mini_batches(rows, most=most, workers=workers)
    padded = -(-rows // (workers * count)) * workers * count
    assert count_mini_batches(padded, most=most, workers=workers) == count <= most
    size = padded // count
    assert (count - 1) * size < rows
    if rows % (workers * most) == 0:
        assert count == most


@pytest.mark.parametrize(("micro_batch_tokens", "mini_batches"), [(160, 1), (8192, 1), (160, 2)])
def test_kl_and_clip_fraction_are_means_over_the_tokens_of_the_step(
    worker: Any, model: Path, groups: Groups, micro_batch_tokens: int, mini_batches: int
) -> None:
    settings = pipeline(
        kl=None, entropy_coef=0.0, micro_batch_tokens=micro_batch_tokens, mini_batches=mini_batches
    )
    actual = update(worker, settings, groups)
    kl, clip_fraction = token_means_by_hand(model, groups)
    assert fmean(actual["actor/ppo_kl"]) == pytest.approx(kl, rel=1e-4)
    assert fmean(actual["actor/pg_clipfrac"]) == pytest.approx(clip_fraction, rel=1e-5)
    assert 0 < clip_fraction < 1


def token_means_by_hand(model: Path, groups: Groups) -> tuple[float, float]:
    """Of the KL to the policy that sampled, and of the tokens whose ratio is past the bound that the
    advantage pushes it to."""
    policy = exact(model)
    kls: list[float] = []
    are_clipped: list[bool] = []
    for group in groups:
        mean_reward = fmean(t.reward for t in group)
        for trajectory in group:
            for context, turn in turns_of(trajectory):
                sampled_ids = turn.completion.token_ids
                with torch.no_grad():
                    log_probs = take_probabilities(next_tokens(policy, context, sampled_ids), sampled_ids)
                log_ratios = log_probs - torch.tensor(turn.completion.logprobs)
                kls += (-log_ratios).tolist()
                is_better = trajectory.reward > mean_reward
                are_clipped += [
                    ratio > 1 + CLIP if is_better else ratio < 1 - CLIP for ratio in log_ratios.exp().tolist()
                ]
    return fmean(kls), fmean(are_clipped)


def test_observations_are_predicted_in_the_same_pass(worker: Any, model: Path, groups: Groups) -> None:
    reference = nearby(groups, seed=3)
    reference_loss = loss_by_hand(model, groups, reference, observation_loss=OBSERVATION_LOSS)
    for count in (1, 2):
        settings = pipeline(mini_batches=count, observation_loss=OBSERVATION_LOSS)
        actual = update(worker, settings, groups, reference=reference)
        assert sum(actual["observation_loss"]) / count == pytest.approx(reference_loss.observation, rel=1e-5)
        assert sum(actual["actor/pg_loss"]) / count == pytest.approx(reference_loss.policy, abs=1e-7)
        assert sum(actual["kl_loss"]) / count == pytest.approx(reference_loss.kl, rel=1e-5)
        assert sum(actual["actor/entropy_loss"]) / count == pytest.approx(reference_loss.entropy, rel=1e-5)
        if count == 1:
            assert actual["grad_norm"] == pytest.approx([reference_loss.grad_norm], rel=1e-5)


def test_without_an_observation_there_is_no_loss_of_observations(worker: Any, model: Path) -> None:
    groups_without_observations = [
        [
            replace(t, turns=tuple(replace(turn, observation_spans=()) for turn in t.turns))
            for t in make_groups(model, ((2, 1),), ((0.0, 1.0),))[0]
        ]
    ]
    settings = pipeline(kl=None, entropy_coef=0.0, observation_loss=OBSERVATION_LOSS)
    metrics = update(worker, settings, groups_without_observations)
    assert "observation_loss" not in metrics
    plain_metrics = update(worker, pipeline(kl=None, entropy_coef=0.0), groups_without_observations)
    assert metrics["grad_norm"] == plain_metrics["grad_norm"]


def test_the_sum_of_squared_probabilities_of_each_sampled_token(
    worker: Any, model: Path, groups: Groups
) -> None:
    """As `StepTrainer` asks for it."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    rows = [row for group in groups for row in rows_of("uid", group)]
    data: TensorDict = fields_of(rows)
    options = {"compute_loss": False, "calculate_sum_pi_squared": True, "temperature": TEMPERATURE}
    tu.assign_non_tensor(data, **options)
    output = worker.compute_log_prob(data)
    actual = response_from_nested(output["sum_pi_squared"], data["response_mask"]).values()
    policy = exact(model)
    reference_loss = [
        distribution.exp().square().sum(-1)
        for group in groups
        for trajectory in group
        for context, turn in turns_of(trajectory)
        for distribution in [next_tokens(policy, context, turn.completion.token_ids)]
    ]
    is_sampled = data["response_mask"].values() > 0
    torch.testing.assert_close(actual[is_sampled].double(), torch.cat(reference_loss), atol=1e-6, rtol=1e-4)
    assert not actual[~is_sampled].any()


@pytest.mark.parametrize(
    "coefficients",
    [
        {"kl": None, "entropy_coef": 0.0, "observation_loss": OBSERVATION_LOSS},
        {"kl": None, "entropy_coef": 0.0},
        {"kl": None, "entropy_coef": ENTROPY_COEF},
        {"kl": {"coef": KL_COEF}, "entropy_coef": 0.0},
        {"kl": {"coef": KL_COEF}, "entropy_coef": ENTROPY_COEF},
        *(
            {"kl": None, "entropy_coef": 0.0, "algorithm": {"name": "grpo", "loss": name}}
            for name in (
                "gspo",
                "geo_mean",
                "cispo",
                "sapo",
                "dppo_tv",
                "dppo_kl",
                "clip_cov",
                "kl_cov",
                "gpg",
                "dro",
            )
        ),
    ],
)
def test_groups_of_equal_rewards_are_left_out_where_their_gradient_is_zero(
    worker: Any, model: Path, coefficients: dict[str, Any]
) -> None:
    settings = pipeline(**coefficients)
    equal = make_groups(model, ((1, 2),), ((1.0, 1.0),))
    reference = nearby(equal, seed=3) if coefficients["kl"] else None
    [grad_norm] = update(worker, settings, equal, reference=reference)["grad_norm"]
    assert has_gradient_without_advantage(settings.train) == (grad_norm > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    policy: float
    kl: float
    entropy: float
    observation: float
    grad_norm: float


def loss_by_hand(model: Path, groups: Groups, reference: Groups, *, observation_loss: float = 0.0) -> Loss:
    """In float64, each turn by itself: the mean over a trajectory's sampled tokens, summed, by `PLAYED`; of
    observations, the mean over all tokens of the step."""
    policy = exact(model)
    sums = {"policy": torch.zeros(()), "kl": torch.zeros(()), "entropy": torch.zeros(())}
    for group, references in zip(groups, reference, strict=True):
        rewards = [t.reward for t in group]
        for trajectory, original in zip(group, references, strict=True):
            advantage = (trajectory.reward - fmean(rewards)) / (stdev(rewards) + 1e-6)
            per_token: dict[str, list[Any]] = {name: [] for name in sums}
            for (context, turn), (_, previous) in zip(turns_of(trajectory), turns_of(original), strict=True):
                distribution = next_tokens(policy, context, turn.completion.token_ids)
                log_probs = take_probabilities(distribution, turn.completion.token_ids)
                ratio = (log_probs - torch.tensor(turn.completion.logprobs)).exp()
                clipped_ratio = ratio.clamp(1 - CLIP, 1 + CLIP)
                per_token["policy"].append(-torch.minimum(ratio * advantage, clipped_ratio * advantage))
                gap = torch.tensor(previous.completion.logprobs) - log_probs
                per_token["kl"].append(gap.exp() - gap - 1)  # k3
                per_token["entropy"].append(-(distribution.exp() * distribution).sum(-1))
            for name, values in per_token.items():
                sums[name] = sums[name] + torch.cat(values).mean() / NUM_PLAYED
    losses = torch.cat([cross_entropies(policy, t) for group in groups for t in group])
    sums["observation"] = losses.mean()
    loss = sums["policy"] + KL_COEF * sums["kl"] - ENTROPY_COEF * sums["entropy"]
    loss = loss + observation_loss * sums["observation"]
    loss.backward()
    squares = [p.grad.square().sum() for p in policy.parameters()]
    parts = {name: value.item() for name, value in sums.items()}
    return Loss(grad_norm=sum(squares).item() ** 0.5, **parts)


def cross_entropies(policy: Any, trajectory: Trajectory) -> Any:
    """Of each observed token that a turn of the same segment follows, at temperature 1."""
    values = [torch.zeros(0, dtype=torch.float64)]
    are_followed = [*(turn.prompt_ids is None for turn in trajectory.turns[1:]), False]
    for (context, turn), is_followed in zip(turns_of(trajectory), are_followed, strict=True):
        if is_followed:
            before = [*context, *turn.completion.token_ids]
            logits = policy(torch.tensor([[*before, *turn.observation_ids]])).logits[0].log_softmax(-1)
            for start, end in turn.observation_spans:
                values += [
                    -logits[len(before) + position - 1, turn.observation_ids[position]].unsqueeze(0)
                    for position in range(start, end)
                ]
    return torch.cat(values)


def exact(model: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float64)


def next_tokens(policy: Any, context: tuple[int, ...], sampled_ids: Sequence[int]) -> Any:
    """[C, V]: log-probs at the places of `sampled`."""
    logits = policy(torch.tensor([[*context, *sampled_ids]])).logits[0, len(context) - 1 : -1]
    return (logits / TEMPERATURE).log_softmax(-1)


def take_probabilities(distribution: Any, sampled_ids: Sequence[int]) -> Any:
    """[C]: those of `sampled`."""
    return distribution.gather(1, torch.tensor(sampled_ids)[:, None])[:, 0]


def make_groups(model: Path, segments: Sequence[Sequence[int]], rewards: Sequence[Sequence[float]]) -> Groups:
    """Random trajectories, in each group one with so many segments for each number."""
    rng = random.Random(7)
    groups = [
        [
            random_trajectory(
                rng,
                group=group,
                sample_index=sample_index,
                segments=count,
                reward=rewards[group][sample_index],
            )
            for sample_index, count in enumerate(counts)
        ]
        for group, counts in enumerate(segments)
    ]
    policy = exact(model)

    def log_probs(context: tuple[int, ...], sampled_ids: Sequence[int]) -> list[float]:
        with torch.no_grad():
            actual: list[float] = take_probabilities(
                next_tokens(policy, context, sampled_ids), sampled_ids
            ).tolist()
        return [x + rng.gauss(0.0, 0.2) for x in actual]

    return [[with_log_probs(t, log_probs) for t in group] for group in groups]


def nearby(groups: Groups, *, seed: int) -> Groups:
    """The same tokens with the log-probs of another policy."""
    rng = random.Random(seed)
    previous = {id(turn.completion.token_ids): turn for group in groups for t in group for turn in t.turns}

    def log_probs(context: tuple[int, ...], sampled_ids: Sequence[int]) -> list[float]:
        return [x + rng.gauss(0.0, 0.3) for x in previous[id(sampled_ids)].completion.logprobs]

    return [[with_log_probs(t, log_probs) for t in group] for group in groups]


def with_log_probs(
    trajectory: Trajectory, log_probs: Callable[[tuple[int, ...], Sequence[int]], list[float]]
) -> Trajectory:
    turns = [
        replace(
            turn,
            completion=replace(
                turn.completion, logprobs=tuple(log_probs(context, turn.completion.token_ids))
            ),
        )
        for context, turn in turns_of(trajectory)
    ]
    return replace(trajectory, turns=tuple(turns))


def random_trajectory(
    rng: random.Random, *, group: int, sample_index: int, segments: int, reward: float
) -> Trajectory:
    def tokens(shortest: int, longest: int) -> list[int]:
        # none of the special ones: the padding token's embedding is zero, and has no gradient in Hugging Face
        return [rng.randrange(10, 250) for _ in range(rng.randint(shortest, longest))]

    def turn(prompt_ids: list[int] | None) -> Turn:
        sampled_ids = tokens(1, 9)
        return Turn(
            completion=Completion(
                token_ids=tuple(sampled_ids), logprobs=(), finish_reason=FinishReason.STOP, policy_version=0
            ),
            text="",
            action="",
            observation="",
            reward=0.0,
            observation_ids=tuple(tokens(3, 3)),
            observation_spans=((1, 3),) if len(sampled_ids) % 2 else ((0, 1), (2, 3)),
            prompt_ids=None if prompt_ids is None else tuple(prompt_ids),
        )

    turns = [
        turn(tokens(4, 12) if segment and not number else None)
        for segment in range(segments)
        for number in range(rng.randint(1, 3))
    ]
    return Trajectory(
        item=Item(item_id=f"x_{group}", env="x"),
        sample_index=sample_index,
        prompt_ids=(10 + group, 9, 8, 7, 6),
        turns=(*turns[:-1], replace(turns[-1], reward=reward)),
        stop_reason=StopReason.TERMINATED,
        reward=reward,
        success=reward == 1.0,
        seconds=0.0,
    )
