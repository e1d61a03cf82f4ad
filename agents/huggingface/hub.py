"""Asks a model hub for models, and downloads them.

Whatever the hub's client raises (there is no such name, no connection, no permission), the model is not
available.
"""

from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, boundary

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_TIMEOUT_S = 10.0


def is_name(model: str) -> bool:
    """Whether `model` has the form of a name on a hub, OWNER/NAME, and not of a folder of this project."""
    parts = Path(model).parts
    return len(parts) == 2 and parts[0] not in ("/", "..", "runs", "models")


def check_model(model: str) -> None:
    """Raise `ConfigError` unless the hub has `model`."""
    with _asking_for(model):
        _model_info(model)


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
    with suppress(Exception):
        info = _model_info(model)
        if info.safetensors is not None:
            return int(info.safetensors.total)
    return None


@cache
def _model_info(model: str) -> "ModelInfo":
    """What the hub says of `model`, asked until it has answered once."""
    from huggingface_hub import HfApi

    return HfApi().model_info(model, timeout=_TIMEOUT_S)


def _asking_for(model: str) -> boundary:
    return boundary(
        ConfigError,
        f"model {model!r} is not a folder, and asking the hub for it",
        remedy="correct the name, or download it and give its folder",
    )
