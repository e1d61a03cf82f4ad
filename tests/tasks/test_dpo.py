"""Loss and gradient of preference training by hand, over conversations of several turns and segments."""

import math
import random
from collections.abc import Iterator
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

from tests.support.tiny_model import save_tiny_model

torch = pytest.importorskip("torch")

from tasks.verl.dpo import DpoRequest, log_probs, softplus, train_pairs, weighted_loss  # noqa: E402
from tasks.verl.sft import start_worker  # noqa: E402

BETA = 0.5
WINNERS = [[0, 1], [4], [6, 7, 8]]
LOSERS = [[2, 3], [5], [9]]
"""Rows of each pair's conversations: several segments, one, and unequal numbers."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> DpoRequest:
    """Micro-batches hold two or three rows, so that they separate pairs and conversations."""
    rng = random.Random(5)

    def tokens(shortest: int, longest: int) -> list[int]:
        return [rng.randrange(10, 250) for _ in range(rng.randint(shortest, longest))]

    model = save_tiny_model(tmp_path_factory.mktemp("model"))
    responses = [tokens(6, 20) for _ in range(10)]
    return DpoRequest(
        model=str(model),
        output=str(model.with_name("trained")),
        device="cpu",
        seed=0,
        steps=1,
        batch_size=3,
        lr=1e-12,
        lora=None,
        micro_batch_tokens=64,
        prompts=[tokens(3, 9) for _ in responses],
        responses=responses,
        # The policy's tokens and those of observations, in turns; the last is the policy's.
        masks=[[*(rng.randint(0, 1) for _ in ids[1:]), 1] for ids in responses],
        winners=WINNERS,
        losers=LOSERS,
        beta=BETA,
    )


@pytest.fixture(scope="module")
def worker(verl: ModuleType, pairs: DpoRequest) -> Iterator[Any]:
    yield start_worker(pairs, weighted_loss)
    torch.distributed.destroy_process_group()


@pytest.mark.heavy
def test_loss_and_gradient_are_those_of_the_paper(worker: Any, pairs: DpoRequest) -> None:
    model = exact_model(pairs)
    exact = [log_prob_by_hand(model, pairs, row) for row in range(len(pairs.prompts))]
    rng = random.Random(1)
    reference = {row: float(value.detach()) + rng.gauss(0.0, 2.0) for row, value in enumerate(exact)}

    def ratio(rows: list[int]) -> Any:
        return sum(exact[row] - reference[row] for row in rows)

    margins = [ratio(winner) - ratio(loser) for winner, loser in zip(WINNERS, LOSERS, strict=True)]
    assert min(margins) < 0 < max(margins), "a pair in order, and one that is not"
    loss = -sum(torch.nn.functional.logsigmoid(BETA * margin) for margin in margins) / len(margins)
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    norm = float(sum(grad.square().sum() for grad in gradients.values())) ** 0.5

    actual: dict[str, Any] = {}

    def keep_gradients(*_: Any) -> None:
        parameters = worker.engine.module.named_parameters()
        actual.update({name: p.grad.full_tensor().double() for name, p in parameters})

    hook = worker.engine.optimizer.register_step_pre_hook(keep_gradients)
    numbers = train_pairs(worker, pairs, [0, 1, 2], reference=reference)
    hook.remove()

    assert numbers["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert numbers["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert numbers["margin"] == pytest.approx(BETA * fmean(float(m) for m in margins), rel=1e-4)
    assert numbers["accuracy"] == pytest.approx(fmean(float(m) > 0 for m in margins))
    assert numbers["tokens"] == sum(map(sum, pairs.masks))
    scale = min(1.0, 1.0 / norm)  # verl clips the gradient to a norm of 1
    assert actual.keys() == gradients.keys()
    for name, gradient in actual.items():
        assert float((gradient - scale * gradients[name]).abs().max()) < 1e-5 * scale * norm, name


@pytest.mark.heavy
def test_the_policy_is_its_own_reference_at_first(worker: Any, pairs: DpoRequest) -> None:
    """Computed in other batches than a step's, each log-probability is the same but for rounding."""
    reference = log_probs(worker, pairs, range(4)) | log_probs(worker, pairs, range(4, 10))
    numbers = train_pairs(worker, pairs, [1, 2], reference=reference)
    assert numbers["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert numbers["tokens"] == sum(sum(pairs.masks[row]) for row in range(4, 10))


@pytest.mark.parametrize("x", [-800.0, -3.0, 0.0, 2.5, 800.0])
def test_softplus_never_overflows(x: float) -> None:
    assert softplus(x) == pytest.approx(float(torch.nn.functional.softplus(torch.tensor(x).double())))


def exact_model(pairs: DpoRequest) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(pairs.model, attn_implementation="eager", dtype=torch.float64)


def log_prob_by_hand(model: Any, pairs: DpoRequest, row: int) -> Any:
    """Token by token, each on all that is before it."""
    ids, start = pairs.prompts[row] + pairs.responses[row], len(pairs.prompts[row])
    distributions = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    positions = [start + i for i, is_policy in enumerate(pairs.masks[row]) if is_policy]
    return sum(distributions[position - 1, ids[position]] for position in positions)
