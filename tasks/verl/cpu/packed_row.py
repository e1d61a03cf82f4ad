"""A micro-batch as one row without padding, with each prompt only once, and attention over that row.

The trajectories of a group share their prompt: it is computed once, and every response attends to it. The row
computes the same function as the padded batch, at a fraction of its cost.

    samples    prompt A + response 0, prompt A + response 1, prompt B + response 2
    one row    A | 0 | 1 | B | 2          positions 0…|A|-1, |A|…, |A|…, 0…|B|-1, |B|…

A query of a response attends to the prompt and, causally, to its own response: each relevant pair of query
and key is computed exactly once. torch's flash kernel is called once for all responses over their prompt, and
once for each response over itself; the outputs are merged by their weights in the softmax.

The backward pass uses the kernel as well. The kernel computes a pair's share of the gradients from the output
and the log-sum-exp of the query's *whole* softmax. Given the merged values, the gradients of all calls add up
to the exact gradient (as in ring attention, Liu et al. 2023, arXiv:2310.01889).

Shapes: `T` tokens of the row, `N` tokens whose log-prob is computed, `H` query heads, `K` heads of keys and
values, `D` numbers per head.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.errors import ConfigError

ATTENTION = "wingspan_packed"
"""Name under which `packed_attention` is registered with transformers."""

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, slots=True)
class PromptBlock:
    """A prompt in the row and the responses that follow it."""

    start: int
    prompt_length: int
    response_lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A micro-batch as one row, and where its log-probs go."""

    input_ids: Tensor  # [1, T]
    position_ids: Tensor  # [1, T]
    blocks: tuple[PromptBlock, ...]
    logit_rows: Tensor  # [N], index in the row of the token *before* each label
    labels: Tensor  # [N], the tokens whose log-prob is computed
    targets: Tensor  # [N], positions of the log-probs in the concatenated samples
    sample_of: Tensor  # [N], index of the sample of each


def pack_row(
    samples: Sequence[Tensor], *, prompt_lengths: Sequence[int], masks: Sequence[Tensor]
) -> PackedRow:
    """Pack `samples` ([L] each, prompt first) into one row.

    `masks` ([L] each): 1 if the token's log-prob is computed. As in verl, the log-prob of the token at `i` is
    stored at `i - 1`; the first token has none.
    """
    offsets = [0]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    by_prompt: dict[bytes, list[int]] = {}
    for index, (sample, length) in enumerate(zip(samples, prompt_lengths, strict=True)):
        by_prompt.setdefault(sample[:length].numpy().tobytes(), []).append(index)

    ids, positions, blocks, rows, labels, targets, owners = [], [], [], [], [], [], []
    cursor = 0
    for members in by_prompt.values():
        prompt_length = prompt_lengths[members[0]]
        start = cursor
        ids.append(samples[members[0]][:prompt_length])
        positions.append(torch.arange(prompt_length))
        cursor += prompt_length
        for index in members:
            sample = samples[index]
            response_length = len(sample) - prompt_length
            ids.append(sample[prompt_length:])
            positions.append(torch.arange(prompt_length, len(sample)))
            positions_with_loss = masks[index].nonzero().squeeze(-1)
            positions_with_loss = positions_with_loss[positions_with_loss > 0]
            before = positions_with_loss - 1
            # In the row, a prompt's tokens lie at its block's start, a response's at `cursor`.
            rows.append(torch.where(before < prompt_length, before + start, before - prompt_length + cursor))
            labels.append(sample[positions_with_loss])
            targets.append(before + offsets[index])
            owners.append(torch.full_like(positions_with_loss, index))
            cursor += response_length
        lengths = tuple(len(samples[i]) - prompt_length for i in members)
        blocks.append(PromptBlock(start, prompt_length, lengths))
    return PackedRow(
        input_ids=torch.cat(ids).unsqueeze(0),
        position_ids=torch.cat(positions).unsqueeze(0),
        blocks=tuple(blocks),
        logit_rows=torch.cat(rows),
        labels=torch.cat(labels),
        targets=torch.cat(targets),
        sample_of=torch.cat(owners),
    )


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
