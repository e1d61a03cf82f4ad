"""A small Llama or Qwen2 on the CPU: the shape of a model, its weights, one forward over packed tokens.

Owns which checkpoints are supported (all others are refused) and the arithmetic outside attention.
Attention is a callback, because it depends on where keys and values are stored (`kv_cache.py`).
Shapes: `N` tokens of any number of sequences, `E` hidden, `H` heads, `K` KV heads, `D` head dimension.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from envs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MODEL_TYPES = ("llama", "qwen2")
"""The supported architectures, by their names in config.json."""

ROWS = 4
"""Products have a multiple of this many rows: of fewer, libraries may compute sums in another order, and
their last bits differ (docs/decisions/0013-same-bits.md)."""
_PACKED_FOR = 64
"""Rows of the products that the layout of packed matrices is chosen for; it serves all."""
PADDING = 16
"""Columns after the hidden ones; the first holds the least norm of a row, which its norm then includes."""

Attend = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, qkv [N, H + 2K, D], rotated, queries scaled) -> [N, H * D]."""


def round_up(count: int, multiple: int) -> int:
    """The least multiple that is not less than `count`."""
    return -(-count // multiple) * multiple


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


def model_shape(config: "PretrainedConfig", *, source: str) -> ModelShape:
    """The shape that a Hugging Face config describes; `source` names the config in errors.

    Raises `ConfigError` for anything that this forward would compute wrongly.
    """
    remedy = "the CPU engine samples plain Llama and Qwen2 models; use another model or rollout: vllm"
    rope: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    layer_types = getattr(config, "layer_types", None) or ()
    requirements: dict[str, tuple[Any, tuple[Any, ...]]] = {
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
    if head_dim % 8:
        raise ConfigError(f"{source}: head_dim is {head_dim}, not a multiple of 8; {remedy}")
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


def read_checkpoint(folder: Path) -> tuple[ModelShape, dict[str, torch.Tensor]]:
    """Shape and weights of a model folder in Hugging Face format (safetensors).

    Raises `ConfigError` if the folder holds no model, or one that is not supported.
    """
    from safetensors.torch import load_file

    from agents.huggingface import AutoConfig

    files = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not files:
        raise ConfigError(f"no model in {folder}: it needs a config.json and *.safetensors; check `model`")
    shape = model_shape(AutoConfig.from_pretrained(folder), source=str(folder / "config.json"))
    weights: dict[str, torch.Tensor] = {}
    for file in files:
        weights |= load_file(file)
    return shape, weights


class _Matrix:
    """A linear map, packed where torch has oneDNN: on AMD, its products use AVX-512 where MKL's use AVX2."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight`: [outputs, inputs]; `bias`: [outputs]."""
        self._is_packed = torch.backends.mkldnn.is_available()
        self._bias = bias
        self._weight = weight.contiguous()
        if self._is_packed:
            # the operators of torch.compile on CPUs; torch.utils.mkldnn would copy inputs and outputs
            self._weight = torch.ops.mkldnn._reorder_linear_weight(self._weight, _PACKED_FOR)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs] -> [N, outputs]"""
        if self._is_packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return product
        return F.linear(x, self._weight, self._bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The maps of a layer."""

    qkv: _Matrix  # E -> (H + 2K) * D
    out: _Matrix  # H * D -> E
    gate_up: _Matrix  # E -> 2 * inner
    down: _Matrix  # inner -> E


class Llama:
    """Weights prepared for speed, in float32, and the forward.

    Identities save operations per token: a norm's gain, and the root of the hidden size that makes
    a norm a mean, scale the next matrix; the softmax scale is folded into the query projection; and with
    the two halves of each head interleaved, rotary embedding is one complex product. The cache holds keys
    in that order.
    """

    def __init__(self, shape: ModelShape, weights: Mapping[str, torch.Tensor], *, max_context: int) -> None:
        """`weights` by Hugging Face name; raises `ConfigError` if they do not fit `shape`."""
        self.shape = shape
        _check(weights, shape)
        w = {name: weights[name].detach().to("cpu", torch.float32) for name in shape.weight_shapes}
        self._embedding = F.pad(w["model.embed_tokens.weight"], (0, PADDING))
        self._embedding[:, shape.hidden_size] = (shape.rms_norm_eps * shape.hidden_size) ** 0.5
        head = w["model.embed_tokens.weight" if shape.is_tied else "lm_head.weight"]
        self._head = _Matrix(_after_norm(head, w["model.norm.weight"]))
        self._layers = [_prepare(w, f"model.layers.{i}", shape) for i in range(shape.num_layers)]
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.int64).float() / shape.head_dim
        angles = torch.outer(torch.arange(max_context).float(), shape.rope_theta**-exponents)
        self._rotation = torch.polar(torch.ones_like(angles), angles)[:, None]  # [T, 1, D / 2]

    def forward(
        self, tokens: torch.Tensor, *, positions: torch.Tensor, attend: Attend, logits_of: torch.Tensor | None
    ) -> torch.Tensor:
        """Logits [W, vocab] of the tokens at indices `logits_of` [W]; `tokens`, `positions`: [N], a multiple
        of `ROWS`.

        A token's logits, keys and values are the same to the last bit whatever the other tokens are, if this
        holds for `attend`. `logits_of=None` only fills the cache: the rest is not computed, and [N, E] is
        returned.
        """
        shape = self.shape
        n, inner = tokens.numel(), shape.intermediate_size
        width = (shape.num_heads + shape.num_kv_heads) * shape.head_dim
        rotation = self._rotation[positions]
        x = F.embedding(tokens, self._embedding)
        hidden = x[:, : shape.hidden_size]
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv(self._norm(x))
            pairs = qkv[:, :width].unflatten(1, (-1, shape.head_dim // 2, 2))
            torch.view_as_complex(pairs).mul_(rotation)
            output = attend(index, qkv.view(n, -1, shape.head_dim))
            if logits_of is None and index == shape.num_layers - 1:
                break
            hidden.add_(layer.out(output))
            gate_up = layer.gate_up(self._norm(x))
            hidden.add_(layer.down(F.silu(gate_up[:, :inner]).mul_(gate_up[:, inner:])))
        if logits_of is None:
            return hidden
        rows = F.pad(logits_of, (0, round_up(len(logits_of), ROWS) - len(logits_of)))
        return self._head(self._norm(x[rows]))[: len(logits_of)]

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMS norm [N, E] without its gain, over the root of the hidden size; `x`: [N, E + PADDING]."""
        norm: torch.Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x[:, : self.shape.hidden_size] / norm


def _after_norm(matrix: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """`matrix` [outputs, E] with the factors that `_norm` leaves out."""
    return (matrix * gain).mul_(gain.numel() ** 0.5)


def _prepare(w: Mapping[str, torch.Tensor], layer: str, shape: ModelShape) -> _Layer:
    half = shape.head_dim // 2
    order = torch.stack([torch.arange(half), torch.arange(half) + half], dim=1).flatten()

    def projections(kind: str) -> torch.Tensor:
        q, k, v = (w[f"{layer}.self_attn.{name}_proj.{kind}"] for name in "qkv")
        q = q.unflatten(0, (-1, shape.head_dim))[:, order].flatten(0, 1) * shape.head_dim**-0.5
        k = k.unflatten(0, (-1, shape.head_dim))[:, order].flatten(0, 1)
        return torch.cat([q, k, v])

    gate_up = torch.cat([w[f"{layer}.mlp.gate_proj.weight"], w[f"{layer}.mlp.up_proj.weight"]])
    return _Layer(
        qkv=_Matrix(
            _after_norm(projections("weight"), w[f"{layer}.input_layernorm.weight"]),
            projections("bias") if shape.has_qkv_bias else None,
        ),
        out=_Matrix(w[f"{layer}.self_attn.o_proj.weight"]),
        gate_up=_Matrix(_after_norm(gate_up, w[f"{layer}.post_attention_layernorm.weight"])),
        down=_Matrix(w[f"{layer}.mlp.down_proj.weight"]),
    )


def _check(weights: Mapping[str, torch.Tensor], shape: ModelShape) -> None:
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
