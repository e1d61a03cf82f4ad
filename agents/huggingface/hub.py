"""Asks a model hub for models, and downloads them.

Whatever the hub's client raises (there is no such name, no connection, no permission), the model is not
available.
"""

from contextlib import suppress
from pathlib import Path

from envs.errors import ConfigError, boundary

_TIMEOUT_S = 10.0


def check_model(model: str) -> None:
    """Raise `ConfigError` unless the hub has `model`."""
    from huggingface_hub import HfApi

    with _asking_for(model):
        HfApi().model_info(model, timeout=_TIMEOUT_S)


def download_model(model: str) -> Path:
    """The folder of `model` in the hub's cache, downloaded unless it is there. Raises `ConfigError`."""
    from huggingface_hub import snapshot_download

    with _asking_for(model):
        return Path(snapshot_download(model))


def download_config(model: str) -> Path | None:
    """The `config.json` of `model` in the hub's cache; None if it is not available."""
    from huggingface_hub import hf_hub_download

    with suppress(Exception):
        return Path(hf_hub_download(model, "config.json", etag_timeout=_TIMEOUT_S))
    return None


def count_parameters(model: str) -> int | None:
    """The parameters of `model`; None if it is not available, or its weights are not safetensors."""
    from huggingface_hub import HfApi

    with suppress(Exception):
        info = HfApi().model_info(model, timeout=_TIMEOUT_S)
        if info.safetensors is not None:
            return int(info.safetensors.total)
    return None


def _asking_for(model: str) -> boundary:
    return boundary(
        ConfigError,
        f"model {model!r} is not a folder, and asking the hub for it",
        remedy="correct the name, or download it and give its folder",
    )
