"""Attention over a packed row (`packing.py`): computes each relevant pair of query and key exactly once.

A query of a response attends to the prompt and, causally, to its own response. torch's flash kernel is called
once for all responses over their prompt, and once for each response over itself; the outputs are merged by
their weights in the softmax. Nothing is padded, masked or repeated.

The backward pass uses the kernel as well. The kernel computes a pair's share of the gradients from the output
and the log-sum-exp of the query's *whole* softmax. Given the merged values, the gradients of all calls add up
to the exact gradient (as in ring attention, Liu et al. 2023, arXiv:2310.01889).

Shapes: `H` query heads, `K` heads of keys and values, `T` tokens of the row, `D` numbers per head.
"""

from typing import Any

import torch
from torch import Tensor

from envs.errors import ConfigError
from tasks.verl.cpu.packing import PromptBlock

ATTENTION = "wingspan_packed"
"""Name under which `packed_attention` is registered with transformers."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, K, T, D], K divides H
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    *,
    blocks: tuple[PromptBlock, ...],
    scaling: float,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Causal attention within each block: prompt to itself, each response to the prompt and itself.

    transformers calls it with the `blocks` that the model was called with; returns ([1, T, H, D], None).
    Raises `ConfigError` for dropout: the sampler has none, so its log-probs would not be those of the policy.
    """
    if dropout:
        raise ConfigError(f"attention_dropout {dropout} in the model's config.json: the CPU backend needs 0")
    heads_per_key = query.shape[1] // key.shape[1]
    if heads_per_key > 1:
        key, value = (x.repeat_interleave(heads_per_key, dim=1) for x in (key, value))
    return _PackedAttention.apply(query, key, value, blocks, scaling).transpose(1, 2), None  # type: ignore[no-untyped-call]


def computed_pairs(blocks: tuple[PromptBlock, ...]) -> int:
    """Pairs of query and key that `packed_attention` computes, before the kernel rounds up."""
    return sum(
        (len(queries) * (len(queries) + 1) // 2 if causal else len(queries) * len(keys))
        for block in blocks
        for queries, keys, causal in _calls(block)
    )


def _calls(block: PromptBlock) -> list[tuple[range, range, bool]]:
    """(queries, keys, is causal) of each call of the kernel; responses over their prompt come last."""
    prompt = range(block.start, block.start + block.prompt_length)
    calls = [(prompt, prompt, True)]
    first = prompt.stop
    for length in block.response_lengths:
        response = range(first, first + length)
        if length:
            calls.append((response, response, True))
        first = response.stop
    if first > prompt.stop:
        calls.append((range(prompt.stop, first), prompt, False))
    return calls


def _slice_tokens(tensor: Tensor, tokens: range) -> Tensor:
    return tensor[:, :, tokens.start : tokens.stop]


class _PackedAttention(torch.autograd.Function):
    """`packed_attention` with as many heads of keys as of queries; [1, H, T, D] in and out."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: tuple[PromptBlock, ...], scale: float
    ) -> Tensor:
        output = torch.empty_like(query)
        weight = query.new_empty(query.shape[:-1])  # [1, H, T], log-sum-exp of the scores
        for block in blocks:
            for queries, keys, causal in _calls(block):
                part, part_weight = _forward(
                    _slice_tokens(query, queries),
                    _slice_tokens(key, keys),
                    _slice_tokens(value, keys),
                    0.0,
                    causal,
                    scale=scale,
                )
                if causal:
                    _slice_tokens(output, queries).copy_(part)
                    _slice_tokens(weight, queries).copy_(part_weight)
                else:  # these queries have attended to their own responses
                    own_output, own_weight = _slice_tokens(output, queries), _slice_tokens(weight, queries)
                    own_output.lerp_(part, torch.sigmoid(part_weight - own_weight).unsqueeze(-1))
                    own_weight.copy_(torch.logaddexp(own_weight, part_weight))
        ctx.save_for_backward(query, key, value, output, weight)
        ctx.blocks, ctx.scale = blocks, scale
        return output

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, weight = ctx.saved_tensors
        gradients = [torch.zeros_like(x) for x in (query, key, value)]
        for block in ctx.blocks:
            for queries, keys, causal in _calls(block):
                parts = _backward(
                    _slice_tokens(gradient, queries),
                    _slice_tokens(query, queries),
                    _slice_tokens(key, keys),
                    _slice_tokens(value, keys),
                    _slice_tokens(output, queries),
                    _slice_tokens(weight, queries),
                    0.0,
                    causal,
                    scale=ctx.scale,
                )
                for total, tokens, part in zip(gradients, (queries, keys, keys), parts, strict=True):
                    _slice_tokens(total, tokens).add_(part)
        return *gradients, None, None
