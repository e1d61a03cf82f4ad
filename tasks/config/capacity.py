"""How much memory and disk a pipeline needs, from its model's size; nothing is loaded to find out.

What verl keeps and writes: weights, gradients and AdamW's two moments in fp32, sharded over
`backend.workers`; a checkpoint holds all of it but the gradients, and the policy once more in Hugging Face
format. Activations are an estimate, whose terms are on `MemoryPlan`.
"""

import json
import math
import os
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import ConfigError
from envs.requirements.detection import PROBE_TIMEOUT_S
from tasks.config.pipelines import Pipeline
from tasks.verl.gpu_model import FLASH_ATTENTION, gpu_attention

HUB_TIMEOUT_S = 10.0
CHECKPOINT_BYTES = 16
"""Of each parameter, in fp32: the weight, AdamW's two moments, the weight in Hugging Face format."""
TRAINING_BYTES = 16
"""Of each parameter, in fp32: the weight, its gradient, AdamW's two moments."""
POLICY_BYTES = 4
MASK_BYTES = 3
"""Of each pair of tokens in sdpa's mask: a boolean, and the bias in bf16 that it becomes."""
LOGIT_BYTES = 24
"""Of each logit of a chunk: six fp32 tensors live at once in verl's backward pass."""
CHUNK_TOKENS = 512
"""Tokens whose logits verl computes at once."""
RESERVE_BYTES = 5_000_000_000
"""Of each GPU: CUDA contexts of trainer and sampler, what vLLM keeps when it sleeps, fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What a model's own files say of it."""

    parameters: int
    """Tied embeddings count once."""
    vocabulary: int
    width: int
    mlp_width: int
    layers: int
    tied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes of one GPU, at their peaks."""

    state: int
    """Sharded weights, gradients and optimizer, always there."""
    activations: int
    """Of a micro-batch, with gradient checkpointing: the input of each layer, and one layer's inside."""
    gathered: int
    """Embeddings, `lm_head` and two layers in bf16, with their gradients, while they are computed."""
    mask: int
    """sdpa's; flash-attn needs none."""
    logits: int
    """Of a chunk of tokens."""
    sampler: int
    """vLLM's share while it samples, as a fraction of the GPU; set where the GPU's size is known, else 0."""

    @property
    def training(self) -> int:
        """While the policy is updated and vLLM sleeps."""
        return self.state + self.activations + self.gathered + self.mask + self.logits + RESERVE_BYTES

    @property
    def sampling(self) -> int:
        """While vLLM samples and the trainer waits."""
        return self.state + self.sampler + RESERVE_BYTES // 2


def memory_plan(pipeline: Pipeline, size: ModelSize, *, gpu: int = 0) -> MemoryPlan:
    """What `pipeline` needs of each GPU; `gpu`: bytes of one, where known."""
    tokens, workers = pipeline.train.micro_batch_tokens, pipeline.backend.workers
    embeddings = size.vocabulary * size.width * (1 if size.tied else 2)
    layer = (size.parameters - embeddings) // max(1, size.layers)
    inside = 12 * size.width + 6 * size.mlp_width
    return MemoryPlan(
        state=TRAINING_BYTES * size.parameters // workers,
        activations=2 * tokens * (size.layers * size.width + inside),
        gathered=4 * (embeddings + 2 * layer),
        mask=MASK_BYTES * tokens**2 if gpu_attention() != FLASH_ATTENTION else 0,
        logits=LOGIT_BYTES * CHUNK_TOKENS * size.vocabulary,
        sampler=int(pipeline.backend.gpu_memory_utilization * gpu),
    )


def checkpoint_bytes(size: ModelSize) -> int:
    """Size on disk of one checkpoint."""
    return CHECKPOINT_BYTES * size.parameters


def disk_bytes(pipeline: Pipeline, size: ModelSize, *, checkpoints: int) -> int:
    """What a whole run leaves on disk at its fullest, with so many `checkpoints` at once.

    Beside them the policy that training starts from, where there is a warm-up, and the trained one: each
    with a copy in DVC's cache, the trained one with MLflow's, too.
    """
    policies = 3 + (2 if pipeline.warmup is not None else 0)
    return checkpoints * checkpoint_bytes(size) + policies * POLICY_BYTES * size.parameters


def check_memory(pipeline: Pipeline) -> None:
    """Raise `ConfigError` if this machine has GPUs that `pipeline` does not fit, by `memory_plan`.

    Says nothing of a cluster's GPUs (`RAY_ADDRESS`), nor of a model whose size is unknown.
    """
    if pipeline.backend.device == "cpu" or os.environ.get("RAY_ADDRESS"):
        return
    memories = gpu_memories()
    size = read_model_size(pipeline.model) if memories else None
    if size is None:
        return
    gpu = min(memories)
    plan = memory_plan(pipeline, size, gpu=gpu)
    if plan.training > gpu:
        raise ConfigError(
            f"train.micro_batch_tokens {pipeline.train.micro_batch_tokens} needs about "
            f"{plan.training / 1e9:.0f} GB of each GPU while {pipeline.model} is trained, and one has "
            f"{gpu / 1e9:.0f} GB; lower it, or raise backend.workers"
        )
    if plan.sampling > gpu:
        raise ConfigError(
            f"backend.gpu_memory_utilization {pipeline.backend.gpu_memory_utilization} leaves the trainer "
            f"{(gpu - plan.sampler) / 1e9:.0f} GB of each GPU, and {pipeline.model} needs about "
            f"{(plan.sampling - plan.sampler) / 1e9:.0f} GB there; lower it, or raise backend.workers"
        )


def read_model_size(model: str | Path) -> ModelSize | None:
    """The size of a model that is a folder, lies in the hub's cache, or can be asked for at the hub.

    None where it cannot be known: no such model, no connection, or weights that are not safetensors.
    """
    folder = _local_folder(model)
    config = _read_config(model, folder)
    parameters = _count_local(folder) if folder is not None else None
    if config is not None and parameters is None and not Path(model).is_dir():
        parameters = _ask_hub(str(model))
    if config is None or parameters is None:
        return None
    text = config | config.get("text_config", {})
    try:
        return ModelSize(
            parameters=parameters,
            vocabulary=text["vocab_size"],
            width=text["hidden_size"],
            mlp_width=text.get("intermediate_size", 4 * text["hidden_size"]),
            layers=text["num_hidden_layers"],
            tied=bool(text.get("tie_word_embeddings", False)),
        )
    except KeyError:  # a kind of model that has other names for these
        return None


def gpu_memories() -> list[int]:
    """Bytes of each GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) * 2**20 for line in done.stdout.split() if line.isdigit()]


def _local_folder(model: str | Path) -> Path | None:
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # no name that a hub could have
        config = try_to_load_from_cache(str(model), "config.json")
        if isinstance(config, str):
            return Path(config).parent
    return None


def _read_config(model: str | Path, folder: Path | None) -> dict[str, Any] | None:
    path = folder / "config.json" if folder is not None else _download_config(str(model))
    if path is None or not path.is_file():
        return None
    config: dict[str, Any] = json.loads(path.read_text())
    return config


def _download_config(model: str) -> Path | None:
    from huggingface_hub import hf_hub_download

    with suppress(Exception):  # whatever the hub's client raises, the size is unknown
        return Path(hf_hub_download(model, "config.json", etag_timeout=HUB_TIMEOUT_S))
    return None


def _ask_hub(model: str) -> int | None:
    from huggingface_hub import HfApi

    with suppress(Exception):
        info = HfApi().model_info(model, timeout=HUB_TIMEOUT_S)
        if info.safetensors is not None:
            return int(info.safetensors.total)
    return None


def _count_local(folder: Path) -> int | None:
    """Parameters of the safetensors in `folder`, by their headers; None if there are none."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        file_names = set(json.loads(index.read_text())["weight_map"].values())
        if not file_names <= {file.name for file in files}:
            return None  # in the cache in part
    with suppress(struct.error, ValueError):  # a file that was cut off
        return sum(map(_count_file, files)) if files else None
    return None


def _count_file(path: Path) -> int:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
