"""How many floating-point operations an update needs, and how many the machine could do in the same time.

An update takes three times the operations of its forward pass: forward, and backward by weights and by
inputs. What packed rows need is counted (`packed_row.py`): each prompt of a group once, the pairs of query
and key that a causal mask leaves, and logits only where there is a loss.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agents.huggingface.files import load_config
from agents.huggingface.weights import read_shapes

if TYPE_CHECKING:
    from tasks.verl.rows import TrainingRow

UPDATE_PASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the forward passes of a step's update compute, besides how large the model is."""

    tokens: int
    logits: int
    pairs: int
    """The pairs of query and key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFlops:
    """FLOPs of a forward pass."""

    per_token: float
    per_logit: float
    """FLOPs of the distribution over the vocabulary, for one token."""
    per_pair: float
    """FLOPs per pair of query and key, in all layers."""

    @classmethod
    def of_folder(cls, folder: Path) -> "ModelFlops":
        """The FLOPs of a model in Hugging Face format."""
        config = load_config(folder)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        numbers = sum(
            math.prod(shape)
            for file in folder.glob("*.safetensors")
            for name, shape in read_shapes(file).items()
            if ".layers." in name and len(shape) == 2
        )
        return cls(
            per_token=2.0 * numbers,
            per_logit=2.0 * config.vocab_size * config.hidden_size,
            per_pair=4.0 * config.num_hidden_layers * config.num_attention_heads * head_dim,
        )

    def forward(self, work: Work) -> float:
        """FLOPs of the forward passes of `work`."""
        return self.per_token * work.tokens + self.per_logit * work.logits + self.per_pair * work.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSpeed:
    """How fast this machine could update a model, if it computed matrix products alone."""

    model: ModelFlops
    flops_per_s: float

    @classmethod
    def measure(cls, folder: Path, *, threads: int) -> "CpuSpeed":
        """Measure the speed for the model in `folder`, with `threads` that do not slow each other down."""
        return cls(model=ModelFlops.of_folder(folder), flops_per_s=threads * matmul_flops())

    def utilization(self, work: Work, *, passes: int, seconds: float) -> float:
        """The FLOPs of an update with `passes` over `work`, as a share of those possible in its time."""
        return UPDATE_PASSES * passes * self.model.forward(work) / (seconds * self.flops_per_s)


def count_work(rows: Iterable["TrainingRow"]) -> Work:
    """The work of one pass over `rows`."""
    responses: dict[tuple[int, ...], list[int]] = {}
    logits = 0
    for row in rows:
        responses.setdefault(row.packed.prompt_ids, []).append(len(row.packed.response_ids))
        logits += sum(row.packed.response_mask)
    return Work(
        tokens=sum(len(prompt) + sum(lengths) for prompt, lengths in responses.items()),
        logits=logits,
        pairs=sum(needed_pairs(len(prompt), lengths) for prompt, lengths in responses.items()),
    )


def needed_pairs(prompt: int, responses: Sequence[int]) -> int:
    """The pairs of query and key that a group needs: the prompt over itself, each response over the prompt
    and itself."""
    return prompt * (prompt + 1) // 2 + sum(r * prompt + r * (r + 1) // 2 for r in responses)


def matmul_flops() -> float:
    """FLOPs per CPU second of the fastest float32 matrix product here, by torch (MKL) or oneDNN."""
    best = 0.0
    for size in (512, 1024):
        a, b = torch.randn(size, size), torch.randn(size, size)
        best = max(best, *(2 * size**3 / best_seconds(product) for product in _products(a, b)))
    return best


def best_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of the quickest of five runs of `work` in one thread, after one to warm up.

    With more threads, the kernel may count those that are running only at its next tick, and then the
    quickest run seems to take the time of the calling thread alone.
    """
    threads, times = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        work()
        for _ in range(5):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times)


def _products(a: torch.Tensor, b: torch.Tensor) -> Iterator[Callable[[], object]]:
    """Ways to compute `a @ b`, of square matrices; which is transposed makes no difference to the time."""
    yield lambda: a @ b
    if torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(b, len(a))
        yield lambda: torch.ops.mkldnn._linear_pointwise(a, packed, None, "none", [], "")
