"""How a model is trained on GPUs: its attention, and log-probs without the logits of a whole batch.

The one place for verl's options of a model on GPUs; the warm-up (`tasks/verl/sft.py`) and RL
(`tasks/verl/config.py`) both take them from here. Imports nothing heavy.
"""

from importlib.metadata import PackageNotFoundError, version

from agents.prompting.images import has_vision
from envs.errors import MissingDependency

PLUGIN_ENV = {"VERL_USE_EXTERNAL_MODULES": "tasks.verl.network,tasks.verl.gpu.plugin"}
"""Environment variables that a process needs before it imports verl."""
ADAMW_OPTIONS = {"fused": True}
"""Options of torch's AdamW: one kernel updates the parameters. The default, `foreach`, computes for all of
them at once what the kernel holds in registers: 4 more bytes per parameter at the peak of a step."""
VARLEN_ATTENTION = "wingspan_varlen"
"""Name under which `attention.packed_attention` is registered with transformers."""
_FLASH_ATTENTION = "flash_attention_2"
INSTALL_FLASH_ATTENTION = "uv pip install flash-attn --no-build-isolation -c constraints-gpu.txt"
_OLDEST_FLASH_ATTENTION = "2.4.3"
"""Since then its cross entropy returns what verl reads from it."""


def flash_attention_version() -> str | None:
    """The installed version of the package flash-attn; None if there is none that verl can use."""
    from packaging.version import Version

    try:
        installed_version = version("flash-attn")
    except PackageNotFoundError:
        return None
    return installed_version if Version(installed_version) >= Version(_OLDEST_FLASH_ATTENTION) else None


def gpu_model_options(model: str) -> dict[str, object]:
    """verl's options of `model` (a folder, or a name on the hub) on GPUs, by the fields of `HFModelConfig`.

    Raises `MissingDependency` for a vision-language model where flash-attn is missing: verl replaces the
    attention of such models by one that calls it.
    """
    is_vision_model = has_vision(model)
    if is_vision_model and flash_attention_version() is None:
        raise MissingDependency(
            f"model {model!r} takes images, and verl trains such models with flash-attn only; "
            f"{INSTALL_FLASH_ATTENTION}"
        )
    return {
        "use_remove_padding": True,
        "enable_gradient_checkpointing": True,
        "override_config": {"attn_implementation": _FLASH_ATTENTION if is_vision_model else VARLEN_ATTENTION},
        # Log-probs and entropy from the hidden states, 512 tokens at a time. All logits at once would be
        # 10 GB in bf16 (32,768 tokens, 150,000 words), and the loss holds several times as much.
        "use_fused_kernels": True,
        "fused_kernel_options": {"impl_backend": "torch"},
    }
