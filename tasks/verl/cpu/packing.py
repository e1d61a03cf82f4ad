"""Packs a micro-batch into one row without padding, with each prompt only once.

The trajectories of a group share their prompt: it is computed once, and every response attends to it
(`attention.py`). The row computes the same function as the padded batch, at a fraction of its cost.

    samples    prompt A + response 0, prompt A + response 1, prompt B + response 2
    one row    A | 0 | 1 | B | 2          positions 0…|A|-1, |A|…, |A|…, 0…|B|-1, |B|…

Shapes: `B` samples, `T` tokens of the row, `N` tokens whose log-prob is computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
