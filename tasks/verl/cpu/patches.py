"""Patches verl 0.9.1 where it assumes a GPU, or spends seconds of a start-up for nothing, and offers no hook.

Only `plugin.py` calls `apply`, and only if `VERL_PLATFORM=cpu`.
"""

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

import ray
import torch
import verl.utils.distributed as verl_distributed
import verl.utils.fsdp_utils as verl_fsdp
import verl.utils.model as verl_model
from transformers import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
from verl.single_controller.ray import RayWorkerGroup

from tasks.verl.value_model import load_valuehead_model

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from transformers import PretrainedConfig

verl_auto_model_class = verl_model.get_hf_auto_model_class
verl_master_address = RayWorkerGroup._get_master_addr_port


def apply() -> None:
    """Apply all patches in this process."""
    verl_distributed.initialize_global_process_group = init_process_group
    verl_distributed.initialize_global_process_group_ray = init_process_group_ray
    verl_model.load_valuehead_model = load_valuehead_model
    verl_model.get_hf_auto_model_class = auto_model_class
    RayWorkerGroup._get_master_addr_port = master_address
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


def auto_model_class(hf_config: "PretrainedConfig") -> type:
    """verl's function, without the import of all vision-language models that transformers knows."""
    architecture: str = hf_config.architectures[0]
    is_text_model = type(hf_config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    if is_text_model and "ForCausalLM" in architecture and not hasattr(hf_config, "auto_map"):
        return verl_model.AutoModelForCausalLM  # type: ignore[no-any-return]
    return verl_auto_model_class(hf_config)  # type: ignore[no-any-return]


def master_address(
    self: RayWorkerGroup,
    pg: "PlacementGroup",
    bundle_index: int = 0,
    master_port_range: list[int] | None = None,
) -> None:
    """verl's method; for a first rank on this node, no worker of Ray is started to look for the port."""
    node = ray.util.placement_group_table(pg)["bundles_to_node_id"][bundle_index]
    is_here = node == ray.get_runtime_context().get_node_id()
    if self._master_addr is None and is_here and master_port_range is None:
        address = ray.util.get_node_ip_address().strip("[]")
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
            self._master_addr, self._master_port = address, str(probe.getsockname()[1])
        return
    verl_master_address(self, pg, bundle_index, master_port_range)


class UnpinnedOffloadPolicy(verl_fsdp.CPUOffloadPolicy):  # type: ignore[misc]
    """Offloads without pinned memory, which a machine without an accelerator does not have."""

    def __init__(self, pin_memory: bool = False) -> None:
        super().__init__(pin_memory=False)
