"""A small Llama or Qwen2 on the CPU: the shape of a model, its weights and its batches as `forward.py` reads
them.

Owns which checkpoints are supported; all others are refused. Who decides what is in a batch is the engine.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agents.huggingface.files import PlainConfig, load_config
from agents.samplers.cpu.drafts import Drafts
from agents.samplers.cpu.forward import COUNT, DOWN, FIRST, GATE_UP, OUT, QKV, Model, Sizes, forward, generate
from agents.samplers.sampling import diverged_policy_error
from agents.samplers.tiles import BYTES, LANES, pack, round_up
from envs.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig

MAX_ROWS = 192
"""Drafts fill a forward up to this many rows: beyond it, another row saves no time."""
DRAFT_LOGITS_BYTES = 32e6
"""Memory of the logits of a forward with drafts: a large vocabulary leaves room for fewer rows."""
MODEL_TYPES = ("llama", "qwen2")
"""The supported architectures, by their names in config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """All that the forward needs to know about a model besides its weights."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    """Tokens of the longest sequence that the model was trained for."""
    rms_norm_eps: float
    rope_theta: float
    is_tied: bool
    """Whether the output projection is the embedding matrix."""
    has_qkv_bias: bool

    @property
    def sizes(self) -> Sizes:
        """What the compiled functions need of it."""
        return Sizes(
            layers=self.num_layers,
            width=self.hidden_size,
            heads=self.num_heads,
            kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            inner=self.intermediate_size,
            inner_padded=round_up(self.intermediate_size, LANES),
        )

    @property
    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the checkpoint, by its Hugging Face name."""
        width, inner = self.hidden_size, self.intermediate_size
        sizes = {
            "q_proj": self.num_heads * self.head_dim,
            "k_proj": self.num_kv_heads * self.head_dim,
            "v_proj": self.num_kv_heads * self.head_dim,
        }
        shapes: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (self.vocab_size, width),
            "model.norm.weight": (width,),
        }
        if not self.is_tied:
            shapes["lm_head.weight"] = (self.vocab_size, width)
        for index in range(self.num_layers):
            layer = f"model.layers.{index}"
            for name, size in sizes.items():
                shapes[f"{layer}.self_attn.{name}.weight"] = (size, width)
                if self.has_qkv_bias:
                    shapes[f"{layer}.self_attn.{name}.bias"] = (size,)
            shapes[f"{layer}.self_attn.o_proj.weight"] = (width, sizes["q_proj"])
            shapes[f"{layer}.mlp.gate_proj.weight"] = (inner, width)
            shapes[f"{layer}.mlp.up_proj.weight"] = (inner, width)
            shapes[f"{layer}.mlp.down_proj.weight"] = (width, inner)
            shapes[f"{layer}.input_layernorm.weight"] = (width,)
            shapes[f"{layer}.post_attention_layernorm.weight"] = (width,)
        return shapes


def model_shape(config: "PretrainedConfig | PlainConfig", *, source: str) -> ModelShape:
    """The shape that a Hugging Face config describes; `source` names the config in errors.

    Raises `ConfigError` for anything that this forward would compute wrongly.
    """
    remedy = "the CPU engine samples plain Llama and Qwen2 models; use another model or rollout: vllm"
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    layer_types = getattr(config, "layer_types", None) or ()
    requirements: dict[str, tuple[object, tuple[object, ...]]] = {
        "model_type": (config.model_type, MODEL_TYPES),
        "hidden_act": (getattr(config, "hidden_act", "silu"), ("silu",)),
        "attention_bias": (getattr(config, "attention_bias", False), (False,)),
        "mlp_bias": (getattr(config, "mlp_bias", False), (False,)),
        "use_sliding_window": (getattr(config, "use_sliding_window", False), (False,)),
        "quantization_config": (getattr(config, "quantization_config", None), (None,)),
        "rope_parameters.rope_type": (rope.get("rope_type", "default"), ("default",)),
        "rope_parameters.partial_rotary_factor": (rope.get("partial_rotary_factor", 1.0), (1.0,)),
    }
    requirements |= {f"layer_types[{i}]": (kind, ("full_attention",)) for i, kind in enumerate(layer_types)}
    for key, (value, options) in requirements.items():
        if value not in options:
            raise ConfigError(f"{source}: {key} is {value!r}, not {' or '.join(map(str, options))}; {remedy}")
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if head_dim % 2:
        raise ConfigError(f"{source}: head_dim is {head_dim}, an odd number; {remedy}")
    return ModelShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        max_context=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=rope.get("rope_theta", 10_000.0),
        is_tied=config.tie_word_embeddings,
        has_qkv_bias=config.model_type == "qwen2",
    )


def read_checkpoint(folder: Path) -> tuple[ModelShape, "dict[str, torch.Tensor]"]:
    """Shape and weights of a model folder in Hugging Face format (safetensors).

    Raises `ConfigError` if the folder holds no model, a damaged one, or one that is not supported.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise ConfigError(f"no model in {folder}: it needs a config.json and *.safetensors; check `model`")
    shape = model_shape(load_config(folder), source=str(folder / "config.json"))
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            weights |= load_file(file)
        except SafetensorError as error:
            raise ConfigError(f"{file} is damaged ({error}); write or download the model again") from error
    return shape, weights


class Place(NamedTuple):
    """Where a sequence's keys and values lie; 0 for a block that it does not have."""

    address: int
    """The address of the block that its tokens are written to."""
    columns: int
    prefix_address: int = 0
    """The address of the block before it."""
    prefix_columns: int = 0
    prefix_length: int = 0
    """Tokens in the block before it."""


class Segment(NamedTuple):
    """Consecutive tokens of one sequence, computed in one forward."""

    tokens: Sequence[int]
    start: int
    """Position of the first token in the sequence."""
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How the next tokens of N sequences are drawn."""

    slots: np.ndarray  # [N]
    salts: np.ndarray  # [N]
    keys: np.ndarray  # [N]
    temperatures: np.ndarray  # [N]
    stops: np.ndarray  # [N, any]
    limits: np.ndarray  # [N]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Segments of S sequences, with N tokens in all."""

    tokens: np.ndarray  # [N]
    positions: np.ndarray  # [N]
    segments: np.ndarray  # [S, 7]
    draws: Draws | None = None
    """The draws of a batch with the last token of each sequence, from which others are to be drawn."""

    def split(self, parts: int) -> list["Batch"]:
        """Batches for `parts` threads, with about as many tokens each; fewer if there are fewer segments."""
        ends = np.cumsum(self.segments[:, COUNT])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts) + 1
        limits = sorted({0, len(ends), *(int(cut) for cut in cuts if cut < len(ends))})
        return [self._part(first, end) for first, end in itertools.pairwise(limits)]

    def _part(self, first: int, end: int) -> "Batch":
        segments = self.segments[first:end].copy()
        start = segments[0, FIRST]
        rows = slice(start, segments[-1, FIRST] + segments[-1, COUNT])
        segments[:, FIRST] -= start
        draws = self.draws
        if draws is not None:
            draws = Draws(
                slots=draws.slots[first:end],
                salts=draws.salts[first:end],
                keys=draws.keys[first:end],
                temperatures=draws.temperatures[first:end],
                stops=draws.stops[first:end],
                limits=draws.limits[first:end],
            )
        return Batch(tokens=self.tokens[rows], positions=self.positions[rows], segments=segments, draws=draws)


def make_batch(segments: Iterable[Segment], draws: Draws | None = None) -> Batch:
    """The batch of `segments`, of which those with one prefix follow each other."""
    tokens: list[int] = []
    positions: list[int] = []
    table = []
    for new_tokens, start, place in segments:
        count = len(new_tokens)
        table.append((len(tokens), count, *place))
        tokens += new_tokens
        positions += (start,) if count == 1 else range(start, start + count)
    return Batch(
        tokens=np.array(tokens, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        segments=np.array(table, dtype=np.int64),
        draws=draws,
    )


class Llama:
    """Weights prepared for speed, in float32.

    Identities save operations per token: a norm's gain scales the next matrix, and the softmax scale is
    folded into the query projection.
    """

    def __init__(self, shape: ModelShape, weights: Mapping[str, "torch.Tensor"], *, max_context: int) -> None:
        """`weights` by Hugging Face name; raises `ConfigError` if they do not fit `shape`."""
        _check(weights, shape)
        w = {name: weights[name].detach().cpu().float().numpy() for name in shape.weight_shapes}
        head = w["model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"]
        with np.errstate(all="ignore"):  # weights that have diverged are found in the logits
            layers = [_pack_layer(w, f"model.layers.{index}", shape) for index in range(shape.num_layers)]
            matrices = [matrix for packed, _ in layers for matrix in packed]
            matrices.append(pack(head * w["model.norm.weight"]))
        offsets = np.zeros((shape.num_layers + 1, 4), dtype=np.int64)
        offsets.flat[: len(matrices)] = np.cumsum([0, *map(len, matrices)])[:-1]
        cosine, sine = _rotation(shape, max_context=max_context)
        self.shape = shape
        self._max_rows = min(MAX_ROWS, int(DRAFT_LOGITS_BYTES / BYTES / round_up(shape.vocab_size, LANES)))
        self._model = Model(
            sizes=shape.sizes,
            eps=np.float32(shape.rms_norm_eps),
            embedding=_pad(w["model.embed_tokens.weight"], columns=round_up(shape.hidden_size, LANES)),
            cosine=cosine,
            sine=sine,
            biases=np.stack([bias for _, bias in layers]),
            weights=np.concatenate(matrices),
            offsets=offsets,
        )

    def compute(self, batch: Batch, *, logits_of: np.ndarray) -> np.ndarray:
        """Write the keys and values of `batch`; returns logits [W, vocab] of its rows `logits_of` [W]."""
        logits = self._empty_logits(len(logits_of))
        forward(batch.tokens, batch.positions, batch.segments, self._model, logits_of, logits)
        return logits[:, : self.shape.vocab_size]

    def generate(
        self, batch: Batch, drafts: Drafts, *, count: int, max_draft: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sample up to `count` tokens after each sequence of `batch`, of which it has the last token alone.

        `max_draft`: the most tokens that are drafted for a sequence. Returns tokens [N, count], filled up
        with -1, log-probs [N, count], and counts [3]: forwards, drafted tokens, accepted ones. Raises
        `SamplerFailed` for logits that are not numbers.
        """
        draws = batch.draws
        assert draws is not None
        sampled = np.empty((len(batch.tokens), count), dtype=np.int64)
        logprobs, counts = np.empty(sampled.shape), np.empty(3, dtype=np.int64)
        if not generate(
            batch.tokens.copy(),
            batch.positions.copy(),
            batch.segments.copy(),
            self._model,
            drafts,
            max_draft,
            draws.slots,
            draws.salts,
            draws.keys,
            draws.temperatures,
            draws.stops,
            draws.limits,
            self._empty_logits(max(len(sampled), self._max_rows)),
            sampled,
            logprobs,
            counts,
        ):
            raise diverged_policy_error()
        return sampled, logprobs, counts

    def _empty_logits(self, rows: int) -> np.ndarray:
        return np.empty((rows, round_up(self.shape.vocab_size, LANES)), dtype=np.float32)


def _pack_layer(
    w: Mapping[str, np.ndarray], layer: str, shape: ModelShape
) -> tuple[list[np.ndarray], np.ndarray]:
    """The packed matrices of a layer, in the order of `forward.py`, and the biases [Q] of its first."""

    def projections(kind: str) -> np.ndarray:
        q, k, v = (w[f"{layer}.self_attn.{name}_proj.{kind}"] for name in "qkv")
        return np.concatenate([q * np.float32(shape.head_dim**-0.5), k, v])

    qkv = projections("weight") * w[f"{layer}.input_layernorm.weight"]
    gain, inner = w[f"{layer}.post_attention_layernorm.weight"], shape.sizes.inner_padded
    gate, up = (_pad(w[f"{layer}.mlp.{name}_proj.weight"] * gain, rows=inner) for name in ("gate", "up"))
    biases = np.zeros(round_up(len(qkv), LANES), dtype=np.float32)
    if shape.has_qkv_bias:
        biases[: len(qkv)] = projections("bias")
    matrices: dict[int, np.ndarray] = {
        QKV: qkv,
        OUT: w[f"{layer}.self_attn.o_proj.weight"],
        GATE_UP: np.concatenate([gate, up]),
        DOWN: w[f"{layer}.mlp.down_proj.weight"],
    }
    return [pack(matrices[index]) for index in sorted(matrices)], biases


def _rotation(shape: ModelShape, *, max_context: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [T, D / 2] of the rotary embedding, computed in float32 as transformers does."""
    import torch

    exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
    angles = torch.outer(torch.arange(max_context).float(), 1.0 / shape.rope_theta**exponents)
    return angles.cos().numpy(), angles.sin().numpy()


def _pad(matrix: np.ndarray, *, rows: int = 0, columns: int = 0) -> np.ndarray:
    """`matrix` with zeros up to so many rows and columns."""
    missing = [(0, max(0, size - have)) for size, have in zip((rows, columns), matrix.shape, strict=True)]
    return np.ascontiguousarray(np.pad(matrix, missing))


def _check(weights: Mapping[str, "torch.Tensor"], shape: ModelShape) -> None:
    sizes = shape.weight_shapes
    remedy = "weights and config.json must come from one model"
    for name, size in sizes.items():
        if name not in weights:
            raise ConfigError(f"weights lack {name!r}; {remedy}")
        if tuple(weights[name].shape) != size:
            raise ConfigError(f"weight {name!r} is {tuple(weights[name].shape)}, not {size}; {remedy}")
    # the output projection of a tied model may be in the checkpoint as well
    unknown = weights.keys() - sizes.keys() - {"lm_head.weight"}
    if unknown:
        raise ConfigError(f"weights have {min(unknown)!r}, which this model does not have; {remedy}")
