"""Distillation: what a teacher says of whole conversations, by hand, and a policy that learns from it."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agents.types import StopReason, Trajectory
from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline
from tasks.errors import TeacherFailed
from tasks.rollout.teacher import Teacher, check_teacher, make_teacher
from tasks.verl.config import check_pipeline
from tasks.verl.rows import trainable
from tests.support.algorithms import parse_online
from tests.support.scored_episodes import Constant, episode, episode_of, make_turn
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.support.verl_update import policy_worker, step_data, trajectories_of, turns_of, update

torch = pytest.importorskip("torch")

from agents.samplers.scoring import LocalScorer  # noqa: E402

TEMPERATURE = 1.3
SEGMENTS = ((2, 1), (1, 1))
"""Turns of each segment of a conversation."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Policy and teacher."""
    policy = save_tiny_model(tmp_path_factory.mktemp("policy"), seed=0)
    return policy, save_tiny_model(tmp_path_factory.mktemp("teacher"), seed=1)


def pipeline(policy: Path, teacher: Any, **overrides: Any) -> Pipeline:
    options = {
        "train__algorithm": {"name": "distill", "teacher": teacher, "loss": {"name": "gpg"}},
        "train__mini_batches": 1,
        "rollout__temperature": TEMPERATURE,
        "rollout__final_temperature": None,
    }
    return toy_pipeline(policy, **options | overrides)


def test_the_advantage_of_a_sampled_token_is_what_the_teacher_says_less_what_the_policy_said(
    verl: ModuleType, folders: tuple[Path, Path]
) -> None:
    """In float64, each turn by itself, on all that was there before it in its segment."""
    policy, teacher = folders
    settings = pipeline(policy, teacher)
    groups = [[episode(0), episode(1)], [episode(2, shape=((1,),))]]
    trajectories = trajectories_of(groups)
    scorer = make_teacher(settings, model=str(policy), tokenizer=tokenizer_of(policy))
    assert scorer is not None
    scores = scorer.score(trajectories, temperature=TEMPERATURE)
    data = step_data(settings, groups, teacher_scores=scores)
    exact = model_of(teacher, dtype=torch.float64)
    expected = [
        by_teacher - by_policy
        for group in groups
        for trajectory in group
        for context, turn in turns_of(trajectory)
        for by_teacher, by_policy in zip(
            log_probs(exact, context, turn.completion.token_ids), turn.completion.logprobs, strict=True
        )
    ]
    assert len({*map(len, scores.values())}) > 1
    is_sampled = data["response_mask"].values() > 0
    assert 0 < int(is_sampled.sum()) < len(is_sampled)
    assert data["advantages"].values()[is_sampled].tolist() == pytest.approx(expected, abs=1e-4)
    assert not data["advantages"].values()[~is_sampled].any()


def test_a_teacher_that_is_the_policy_teaches_nothing(verl: ModuleType, folders: tuple[Path, Path]) -> None:
    policy, _ = folders
    own = LocalScorer(policy)
    groups = [[with_log_probs_of(own, episode(0))]]
    scores = Teacher(own).score(trajectories_of(groups), temperature=TEMPERATURE)
    data = step_data(pipeline(policy, policy), groups, teacher_scores=scores)
    assert not data["advantages"].values().any()


def test_a_conversation_that_the_teacher_cannot_read_has_no_advantage(
    verl: ModuleType, folders: tuple[Path, Path]
) -> None:
    from tasks.verl.advantages import JoinedRows, estimate_advantages
    from tasks.verl.rows import fields_of
    from tests.support.verl_update import rows_of_all

    policy, _ = folders
    groups = [[episode(0, shape=((1,),)), episode(1, shape=((1,), (2,)))]]
    trajectories = trajectories_of(groups)
    short, long = trajectories.values()
    lengths = [lengths_of(t) for t in (short, long)]
    assert max(lengths[0]) < max(lengths[1])
    scores = Teacher(Constant(-2.0, max_length=max(lengths[0]))).score(trajectories, temperature=1.0)
    assert {key: set(values) for key, values in scores.items()} == {next(iter(trajectories)): {-2.0}}
    rows = rows_of_all(groups)
    data = fields_of(rows)
    data["old_log_probs"] = data["rollout_log_probs"] - 0.25  # the trainer is ahead of the sampler
    estimate = estimate_advantages(
        pipeline(policy, policy).train,
        JoinedRows([row.key for row in rows], data, trajectories),
        trajectories=trajectories,
        greedy_rewards={},
        teacher_scores=scores,
        num_played=2,
        context_length=160,
    )
    sampled = [x for turn in short.turns for x in turn.completion.logprobs]
    first, *others = estimate.fields["advantages"].unbind()
    assert first[first != 0].tolist() == pytest.approx([-2.0 - (x - 0.25) for x in sampled])
    assert not any(row.any() for row in others)
    kl = sum(x + 2.0 for x in sampled) / len(sampled)
    assert estimate.metrics == pytest.approx(
        {"distill/scored": 0.5, "distill/kl": kl, "distill/teacher_log_prob": -2.0}
    )


def test_a_failed_episode_is_dropped_and_what_is_left_of_its_group_is_distilled() -> None:
    failed = replace(episode(0), stop_reason=StopReason.ERROR, error="EnvCrashed: x", turns=())
    other = episode(1)
    train = pipeline(Path("model"), "t").train
    assert trainable([failed, other], train, context_length=160) == [other]
    assert trainable([failed], train, context_length=160) == []


def test_the_expected_gradient_is_that_of_the_reverse_kl() -> None:
    """Over all tokens of a vocabulary, each weighed by its probability."""
    generator = torch.Generator().manual_seed(3)
    logits, teacher = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    policy = logits.log_softmax(0)
    teacher = teacher.log_softmax(0)
    kl = (policy.exp() * (policy - teacher)).sum()
    (of_kl,) = torch.autograd.grad(kl, logits, retain_graph=True)
    old = policy.detach()
    one = torch.ones(7, 1, dtype=torch.bool)
    batch = conversations(old_log_probs=old[:, None], teacher_log_probs=teacher[:, None], mask=one)
    advantages = parse_online({"name": "distill", "teacher": "t"}).estimate(batch).advantages[:, 0]
    loss = -(old.exp() * advantages * (policy - old).exp()).sum()
    (of_loss,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(of_loss, of_kl)


def test_rewards_may_be_added() -> None:
    batch = conversations(
        old_log_probs=torch.tensor([[-1.0], [-2.0]]),
        teacher_log_probs=torch.tensor([[-0.5], [-3.0]]),
        mask=torch.ones(2, 1, dtype=torch.bool),
        turn_scores=torch.tensor([[1.0], [0.0]], dtype=torch.float64),
    )
    algorithm = parse_online({"name": "distill", "teacher": "t", "reward_weight": 0.1})
    deviation = math.sqrt(0.5)
    assert algorithm.estimate(batch).advantages[:, 0].tolist() == pytest.approx(
        [0.5 + 0.1 * 0.5 / deviation, -1.0 - 0.1 * 0.5 / deviation], abs=1e-5
    )


def test_the_loss_is_that_of_verls_distillation_by_policy_gradient(
    verl: ModuleType, folders: tuple[Path, Path]
) -> None:
    """On conversations of one segment and at the first update, where both mean the same."""
    from verl.trainer.distillation.losses import distillation_loss
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import DistillationLossConfig
    from verl.workers.utils.padding import no_padding_2_padding

    from tasks.verl.loss import policy_loss

    policy, teacher = folders
    settings = pipeline(policy, teacher, train__algorithm={"name": "distill", "teacher": str(teacher)})
    groups = [[episode(0, shape=((2, 1),)), episode(1, shape=((3,),))]]
    scores = Teacher(LocalScorer(teacher)).score(trajectories_of(groups), temperature=TEMPERATURE)
    data = step_data(settings, groups, teacher_scores=scores)
    generator = torch.Generator().manual_seed(2)
    outputs = -torch.rand(data["input_ids"].values().shape, generator=generator)
    outputs.requires_grad_()
    log_probs = torch.nested.nested_tensor_from_jagged(outputs, data["input_ids"].offsets())
    data["old_log_probs"] = no_padding_2_padding(log_probs.detach(), data)  # the first update
    by_teacher = torch.zeros(outputs.shape)
    advantages = data["advantages"].to_padded_tensor(0.0)
    ends = data["input_ids"].offsets()[1:].tolist()
    for row, (end, response) in enumerate(zip(ends, data["responses"].unbind(), strict=True)):
        of_row = (data["old_log_probs"] + advantages)[row, : len(response)]
        by_teacher[end - len(response) - 1 : end - 1] = of_row  # verl's are one place to the left
    data["teacher_logprobs"] = torch.nested.nested_tensor_from_jagged(
        by_teacher[:, None], data["input_ids"].offsets()
    )
    tokens = int((data["response_mask"].values() > 0).sum())
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=tokens, global_batch_size=2)
    theirs, _ = distillation_loss(
        SimpleNamespace(loss_agg_mode="token-mean", global_batch_info={}, loss_scale_factor=None),
        SimpleNamespace(
            distillation_loss=DistillationLossConfig(
                loss_mode="k1", use_policy_gradient=True, loss_max_clamp=None
            )
        ),
        {"log_probs": log_probs},
        data,
    )
    ours, _ = policy_loss(settings.train, 160, {"log_probs": log_probs}, data)
    expected, actual = (torch.autograd.grad(loss, outputs, retain_graph=True)[0] for loss in (theirs, ours))
    assert expected.any()
    torch.testing.assert_close(actual, expected)


@pytest.mark.heavy
def test_the_policy_comes_nearer_to_its_teacher(verl: ModuleType, folders: tuple[Path, Path]) -> None:
    """Two turns of two tokens, sampled by the policy as it is; the exact KL of the first token."""
    policy, teacher = folders
    settings = pipeline(policy, teacher, rollout__temperature=1.0, train__lr=1e-2)
    exact, scorer = model_of(teacher), Teacher(LocalScorer(teacher))
    prompt = tuple(range(20, 26))
    [target] = next_tokens(exact, [prompt])
    distances: list[float] = []
    with policy_worker(settings, policy) as worker:
        module = worker.actor.engine.module
        for step in range(5):
            torch.manual_seed(step)
            current = student(module, policy)
            [now] = next_tokens(current, [prompt])
            distances.append(float((now.exp() * (now - target)).sum()))
            groups = [sample(current, prompt, count=32)]
            scores = scorer.score(trajectories_of(groups), temperature=1.0)
            update(worker, settings, groups, teacher_scores=scores)
    assert distances[-1] < 0.8 * distances[0], distances


def test_a_teacher_with_other_tokens_is_refused_before_anything_starts(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    policy, teacher = folders
    check_teacher(pipeline(policy, teacher))
    other = save_tiny_model(tmp_path / "other")
    tokenizer = AutoTokenizer.from_pretrained(other)
    tokenizer.add_tokens(["zebra"])
    tokenizer.save_pretrained(other)
    with pytest.raises(
        ConfigError, match=r"other is not that of .*: token 'zebra' is number \d+ there and None here"
    ):
        check_teacher(pipeline(policy, other))
    with pytest.raises(ConfigError, match=r"teacher: .*nowhere has no config\.json; give a folder"):
        check_teacher(pipeline(policy, tmp_path / "nowhere"))
    with pytest.raises(
        ConfigError, match=r"teacher: it reads prompts of 512 tokens, and rollout\.context_length is 600"
    ):
        check_teacher(pipeline(policy, teacher, rollout__context_length=600))


def test_a_token_without_a_probability_ends_the_step() -> None:
    with pytest.raises(TeacherFailed, match=r"sampled token 0 of x_0, sample 0, is -inf"):
        Teacher(Constant(-math.inf)).score({"a": episode(0)}, temperature=1.0)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rollout__group_size": 1}, None),
        ({"train__async": {"staleness": 1}}, None),
        (
            {"rollout__group_size": 1, "train__algorithm": {"reward_weight": 0.5}},
            "group_size 1: reward_weight adds GRPO's advantage",
        ),
        ({"train__kl": {"coef": 0.1, "place": "reward"}}, "place reward: train.algorithm distill does not"),
        (
            {"backend": {"device": "cuda", "rollout": "vllm"}},
            "would be computed on a CPU, beside a policy on backend.device cuda; serve it",
        ),
        (
            {"train__algorithm": {"teacher": {"url": "http://127.0.0.1:1/v1", "model": "t"}}},
            "log-probs are those at temperature 1",
        ),
    ],
)
def test_what_cannot_be_distilled_exactly_is_refused(overrides: dict[str, Any], message: str | None) -> None:
    algorithm = {"name": "distill", "teacher": "t"} | overrides.pop("train__algorithm", {})
    settings = pipeline(Path("model"), "t", **overrides | {"train__algorithm": algorithm})
    if message is None:
        check_pipeline(settings)
        return
    with pytest.raises(ConfigError, match=message):
        check_pipeline(settings)


def conversations(**fields: Any) -> Any:
    from tasks.algorithms.conversations import Conversations

    count = len(fields["mask"])
    defaults = {
        "trajectories": [episode(i) for i in range(count)],
        "group": torch.zeros(count, dtype=torch.int64),
        "turn_scores": torch.zeros(count, 1, dtype=torch.float64),
        "num_played": count,
    }
    return Conversations(**defaults | fields)


def lengths_of(trajectory: Trajectory) -> list[int]:
    return [len(context) + len(turn.completion.token_ids) for context, turn in turns_of(trajectory)]


def with_log_probs_of(scorer: LocalScorer, trajectory: Trajectory) -> Trajectory:
    """The same tokens as if the model of `scorer` had sampled them."""
    [values] = Teacher(scorer).score({"key": trajectory}, temperature=TEMPERATURE).values()
    rest = iter(values)
    turns = [
        replace(
            turn,
            completion=replace(
                turn.completion, logprobs=tuple(next(rest) for _ in turn.completion.token_ids)
            ),
        )
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=tuple(turns))


def tokenizer_of(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def model_of(folder: Path, *, dtype: Any = torch.float32) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)


def student(module: Any, folder: Path) -> Any:
    """The policy as the worker has it now."""
    model = model_of(folder)
    model.load_state_dict(
        {name: p.full_tensor().detach() for name, p in module.named_parameters()}, strict=False
    )
    return model


def next_tokens(model: Any, contexts: Sequence[Sequence[int]]) -> Any:
    """[N, V]: log-probs."""
    with torch.no_grad():
        return model(torch.tensor([[*context] for context in contexts])).logits[:, -1].log_softmax(-1)


def log_probs(model: Any, context: Sequence[int], sampled_ids: Sequence[int]) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *sampled_ids]])).logits[0, len(context) - 1 : -1]
    chosen = (logits / TEMPERATURE).log_softmax(-1).gather(1, torch.tensor([*sampled_ids])[:, None])
    values: list[float] = chosen[:, 0].tolist()
    return values


def sample(model: Any, prompt: tuple[int, ...], *, count: int) -> list[Trajectory]:
    """Two turns of two tokens each, with an observation between them."""
    contexts = [[*prompt] for _ in range(count)]
    ids: list[list[int]] = [[] for _ in range(count)]
    values: list[list[float]] = [[] for _ in range(count)]
    for place in range(4):
        distributions = next_tokens(model, contexts)
        for row, token in enumerate(torch.multinomial(distributions.exp(), 1)[:, 0].tolist()):
            ids[row].append(token)
            values[row].append(float(distributions[row, token]))
            contexts[row] += [token, 30, 31] if place == 1 else [token]
    return [
        episode_of(
            index,
            prompt,
            [
                make_turn(ids[index][start : start + 2], values[index][start : start + 2], (30, 31))
                for start in (0, 2)
            ],
        )
        for index in range(count)
    ]
