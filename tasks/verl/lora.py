"""Adapters (`train.lora`) in verl's FSDP engine, on CPUs and GPUs: how they begin, how they are merged for
the sampler, and how they are saved.

verl 0.9.1 leaves the adapters' first values to the random state of the process, sends merged weights in bf16,
and saves a policy "in Hugging Face format" under peft's names, without the adapters. `patch_engine` replaces
these three. Everywhere outside the training process, a policy is therefore a whole model.
"""

from collections.abc import Iterator
from copy import copy
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from peft.tuners.lora import Linear, LoraLayer
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor
from verl.utils.checkpoint import fsdp_checkpoint_manager
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from envs.errors import ConfigError
from tasks.verl.policies import ADAPTER

_PREFIX, _BASE, _NAME = "base_model.model.", ".base_layer.", "default"
"""peft's: of every name, of what an adapter stands beside, and of the adapter."""

_build_adapters = FSDPEngine._build_lora_module
_full_state_dict = fsdp_checkpoint_manager.get_fsdp_full_state_dict


def patch_engine() -> None:
    """Replace what the module says, in this process."""
    FSDPEngine._build_lora_module = _build_seeded_adapters
    FSDPEngine._merged_lora_per_tensor_param = _stream_merged_weights
    fsdp_checkpoint_manager.get_fsdp_full_state_dict = policy_weights
    transformer_impl.FSDPCheckpointManager = PolicyCheckpoints


def merged_weights(model: PeftModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of `model`, each matrix with an adapter as W + alpha/rank · B·A, by the names of the
    model without adapters.

    Whole tensors, one after the other: every rank must take all of them, since gathering a sharded tensor is
    a collective operation. The model keeps its own.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
    for name, value in model.state_dict().items():
        if "lora_" in name:
            continue
        weight = _whole(value)
        layer, _, kind = name.rpartition(_BASE)
        if kind == "weight" and layer in layers:
            adapter = layers[layer]
            b, a = (_whole(part[_NAME].weight) for part in (adapter.lora_B, adapter.lora_A))
            weight = weight + b @ a * adapter.scaling[_NAME]
        yield name.removeprefix(_PREFIX).replace(_BASE, "."), weight.detach()


def policy_weights(
    model: torch.nn.Module, offload_to_cpu: bool = True, rank0_only: bool = True
) -> dict[str, torch.Tensor]:
    """verl's `get_fsdp_full_state_dict`, with adapters merged."""
    if not hasattr(model, "peft_config"):
        state: dict[str, torch.Tensor] = _full_state_dict(model, offload_to_cpu, rank0_only)
        return state
    assert offload_to_cpu
    is_kept = not rank0_only or torch.distributed.get_rank() == 0
    return {name: weight.cpu() for name, weight in merged_weights(model) if is_kept}


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Save the adapter of `model` in peft's format; every rank calls this, and rank 0 writes."""
    state = {name: _whole(value).cpu() for name, value in model.state_dict().items() if "lora_" in name}
    if torch.distributed.get_rank() == 0:
        state = get_peft_model_state_dict(model, state_dict=state, save_embedding_layers=False)
        folder.mkdir(parents=True, exist_ok=True)
        save_file(state, folder / "adapter_model.safetensors")
        config = copy(model.peft_config[_NAME])
        config.inference_mode = True
        # a set, which has another order in each process
        config.target_modules = sorted(config.target_modules)
        config.save_pretrained(folder)


class PolicyCheckpoints(FSDPCheckpointManager):  # type: ignore[misc]
    """verl's checkpoints, with the adapter in peft's format within the policy's folder."""

    def save_checkpoint(self, local_path: str, *args: object, **kwargs: object) -> None:
        """verl's method."""
        super().save_checkpoint(local_path, *args, **kwargs)
        if self._has_lora():
            save_adapter(self.model, Path(local_path) / "huggingface" / ADAPTER)
            torch.distributed.barrier()


def _build_seeded_adapters(engine: FSDPEngine, module: torch.nn.Module) -> PeftModel:
    """verl's method, by the pipeline's seed: a run that begins anew begins with the same adapters."""
    torch.manual_seed(engine.engine_config.seed)
    model = _build_adapters(engine, module)
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and not isinstance(layer, Linear):
            kind = type(layer.get_base_layer()).__name__
            raise ConfigError(
                f"train.lora.targets: {name.removeprefix(_PREFIX)} is a module of type {kind}, and only "
                "linear ones get adapters; leave it out"
            )
    return model


def _stream_merged_weights(engine: FSDPEngine) -> Iterator[tuple[str, torch.Tensor]]:
    """verl's method, in the weights' own precision."""
    return merged_weights(engine.module)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
