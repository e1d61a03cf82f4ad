"""Patches verl 0.9.1 where it assumes a GPU, or imports what nothing here uses, and offers no hook.

Only `plugin.py` calls `apply`, and only if `VERL_PLATFORM=cpu`.
"""

import os
from datetime import timedelta
from typing import Any

import torch
import verl.utils.distributed as verl_distributed
import verl.utils.fsdp_utils as verl_fsdp
import verl.utils.model as verl_model
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from tasks.verl.value_model import load_valuehead_model

verl_auto_model_class = verl_model.get_hf_auto_model_class


def apply() -> None:
    """Apply all patches in this process."""
    verl_distributed.initialize_global_process_group = init_process_group
    verl_distributed.initialize_global_process_group_ray = init_process_group_ray
    verl_model.load_valuehead_model = load_valuehead_model
    verl_model.get_hf_auto_model_class = auto_model_class
    verl_fsdp.CPUOffloadPolicy = UnpinnedOffloadPolicy


def init_process_group(timeout_second: int = 36000) -> tuple[int, int, int]:
    """verl's function over gloo alone: torch refuses its `cpu:gloo,cpu:gloo`. Returns (local rank, rank,
    size)."""
    init_process_group_ray(timeout_second)
    return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def init_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
    """verl's function, over gloo alone."""
    if torch.distributed.is_initialized():
        return
    torch.distributed.init_process_group(
        backend="gloo",
        rank=int(os.environ.get("RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
        timeout=timedelta(seconds=timeout_second) if timeout_second is not None else None,
        init_method=os.environ.get("DIST_INIT_METHOD"),
    )


def auto_model_class(hf_config: Any) -> type:
    """verl's function, without the import of all vision-language models that transformers knows."""
    architecture: str = hf_config.architectures[0]
    is_text_model = type(hf_config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if is_text_model and "ForCausalLM" in architecture and not hasattr(hf_config, "auto_map"):
        return verl_model.AutoModelForCausalLM  # type: ignore[no-any-return]
    return verl_auto_model_class(hf_config)  # type: ignore[no-any-return]


class UnpinnedOffloadPolicy(verl_fsdp.CPUOffloadPolicy):  # type: ignore[misc]
    """Without pinned memory, which a machine without an accelerator does not have."""

    def __init__(self, pin_memory: bool = False) -> None:
        super().__init__(pin_memory=False)
