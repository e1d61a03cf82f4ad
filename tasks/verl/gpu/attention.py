"""Attention over packed rows on GPUs, by torch's own FlashAttention-2 kernels for sequences of any lengths.

Each pair of tokens of a sequence is computed once; no mask, no padding, no package to compile.
Shapes: `H` query heads, `K` heads of keys and values, `T` tokens of the row, `D` numbers per head.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.utils.weak import WeakTensorKeyDictionary

from envs.errors import ConfigError
from tasks.verl.gpu.model import VARLEN_ATTENTION

_attend: Callable[..., Any] = varlen_attn
if "enable_gqa" in inspect.signature(varlen_attn).parameters:
    _attend = partial(varlen_attn, enable_gqa=True)  # torch 2.11 takes fewer heads of keys without being told

_boundaries: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""The boundaries of the row whose layers are computed: position ids → `_find_boundaries`."""


def register() -> None:
    """Make the attention known to transformers by its name; it is then given no mask."""
    from transformers import AttentionInterface

    AttentionInterface.register(VARLEN_ATTENTION, packed_attention)


def packed_attention(
    module: Any,
    query: Tensor,  # [1, H, T, D], bf16 or fp16
    key: Tensor,  # [1, K, T, D], K divides H
    value: Tensor,  # [1, K, T, D]
    attention_mask: Tensor | None,
    *,
    position_ids: Tensor,  # [1, T], from 0 in each sequence
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Causal attention of each token to its own sequence, at most to its last `sliding_window` tokens.

    transformers calls it in each layer; returns ([1, T, H, D], None). Raises `ConfigError` for what the
    kernels do not compute: dropout, capped scores, attention sinks.
    """
    unsupported = {"dropout": dropout > 0, "capped scores": softcap is not None, "sinks": s_aux is not None}
    for name, is_needed in unsupported.items():
        if is_needed:
            raise ConfigError(
                f"the attention of {module.config.model_type} has {name}, which torch's kernels on GPUs do "
                "not compute; choose another model"
            )
    boundaries, longest = _find_boundaries(position_ids)
    output: Tensor = _attend(
        *(x[0].transpose(0, 1) for x in (query, key, value)),
        boundaries,
        boundaries,
        longest,
        longest,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
    )
    return output.unsqueeze(0), None


def _find_boundaries(position_ids: Tensor) -> tuple[Tensor, int]:
    """Where the sequences begin, and the last ends ([N + 1], int32), and the longest one's length.

    Found once for all layers of a row, because reading it from a GPU waits for all that runs there.
    """
    known: tuple[Tensor, int] | None = _boundaries.get(position_ids)
    if known is None:
        positions = position_ids[0]
        starts = (positions == 0).nonzero()[:, 0]
        boundaries = torch.cat([starts, starts.new_tensor([len(positions)])]).to(torch.int32)
        known = _boundaries[position_ids] = boundaries, int(boundaries.diff().max())
    return known
