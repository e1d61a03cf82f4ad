"""Estimates the memory and disk that a pipeline needs, from the size of its model, which is not loaded.

verl keeps and writes weights, gradients and AdamW's two moments in fp32, sharded over `backend.workers`, of
the policy and of a critic. A checkpoint holds all of these except the gradients, and the policy a second time
in Hugging Face format. With `train.lora`, only the adapters have gradients and moments; a checkpoint holds
these, the adapters a second time in peft's format, and the merged policy in Hugging Face format.
The warm-up and offline training are the work of one process, which shards nothing. Activations are estimated
by the terms of `_pass_parts`. `memory.py` compares them with the devices.
"""

import json
import math
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.huggingface import hub
from agents.huggingface.files import find_file
from agents.huggingface.weights import read_shapes
from tasks.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from tasks.config.lora import LoraSettings
from tasks.config.pipelines import Pipeline
from tasks.config.training import TrainSettings

CHECKPOINT_BYTES = 16
"""Bytes per trained parameter, in fp32: the weight, AdamW's two moments, the weight in another format."""
CRITIC_CHECKPOINT_BYTES = 12
"""Bytes per parameter of a critic, in fp32: the weight, AdamW's two moments."""
TRAINING_BYTES = 16
"""Bytes per trained parameter, in fp32: the weight, its gradient, AdamW's two moments."""
WEIGHT_BYTES = 4
"""Bytes per parameter that is not trained, or of a policy that is only kept."""
LOGIT_BYTES = 24
"""Bytes per logit of a chunk: verl's backward pass holds six fp32 tensors at once."""
CHUNK_TOKENS = 512
"""Tokens whose logits verl computes at once."""
CUDA_BYTES = 2_500_000_000
"""Bytes per GPU: the CUDA context of the process that trains, fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """A model's size, read from its files."""

    parameters: int
    """Tied embeddings are counted once."""
    vocabulary: int
    width: int
    mlp_width: int
    layers: int
    heads: int
    """Attention heads."""
    kv_heads: int
    """Heads of keys and values."""
    kv_width: int
    """Numbers of a token's keys in one layer, as many as of its values."""
    tied: bool

    def fits_engine(self, gpus: int) -> bool:
        """Whether vLLM can spread the model over so many GPUs: each has as many attention heads as the
        others, and as many heads of keys, or else a copy of one."""
        has_shared_keys = self.kv_heads % gpus == 0 or gpus % self.kv_heads == 0
        return self.heads % gpus == 0 and has_shared_keys

    @property
    def critic_parameters(self) -> int:
        """The number of parameters of a critic, whose head has one number a token; the head's own parameters
        are too few to count."""
        return self.parameters - (0 if self.tied else self.vocabulary * self.width)

    def adapter_parameters(self, lora: LoraSettings) -> int:
        """The number of parameters of the adapters of a decoder with the modules of Llama."""
        full, grouped, mlp = (self.width + other for other in (self.width, self.kv_width, self.mlp_width))
        in_and_out = {f"self_attn.{name}_proj": full for name in "qo"}
        in_and_out |= {f"self_attn.{name}_proj": grouped for name in "kv"}
        in_and_out |= {f"mlp.{name}_proj": mlp for name in ("gate", "up", "down")}
        return lora.rank * sum(
            size
            for layer in range(self.layers)
            for module, size in in_and_out.items()
            if lora.has_target(f"model.layers.{layer}.{module}")
        )


def state_bytes(pipeline: Pipeline, size: ModelSize) -> int:
    """The bytes of each worker's sharded weights, gradients and optimizer state, a critic's included."""
    train = pipeline.train
    critic = size.critic_parameters if isinstance(train.algorithm, ActorCritic) else 0
    return (_policy_bytes(size, train.lora) + TRAINING_BYTES * critic) // pipeline.backend.workers


def supervised_bytes(pipeline: Pipeline, size: ModelSize) -> int:
    """What `state_bytes` is for the process of the warm-up and of offline training, which shards nothing."""
    # A warm-up trains all weights.
    return _policy_bytes(size, None if pipeline.warmup is not None else pipeline.train.lora)


def _policy_bytes(size: ModelSize, lora: LoraSettings | None) -> int:
    """Weights, gradients and optimizer state of the policy, on all workers together."""
    if lora is None:
        return TRAINING_BYTES * size.parameters
    return TRAINING_BYTES * size.adapter_parameters(lora) + WEIGHT_BYTES * size.parameters


def training_parts(pipeline: Pipeline, size: ModelSize) -> dict[str, int]:
    """What a GPU holds at the peak of an update, without vLLM, in bytes by name."""
    algorithm = pipeline.train.algorithm
    return {
        "weights, gradients and optimizer": state_bytes(pipeline, size),
        **_pass_parts(
            pipeline,
            size,
            has_whole_logits=isinstance(algorithm, OnlineAlgorithm) and algorithm.needs_sum_pi_squared,
            has_gradients=pipeline.train.lora is None or isinstance(algorithm, ActorCritic),
        ),
        "CUDA": CUDA_BYTES,
    }


def supervised_parts(pipeline: Pipeline, size: ModelSize) -> dict[str, int]:
    """What the one GPU of the warm-up and of offline training holds at the peak of an update; vLLM is not
    running then."""
    has_gradients = pipeline.warmup is not None or pipeline.train.lora is None
    return {
        "weights, gradients and optimizer": supervised_bytes(pipeline, size),
        **_pass_parts(pipeline, size, has_whole_logits=False, has_gradients=has_gradients),
        "CUDA": CUDA_BYTES,
    }


def _pass_parts(
    pipeline: Pipeline, size: ModelSize, *, has_whole_logits: bool, has_gradients: bool
) -> dict[str, int]:
    """What a forward and a backward pass hold on a GPU, in bytes by name."""
    tokens = pipeline.train.micro_batch_tokens
    embeddings = size.vocabulary * size.width * (1 if size.tied else 2)
    layer = (size.parameters - embeddings) // max(1, size.layers)
    chunk = tokens if has_whole_logits else min(tokens, CHUNK_TOKENS)
    layer_activations = 12 * size.width + 6 * size.mlp_width
    return {
        # Of a micro-batch, with gradient checkpointing: the input of each layer, and the inside of one layer.
        "activations": 2 * tokens * (size.layers * size.width + layer_activations),
        # Embeddings, `lm_head` and two layers in bf16, with their gradients unless these weights are not
        # trained, while FSDP has gathered them.
        "gathered layers": (4 if has_gradients else 2) * (embeddings + 2 * layer),
        # Of a chunk of tokens; of a whole micro-batch where the algorithm needs the distributions.
        "logits": LOGIT_BYTES * chunk * size.vocabulary,
    }


def checkpoint_bytes(size: ModelSize, train: TrainSettings) -> int:
    """Size on disk of one checkpoint, with that of a critic if `train` has one."""
    critic = (
        CRITIC_CHECKPOINT_BYTES * size.critic_parameters if isinstance(train.algorithm, ActorCritic) else 0
    )
    if train.lora is None:
        return CHECKPOINT_BYTES * size.parameters + critic
    adapters = CHECKPOINT_BYTES * size.adapter_parameters(train.lora)
    return WEIGHT_BYTES * size.parameters + adapters + critic


def disk_bytes(pipeline: Pipeline, size: ModelSize, *, checkpoints: int) -> int:
    """The most disk space that a run takes, with this many `checkpoints` at once.

    It also holds the policy that training starts from, if there is a warm-up, and the trained policy: each
    with a copy in DVC's cache, the trained one with another in MLflow's store; and the best policy so far.
    """
    policies = 4 + (2 if pipeline.warmup is not None else 0)
    checkpoint = checkpoint_bytes(size, pipeline.train)
    return checkpoints * checkpoint + policies * WEIGHT_BYTES * size.parameters


def read_model_size(model: str | Path) -> ModelSize | None:
    """The size of a model that is a folder, is in the hub's cache, or is on the hub.

    None if it is unknown: there is no such model, no connection, or the weights are not safetensors.
    """
    config = find_file(model, "config.json")
    parameters = _count_local(config.parent) if config is not None else None
    if parameters is None and not Path(model).is_dir():
        # Asked first: without a connection, a download retries for 20 s.
        parameters = hub.count_parameters(str(model))
    if parameters is not None and config is None:
        config = hub.download_config(str(model))
    if parameters is None or config is None:
        return None
    text = read_config(config.parent)
    try:
        heads = text["num_attention_heads"]
        kv_heads = text.get("num_key_value_heads", heads)
        head_width = text.get("head_dim") or text["hidden_size"] // heads
        return ModelSize(
            parameters=parameters,
            vocabulary=text["vocab_size"],
            width=text["hidden_size"],
            mlp_width=text.get("intermediate_size", 4 * text["hidden_size"]),
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=kv_heads,
            kv_width=kv_heads * head_width,
            tied=bool(text.get("tie_word_embeddings", False)),
        )
    except KeyError:  # an architecture with other names for these
        return None


def read_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of the model in `folder`, of its language model where it has several."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config |= config.get("text_config", {})
    return config


def _count_local(folder: Path) -> int | None:
    """Parameters of the safetensors in `folder`, by their headers; None if there are none."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        file_names = set(json.loads(index.read_text())["weight_map"].values())
        if not file_names <= {file.name for file in files}:
            return None  # only part of it is in the cache
    with suppress(struct.error, ValueError):  # a truncated file
        shapes = [shape for file in files for shape in read_shapes(file).values()]
        return sum(map(math.prod, shapes)) if files else None
    return None
