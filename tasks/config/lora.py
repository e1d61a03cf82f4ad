"""The block `train.lora`: training of low-rank adapters instead of all weights."""

import struct
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from agents.huggingface.weights import read_shapes
from agents.settings import Positive, Settings
from envs.errors import ConfigError, suggest

_OUTSIDE_LAYERS = ("embed_tokens", "lm_head")
"""Modules that may share their weight, so that no adapter of one of them could be merged."""


def _check_names(targets: object) -> object:
    """Before the types are tried one by one, whose errors would hide these."""
    if targets == "all-linear":
        return targets
    if not isinstance(targets, list | tuple):
        raise ValueError(f"targets {targets!r} are no list; give all-linear, or a list of names")
    if not targets:
        raise ValueError("targets name no module; give names, or all-linear")
    for name in targets:
        if str(name).rpartition(".")[2] in _OUTSIDE_LAYERS:
            raise ValueError(f"targets {name!r}: embeddings and the head get no adapter; leave it out")
    return targets


class LoraSettings(Settings):
    """Low-rank adaptation (Hu et al. 2021, arXiv 2106.09685): a chosen matrix W becomes W + alpha/rank · B·A,
    of which B, [out, rank], and A, [rank, in], are trained. B is 0 at first."""

    rank: Positive
    alpha: Positive = 32
    targets: Annotated[Literal["all-linear"] | tuple[str, ...], BeforeValidator(_check_names)] = "all-linear"
    """Names of linear modules (`q_proj`), or all of them but the head."""

    @property
    def model_options(self) -> dict[str, object]:
        """verl's options of the model, by the fields of `HFModelConfig`."""
        return {
            "lora_rank": self.rank,
            "lora_alpha": self.alpha,
            "target_modules": self.targets if isinstance(self.targets, str) else list(self.targets),
            "lora": {"merge": True},  # the sampler is given whole weights
        }

    def has_target(self, module: str) -> bool:
        """Whether the linear module with this name, its place in the model included, gets an adapter."""
        if isinstance(self.targets, str):
            return True
        return any(_is_named(module, name) for name in self.targets)


def check_targets(lora: LoraSettings, *, model: str) -> None:
    """Raise `ConfigError` for targets that `model` does not have, if it is a folder with readable weights."""
    try:
        modules = _linear_modules(Path(model))
    except (OSError, struct.error, ValueError):
        return
    if isinstance(lora.targets, str) or not modules:
        return
    for target in lora.targets:
        if not any(_is_named(module, target) for module in modules):
            names = sorted({module.rpartition(".")[2] for module in modules})
            raise ConfigError(
                f"train.lora.targets {target!r}: {model} has no such linear module; "
                f"{suggest(target, names)}it has: {', '.join(names)}"
            )


def _is_named(module: str, name: str) -> bool:
    return module == name or module.endswith(f".{name}")


def _linear_modules(folder: Path) -> list[str]:
    """The names of the modules with a 2-D weight, but for embeddings and the head."""
    return [
        name.removesuffix(".weight")
        for file in sorted(folder.glob("*.safetensors"))
        for name, shape in read_shapes(file).items()
        if len(shape) == 2 and not name.removesuffix(".weight").endswith(_OUTSIDE_LAYERS)
    ]
