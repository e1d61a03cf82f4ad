"""Patches verl 0.9.1 on GPUs; a verl plugin.

It registers the attention of packed rows (`tasks/verl/gpu/attention.py`), makes the log-probs in chunks
(`tasks/verl/gpu/model.py`) work under FSDP2, loads a critic with the same attention
(`tasks/verl/value_model.py`), and merges and saves adapters (`tasks/verl/lora.py`).

verl's chunked forward reads `lm_head.weight` and never calls that module. Where the embeddings are not
tied, FSDP2 shards `lm_head` by itself, its weight is a shard when it is read, and the first step fails
("mixed torch.Tensor and DTensor"). Left to the root, it is gathered while the model's forward runs.
Imported by verl itself (`VERL_USE_EXTERNAL_MODULES`), at the end of `import verl`.
"""

from typing import TYPE_CHECKING

import verl.utils.fsdp_utils as verl_fsdp
import verl.utils.model as verl_model

from envs.errors import ConfigError
from tasks.verl.gpu import attention
from tasks.verl.value_model import load_valuehead_model

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

_LOGIT_FACTORS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")
"""Settings of models that do more to their logits than `lm_head`."""

_select_targets = verl_fsdp._select_fsdp2_wrap_targets


def select_targets(model: "PreTrainedModel", layer_classes: list[str]) -> "list[torch.nn.Module]":
    """The modules that FSDP2 shards one by one: verl's choice without `lm_head`."""
    check_logits(model.config)
    head = model.get_output_embeddings()
    return [module for module in _select_targets(model, layer_classes) if module is not head]


def check_logits(config: "PretrainedConfig") -> None:
    """Raise `ConfigError` for a model whose logits are more than `lm_head` of its hidden states."""
    text = config.get_text_config()
    for name in _LOGIT_FACTORS:
        if (value := getattr(text, name, None)) not in (None, 1):
            raise ConfigError(
                f"models of type {config.model_type} cannot be trained on GPUs: verl's log-probs in chunks "
                f"leave out {name}, which is {value}; choose another model"
            )


attention.register()
verl_fsdp._select_fsdp2_wrap_targets = select_targets
verl_model.load_valuehead_model = load_valuehead_model

# The engine's modules take the above by name, so they are imported after it.
from tasks.verl.lora import patch_engine  # noqa: E402

patch_engine()
