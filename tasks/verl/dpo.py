"""Direct preference optimization over whole conversations: a process, `python -m tasks.verl.dpo REQUEST`.

With the margin m of a pair, the loss is the mean over the pairs of a step of −log σ(β·m), where

    m = (log π(winner) − log π_ref(winner)) − (log π(loser) − log π_ref(loser))

and log π of a conversation is the sum over the policy's tokens of all of its segments; tokens of prompts and
observations have no part in it (Rafailov et al. 2023, arXiv 2305.18290, equation 7; over the turns of a
trajectory: Song et al. 2024, arXiv 2403.02502, equation 5). The reference is the policy at the start.

A pair may have more tokens than a micro-batch. Its gradient is β·σ(−β·m)·∇(log π(loser) − log π(winner)), so
margins are computed first, without a gradient; then each token's log-probability is weighed by a number, and
micro-batches add up whatever rows they hold. Exact for a model without dropout.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from tasks.verl.sft import (
    SftRequest,
    batch_of,
    nest,
    save_policy,
    shuffled_batches,
    start_worker,
    train_batch,
)

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from verl.workers.engine_workers import TrainingWorker


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoRequest(SftRequest):
    """All that a run is told. A step has `batch_size` pairs."""

    winners: list[list[int]]
    """The rows of the better conversation of each pair."""
    losers: list[list[int]]
    """The rows of the worse conversation of each pair."""
    beta: float


def run(request: DpoRequest) -> Iterator[dict[str, float]]:
    """Train; yields a step's numbers, then saves.

    `step`, `loss`, `margin` (mean of β·m), `accuracy` (share of pairs with a positive margin), `grad_norm`,
    `lr`, `tokens`; those of pairs are from before the update.
    """
    worker = start_worker(request, weighted_loss)
    rows, size = range(len(request.prompts)), 2 * request.batch_size
    reference: dict[int, float] = {}
    for start in range(0, len(rows), size):
        reference |= log_probs(worker, request, rows[start : start + size])
    for step, pairs in enumerate(shuffled_batches(request, range(len(request.winners))), start=1):
        yield {"step": step, **train_pairs(worker, request, pairs, reference=reference)}
    save_policy(worker, request)


def train_pairs(
    worker: "TrainingWorker", request: DpoRequest, pairs: Sequence[int], *, reference: Mapping[int, float]
) -> dict[str, float]:
    """One optimizer step on `pairs`; `reference`: of each row, as `log_probs`."""
    rows = sorted({row for pair in pairs for row in request.winners[pair] + request.losers[pair]})
    ratios = {row: value - reference[row] for row, value in log_probs(worker, request, rows).items()}
    margins = [_margin(request, pair, ratios) for pair in pairs]
    weights = weights_of(request, pairs, margins)
    data = batch_of(request, rows)
    data["token_weights"] = nest(
        [[0.0] * len(request.prompts[row]) + [weights[row] * m for m in request.masks[row]] for row in rows]
    )
    return {
        **train_batch(worker, data),
        "loss": fmean(softplus(-request.beta * margin) for margin in margins),
        "margin": request.beta * fmean(margins),
        "accuracy": fmean(margin > 0 for margin in margins),
        "tokens": sum(sum(request.masks[row]) for row in rows),
    }


def weights_of(request: DpoRequest, pairs: Sequence[int], margins: Sequence[float]) -> dict[int, float]:
    """The factor of each row's gradient of its log-probability, for the mean over `pairs`."""
    weights: dict[int, float] = {}
    for pair, margin in zip(pairs, margins, strict=True):
        scale = request.beta * math.exp(-softplus(request.beta * margin)) / len(pairs)
        for rows, sign in ((request.winners[pair], -1.0), (request.losers[pair], 1.0)):
            for row in rows:
                weights[row] = weights.get(row, 0.0) + sign * scale
    return weights


def weighted_loss(
    model_output: Mapping[str, "torch.Tensor"], data: "TensorDict", dp_group: object = None
) -> tuple["torch.Tensor", dict[str, object]]:
    """The sum of `token_weights` × log-probabilities of a micro-batch, nested [rows, tokens] both."""
    # The log-probability at a place is that of the next token.
    weights = data["token_weights"].values().roll(-1)
    return (weights * model_output["log_probs"].values()).sum() * data["dp_size"], {}


def log_probs(worker: "TrainingWorker", request: DpoRequest, rows: Sequence[int]) -> dict[int, float]:
    """The log-probability of each row, summed over its masked tokens, under the current weights."""
    from verl.utils import tensordict_utils as tu

    data = batch_of(request, rows)
    tu.assign_non_tensor(data, compute_loss=False)
    sequences = worker.infer_batch(data)["log_probs"].unbind()
    masks = data["loss_mask"].unbind()
    return {
        row: float(values[:-1].double()[mask[1:].bool()].sum())
        for row, values, mask in zip(rows, sequences, masks, strict=True)
    }


def softplus(x: float) -> float:
    """log(1 + exp(x)) = −log σ(−x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _margin(request: DpoRequest, pair: int, ratios: Mapping[int, float]) -> float:
    return sum(ratios[row] for row in request.winners[pair]) - sum(
        ratios[row] for row in request.losers[pair]
    )


if __name__ == "__main__":
    for numbers in run(DpoRequest(**json.loads(Path(sys.argv[1]).read_text()))):
        print(json.dumps(numbers), flush=True)
