"""Packs a micro-batch into one row without padding, each prompt only once.

A group's trajectories share their prompt, which is most of their tokens: it is computed once, and
every response attends to it. Exactly the function of the padded batch, at a fraction of its cost.

    samples    prompt A + response 0, prompt A + response 1, prompt B + response 2
    one row    A | 0 | 1 | B | 2          positions 0…|A|-1, |A|…, |A|…, 0…|B|-1, |B|…

Shapes: `B` samples, `T` tokens of the row, `N` tokens whose log-prob is wanted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

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
    logit_rows: Tensor  # [N], index in the row of the token *before* each wanted one
    labels: Tensor  # [N], the wanted tokens
    targets: Tensor  # [N], where the log-probs go in the samples laid end to end
    sample_of: Tensor  # [N], which sample each belongs to


def pack_row(
    samples: Sequence[Tensor], *, prompt_lengths: Sequence[int], masks: Sequence[Tensor]
) -> PackedRow:
    """Lay `samples` ([L] each, prompt first) out in one row.

    `masks` ([L] each): 1 where the token's log-prob is wanted. As verl has it, the log-prob of the
    token at `i` belongs at `i - 1`; the first token has none.
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
            wanted = masks[index].nonzero().squeeze(-1)
            wanted = wanted[wanted > 0]
            before = wanted - 1
            # In the row, a prompt's tokens lie at its block's start, a response's at `cursor`.
            rows.append(torch.where(before < prompt_length, before + start, before - prompt_length + cursor))
            labels.append(sample[wanted])
            targets.append(before + offsets[index])
            owners.append(torch.full_like(wanted, index))
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

    Called by transformers with the `blocks` that were given to the model; returns ([1, T, H, D], None).
    """
    groups = query.shape[1] // key.shape[1]
    q = query[0]
    k = key[0].repeat_interleave(groups, dim=0) if groups > 1 else key[0]
    v = value[0].repeat_interleave(groups, dim=0) if groups > 1 else value[0]
    out = []
    for block in blocks:
        prompt = slice(block.start, block.start + block.prompt_length)
        prompt_out = scaled_dot_product_attention(
            q[None, :, prompt],
            k[None, :, prompt],
            v[None, :, prompt],
            dropout_p=dropout,
            is_causal=True,
            scale=scaling,
        )
        out.append(prompt_out[0].transpose(0, 1))
        longest = max(block.response_lengths)
        if longest:
            out.append(_responses(q, k, v, block, longest=longest, scaling=scaling, dropout=dropout))
    return torch.cat(out).unsqueeze(0), None


def _responses(
    q: Tensor,  # [H, T, D]
    k: Tensor,
    v: Tensor,
    block: PromptBlock,
    *,
    longest: int,
    scaling: float,
    dropout: float,
) -> Tensor:
    """All responses of a block side by side, right-padded to the `longest`; [sum of lengths, H, D]."""
    prompt = slice(block.start, block.start + block.prompt_length)
    first = prompt.stop
    lengths = block.response_lengths
    responses = slice(first, first + sum(lengths))

    def padded(x: Tensor) -> Tensor:  # [H, T, D] → [n, H, longest, D]
        parts = x[:, responses].split(lengths, dim=1)
        return torch.stack([pad(part, (0, 0, 0, longest - part.shape[1])) for part in parts])

    def with_prompt(x: Tensor) -> Tensor:  # [H, T, D] → [n, H, P + longest, D]
        return torch.cat([x[:, prompt].expand(len(lengths), -1, -1, -1), padded(x)], dim=2)

    # Padding comes after every real token, so that causality alone hides it.
    mask = torch.ones(longest, block.prompt_length + longest, dtype=torch.bool).tril(block.prompt_length)
    out = scaled_dot_product_attention(
        padded(q), with_prompt(k), with_prompt(v), attn_mask=mask, dropout_p=dropout, scale=scaling
    )
    return torch.cat([part[:, :length].transpose(0, 1) for part, length in zip(out, lengths, strict=True)])
