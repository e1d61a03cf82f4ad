"""A micro-batch as one row without padding, with each prompt only once, and attention over that row.

The trajectories of a group share their prompt: it is computed once, and every response attends to it. The row
computes the same function as the padded batch, at a fraction of its cost.

    samples    prompt A + response 0, prompt A + response 1, prompt B + response 2
    one row    A | 0 | 1 | B | 2          positions 0…|A|-1, |A|…, |A|…, 0…|B|-1, |B|…

A query of a response attends to the prompt and, causally, to its own response: each relevant pair of query
and key is computed exactly once (`attention_kernel.py`).

Shapes: `T` tokens of the row, `N` tokens whose log-prob is computed, `H` query heads, `K` heads of keys and
values, `D` numbers per head.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agents.samplers.tiles import LANES, round_up
from envs.errors import ConfigError
from tasks.verl.cpu.attention_kernel import attend, differentiate

ATTENTION = "wingspan_packed"
"""Name under which `packed_attention` is registered with transformers."""


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
    return _PackedAttention.apply(query, key, value, blocks, scaling).transpose(1, 2), None  # type: ignore[no-untyped-call]


def segments_of(blocks: tuple[PromptBlock, ...]) -> np.ndarray:
    """The segments of `attention_kernel.attend`: [S, 4]."""
    segments: list[tuple[int, int, int, int]] = []
    column = 0

    def add(first: int, count: int, prompt: int) -> None:
        nonlocal column
        segments.append((first, count, column, prompt))
        column += round_up(count, LANES)

    for block in blocks:
        prompt, first = len(segments), block.start + block.prompt_length
        add(block.start, block.prompt_length, -1)
        for length in filter(None, block.response_lengths):
            add(first, length, prompt)
            first += length
    return np.array(segments, dtype=np.int64)


class _PackedAttention(torch.autograd.Function):
    """`packed_attention`; [1, H, T, D] in and out."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, blocks: tuple[PromptBlock, ...], scale: float
    ) -> Tensor:
        inputs = [_by_token(x) for x in (query, key, value)]
        segments, output = segments_of(blocks), torch.empty_like(inputs[0])
        log_sums = query.new_empty(query.shape[1:3])  # [H, T]
        arrays = [x.numpy() for x in (*inputs, output, log_sums)]
        _share_out(
            query.shape[1], lambda first, end: attend(*arrays[:3], segments, scale, first, end, *arrays[3:])
        )
        ctx.save_for_backward(*inputs, output, log_sums)
        ctx.segments, ctx.scale = segments, scale
        return _by_head(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradients = [torch.empty_like(x) for x in ctx.saved_tensors[:3]]
        inputs = [x.numpy() for x in (*ctx.saved_tensors, _by_token(gradient))]
        results = [x.numpy() for x in gradients]
        _share_out(
            gradients[1].shape[1],
            lambda first, end: differentiate(*inputs, ctx.segments, ctx.scale, first, end, *results),
        )
        return *map(_by_head, gradients), None, None


def _by_token(tensor: Tensor) -> Tensor:
    """[1, H, T, D] → [T, H, D], in that order in memory, in which transformers' models have it."""
    return tensor[0].detach().transpose(0, 1).contiguous()


def _by_head(tensor: Tensor) -> Tensor:
    """[T, H, D] → [1, H, T, D]."""
    return tensor.transpose(0, 1)[None]


def _share_out(count: int, work: Callable[[int, int], object]) -> None:
    """Call `work(first, end)` with as many equal parts of `range(count)` as torch has threads, at once."""
    threads = min(count, torch.get_num_threads())
    bounds = [count * part // threads for part in range(threads + 1)]
    if threads == 1:
        work(0, count)
    else:
        list(_pool(threads).map(work, bounds, bounds[1:]))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="attention")
