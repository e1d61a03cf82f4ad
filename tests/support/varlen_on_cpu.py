"""What torch's kernels for sequences of any lengths compute, by its definition, for tests on a CPU.

torch has them for GPUs only. `reference_attention` is also what they are compared with, where there is a GPU.
"""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import varlen


def reference_attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: list[int], *, scale: float, window: int = -1
) -> Tensor:
    """Causal attention within each sequence of a row; [T, heads, D] in and out.

    `window`: tokens before its own that a token sees; -1 for all.
    """
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    outputs = []
    for q, k, v in zip(*(x.split(lengths) for x in (query, key, value)), strict=True):
        scores = torch.einsum("ihd,jhd->hij", q, k) * scale
        distance = torch.arange(len(q))[:, None] - torch.arange(len(q))
        is_hidden = (distance < 0) | ((distance > window) if window >= 0 else False)
        weights = scores.masked_fill(is_hidden.to(scores.device), -torch.inf).softmax(-1)
        outputs.append(torch.einsum("hij,jhd->ihd", weights, v))
    return torch.cat(outputs)


def _lengths(boundaries: Tensor) -> list[int]:
    return [end - start for start, end in pairwise(boundaries.tolist())]


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    scale: float,
    window_size: list[int],
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    lengths = _lengths(cu_seq_q)
    assert window_size[1] == 0
    assert max_q == max_k == max(lengths)
    assert torch.equal(cu_seq_q, cu_seq_k)
    output = reference_attention(query, key, value, lengths, scale=scale, window=window_size[0])
    return output, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool,
    rng_state: Tensor,
    scale: float,
    window_size: list[int],
) -> tuple[Tensor, ...]:
    def differentiate() -> tuple[Tensor, ...]:
        inputs = [x.detach().requires_grad_() for x in (query, key, value)]
        output = reference_attention(
            inputs[0], inputs[1], inputs[2], _lengths(cu_seq_q), scale=scale, window=window_size[0]
        )
        return torch.autograd.grad(output, inputs, gradient)

    with ThreadPoolExecutor(1) as thread:  # within an operator, torch records nothing in its own thread
        return thread.submit(differentiate).result()


def register() -> None:
    """Give this process's torch the kernels for the CPU."""
    varlen._varlen_attn.register_kernel("cpu")(_forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(_backward)
