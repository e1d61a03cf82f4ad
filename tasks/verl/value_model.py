"""The critic's model: the policy's, with a head of one number a token instead of the vocabulary's."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def load_valuehead_model(
    local_path: str, torch_dtype: torch.dtype, model_config: "PretrainedConfig", trust_remote_code: bool
) -> torch.nn.Module:
    """verl's function with the attention that `model_config` asks for, where verl's requires flash-attn.

    The head is zero, so every value is 0 at first: an algorithm with a critic then starts from the rewards
    alone, and from the same critic in every run.
    """
    from agents.huggingface.models import AutoModelForTokenClassification

    model: torch.nn.Module = AutoModelForTokenClassification.from_pretrained(
        local_path,
        dtype=torch_dtype,
        config=model_config,
        attn_implementation=model_config._attn_implementation,
        trust_remote_code=trust_remote_code,
    )
    for head in model.children():
        if isinstance(head, torch.nn.Linear):
            for parameter in head.parameters():
                torch.nn.init.zeros_(parameter)
    return model
