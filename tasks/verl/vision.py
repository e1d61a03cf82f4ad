"""What a training row has besides text: images as pixels, and positions in time, height and width.

As verl 0.9.1's agent loop lays them out (`AgentLoopWorker._compute_multi_modal_inputs` and
`_compute_position_ids`). It decodes a row to process its images; here they are processed by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from agents.prompting.images import VisionProcessor, load_processor
from envs.errors import ConfigError
from envs.types import Image

if TYPE_CHECKING:
    from transformers import ProcessorMixin

REMEDY = "train a Qwen2-VL, Qwen2.5-VL or Qwen3-VL model, or leave the images out"


@dataclass(frozen=True, slots=True)
class Vision:
    """The model's visual inputs for one row of `L` tokens."""

    inputs: dict[str, torch.Tensor]
    """The model's arguments besides tokens and positions, by name: `pixel_values` and such."""
    position_ids: torch.Tensor
    """[L], or [4, L] of a model that has them: in the text, then in time, height and width."""


def verl_processor(model: str) -> "ProcessorMixin | None":
    """`model`'s processor as verl loads it, with the model's way to count positions; None of one that reads
    text only.

    Raises `ConfigError` for one that verl does not train, `MissingDependency` for what it needs.
    """
    if load_processor(model) is None:
        return None
    from verl.utils.tokenizer import hf_processor

    processor = hf_processor(model)
    if processor is None:
        raise ConfigError(f"verl 0.9.1 does not know the processor of {model}; {REMEDY}")
    return processor


def vision_of(ids: Sequence[int], images: Sequence[Image], processor: "ProcessorMixin | None") -> Vision:
    """The visual inputs of a row with `ids` ([L]) that show `images` in their order; see `verl_processor`.

    Raises `ConfigError` for images and a model whose positions verl does not count so.
    """
    length = len(ids)
    if processor is None or not hasattr(processor, "get_rope_index"):
        if images:
            raise ConfigError(f"{type(processor).__name__} has no positions for images; {REMEDY}")
        return Vision({}, torch.arange(length))
    vision_processor = _vision(processor)
    inputs = vision_processor.inputs(images)
    grid = inputs.get("image_grid_thw")
    if grid is not None:
        inputs["images_seqlens"] = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    tokens = torch.tensor([list(ids)])
    types = vision_processor.token_types(ids)
    positions, _ = processor.get_rope_index(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        image_grid_thw=grid,
        video_grid_thw=None,
        **({} if types is None else {"mm_token_type_ids": torch.tensor([types])}),
    )
    return Vision(inputs, torch.cat([torch.arange(length)[None], positions[:, 0]]))


def side_by_side(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of [L] or [4, L] as one nested tensor: [rows, L] or [rows, 4, L]."""
    offsets = torch.tensor([0, *(row.shape[-1] for row in rows)]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(
        torch.cat(list(rows), dim=-1), offsets, jagged_dim=rows[0].dim()
    )


@lru_cache(1)
def _vision(processor: "ProcessorMixin") -> VisionProcessor:
    return VisionProcessor(processor)
