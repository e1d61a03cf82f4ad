"""Widens a trained base model by a circuit that reads within the line of one product.

The look-up that a policy gets wrong most often is that of recipes which begin alike: what follows `using 6
oak planks` in the line of `oak sign` is not what follows it in the line of `oak stairs`. The heads of
`model.py` compare the tokens before a position, which are the same in both lines. The circuit compares a
token and the product of its line. Each layer gets two heads:

- those of layer 0 copy codes of the token before and of the fourth before, from new dimensions of the
  embedding;
- one of layer 1 finds the last ` using`, and copies a code of the four tokens before it, the end of the
  product's name;
- one of layer 2 compares token and product with the token before and the product of earlier positions, and
  adds the token that it finds there to what will be predicted.

In which directions the trained model holds what the heads need is found by ridge regression on invented
episodes. Training goes on with all weights.
"""

import copy
import math
import random
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tasks.base_model.data import Encoder, sample_sequence
from tasks.base_model.model import HEAD_DIM, SLOW, look_back, look_for_last
from tasks.config.base_model import BaseCycle

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

CODE, PRODUCT_CODE = 16, 22
"""Dimensions of the code of a token, and of that of a product. 22 makes the width of 198 a multiple of its 6
heads, as transformers requires; layer 2 compares a projection of it to 16."""
_CODE_RMS = 0.7
"""Root mean square of a code's dimensions, as a share of that of the others."""
_NAME_TOKENS = 4
"""Tokens before ` using` that the code of a product has: the end of its name; for a short name, also its
count and what precedes it."""
_SEQUENCES = 160
"""The sequences of `_DATA` for the regressions: some 70,000 tokens."""
_DATA = BaseCycle(tokens=1, groups=0.15, families=0.15, twins=0.15, misreads=0.1)
_LOGIT = 60.0
"""The logit of the position that a head of layer 0 or 1 is to attend to."""
_SHARPNESS = 16.0
"""The sharpness of layer 2: the logit where the token matches; a product that matches adds about 16/22 of
it."""
_RIDGE = 1e-5
"""The penalty, as a share of the states' mean square."""
_GAIN = 0.3
"""The gain of layer 2: the share of a token's embedding, in its 32 principal directions, that the head
adds."""


def widen(model: "LlamaForCausalLM", encoder: Encoder, *, seed: int) -> "LlamaForCausalLM":
    """`model` with `3 * CODE + PRODUCT_CODE` more dimensions and two more heads in each layer.

    The new heads' other weights, and what the MLPs read of the new dimensions, are small and random;
    everything else that is new is zero.
    """
    import torch

    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        rng = random.Random(f"widening/{seed}")
        sequences = [sample_sequence(encoder, rng, progress=1.0, cycle=_DATA).ids for _ in range(_SEQUENCES)]
        wider = _copy_into_wider(model, generator)
        width = model.config.hidden_size
        _Circuit(wider, encoder, sequences, width=width, generator=generator).write()
    return wider


def _copy_into_wider(model: "LlamaForCausalLM", generator: "torch.Generator") -> "LlamaForCausalLM":
    import torch
    from transformers import LlamaForCausalLM

    old_width, old_heads = model.config.hidden_size, model.config.num_attention_heads
    config = copy.deepcopy(model.config)
    config.hidden_size = width = old_width + 3 * CODE + PRODUCT_CODE
    config.num_attention_heads = config.num_key_value_heads = old_heads + 2
    config.head_dim = HEAD_DIM
    wider = LlamaForCausalLM(config).eval()
    # A norm divides by the root mean square of all dimensions, of which the new ones are 0 at first.
    shrinkage = math.sqrt(old_width / width)
    old_parameters = dict(model.named_parameters())
    for name, parameter in wider.named_parameters():
        old = old_parameters[name]
        if parameter.ndim == 1:
            parameter.fill_(1.0)
            parameter[:old_width] = old * shrinkage
        else:
            parameter.zero_()
            parameter[: old.shape[0], : old.shape[1]] = old
    wider.model.norm.weight[old_width:] = 0  # the new dimensions are not predicted
    head = slice(old_heads * HEAD_DIM, None)
    randn = partial(torch.randn, generator=generator)
    for layer in wider.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
            projection.weight[head] = randn(2 * HEAD_DIM, width) * 0.08
        attention.o_proj.weight[:, head] = randn(width, 2 * HEAD_DIM) * 0.08 * 0.03
        for projection in (mlp.gate_proj, mlp.up_proj):
            projection.weight[:, old_width:] = randn(len(projection.weight), width - old_width) * 0.01
        attention.o_proj.weight[old_width:] = 0
    return wider


class _Circuit:
    """Writes the circuit into `model`, which was `width` wide."""

    def __init__(
        self,
        model: "LlamaForCausalLM",
        encoder: Encoder,
        sequences: list[list[int]],
        *,
        width: int,
        generator: "torch.Generator",
    ) -> None:
        self._sequences = sequences
        [self._using] = encoder.text(" using")
        self._end = encoder.end
        self._model, self._generator, self._width = model, generator, width
        heads = width // HEAD_DIM * HEAD_DIM
        self._head, self._second = slice(heads, heads + HEAD_DIM), slice(heads + HEAD_DIM, None)
        self._token = slice(width, width + CODE)
        self._before = slice(width + CODE, width + 2 * CODE)
        self._fourth = slice(width + 2 * CODE, width + 3 * CODE)
        self._product = slice(width + 3 * CODE, None)

    def write(self) -> None:
        """Write the heads in the order of their layers: each reads what those before it write."""
        embedding = self._model.model.embed_tokens.weight
        identity = embedding[:, : self._width] - embedding[:, : self._width].mean(0)  # [V, width]
        rms = float(embedding[:, : self._width].square().mean().sqrt())
        code = identity @ self._random_basis(self._width, CODE)
        code = code / code.norm(dim=1, keepdim=True)  # [V, CODE]
        embedding[:, self._token] = code * rms * math.sqrt(CODE) * _CODE_RMS
        # A product's code is the sum of those of the last tokens of its name, each mixed in its own way.
        mixes = [self._random_basis(PRODUCT_CODE, PRODUCT_CODE)[:CODE] for _ in range(_NAME_TOKENS + 1)]
        states = self._collect(0).states
        self._copy_token(1, states, rms, head=self._head, target=self._before)
        self._copy_token(_NAME_TOKENS, states, rms, head=self._second, target=self._fourth)
        self._copy_product([code @ mix for mix in mixes[1:]])
        self._match(mixes[0], identity)

    def _copy_token(
        self, distance: int, states: "torch.Tensor", rms: float, *, head: slice, target: slice
    ) -> None:
        import torch

        constant = _fit(states, states.new_ones(len(states), 1))
        attention = self._model.model.layers[0].self_attn
        query, key = look_back(distance, logit=_LOGIT)
        attention.q_proj.weight[head] = query[:, None] * constant
        attention.k_proj.weight[head] = key[:, None] * constant
        attention.v_proj.weight[head] = 0
        attention.o_proj.weight[:, head] = 0
        size = float(states[:, self._token].square().mean().sqrt())
        attention.v_proj.weight[head, self._token][:CODE] = torch.eye(CODE)
        attention.o_proj.weight[target, head][:, :CODE] = torch.eye(CODE) * (rms * _CODE_RMS / size)

    def _copy_product(self, codes: Sequence["torch.Tensor"]) -> None:
        import torch

        activations = self._collect(1)
        is_using = activations.back(0) == self._using
        mark = _fit(activations.states, is_using.float()[:, None])
        constant = _fit(activations.states, activations.states.new_ones(len(is_using), 1))
        product = torch.stack([code[activations.back(i)] for i, code in enumerate(codes, 1)]).sum(0)
        value = _fit(activations.states[is_using], product[is_using])
        attention, head = self._model.model.layers[1].self_attn, self._head
        vector = look_for_last(logit=_LOGIT)[:, None]
        attention.q_proj.weight[head] = vector * constant
        attention.k_proj.weight[head] = vector * mark
        attention.v_proj.weight[head] = 0
        attention.v_proj.weight[head][:PRODUCT_CODE] = value
        attention.o_proj.weight[:, head] = 0
        attention.o_proj.weight[self._product, head][:, :PRODUCT_CODE] = torch.eye(PRODUCT_CODE)
        states = self._collect(2).states
        sizes = [float(states[:, part].square().mean().sqrt()) for part in (self._token, self._product)]
        attention.o_proj.weight[self._product, head] *= sizes[0] / sizes[1]

    def _match(self, projection: "torch.Tensor", identity: "torch.Tensor") -> None:
        import torch

        activations = self._collect(2)
        attention, head = self._model.model.layers[2].self_attn, self._head
        scale = math.sqrt(_SHARPNESS) * HEAD_DIM**0.25
        token, before, compared = (
            scale / float(activations.states[:, part].norm(dim=1).median())
            for part in (self._token, self._before, self._product)
        )
        query, key = (torch.zeros(HEAD_DIM, self._model.config.hidden_size) for _ in range(2))
        query[SLOW, self._token] = token * torch.eye(CODE)
        key[SLOW, self._before] = before * torch.eye(CODE)
        # The slowly rotating dimensions hold token and product at once, so the product is projected to CODE.
        query[SLOW, self._product] += compared * projection
        key[SLOW, self._product] += compared * projection
        basis = torch.linalg.svd(identity, full_matrices=False)[2][:HEAD_DIM]
        in_opening = activations.in_opening
        value = _fit(activations.states[in_opening], (identity[activations.back(0)] @ basis.T)[in_opening])
        attention.q_proj.weight[head], attention.k_proj.weight[head] = query, key
        attention.v_proj.weight[head] = value
        attention.o_proj.weight[:, head] = 0
        attention.o_proj.weight[: self._width, head] = _GAIN * basis.T

    def _random_basis(self, rows: int, columns: int) -> "torch.Tensor":
        import torch

        basis: torch.Tensor = torch.linalg.qr(torch.randn(rows, columns, generator=self._generator))[0]
        return basis

    def _collect(self, layer: int) -> "_Seen":
        """What the attention of `layer` reads."""
        import torch

        states: list[torch.Tensor] = []

        def keep(module: Any, args: Any, kwargs: Any) -> None:
            states.append(kwargs["hidden_states"][0].clone())

        decoder = self._model.model
        layers = decoder.layers
        hook = layers[layer].self_attn.register_forward_pre_hook(keep, with_kwargs=True)
        decoder.layers = layers[: layer + 1]  # the later ones, and the logits, are not read
        try:
            for ids in self._sequences:
                decoder(input_ids=torch.tensor([ids]))
        finally:
            hook.remove()
            decoder.layers = layers
        return _Seen(torch.cat(states), self._sequences, end=self._end)


class _Seen:
    """The positions of all sequences, one after the other."""

    def __init__(self, states: "torch.Tensor", sequences: list[list[int]], *, end: int) -> None:
        import torch

        self.states = states
        """[T, width]"""
        self._ids = [torch.tensor(ids) for ids in sequences]
        self.in_opening = torch.cat([torch.arange(len(ids)) < ids.index(end) for ids in sequences])
        """[T]: before the end of the first message."""

    def back(self, distance: int) -> "torch.Tensor":
        """[T]: the token `distance` positions earlier, 0 before the start."""
        import torch

        return torch.cat([torch.nn.functional.pad(ids, (distance, 0))[: len(ids)] for ids in self._ids])


def _fit(states: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    """[outputs, width]: a matrix that computes `targets` [T, outputs] from `states` [T, width], by ridge
    regression."""
    import torch

    gram = states.T @ states
    gram += _RIDGE * len(states) * states.square().mean() * torch.eye(states.shape[1])
    weights: torch.Tensor = torch.linalg.solve(gram, states.T @ targets)
    return weights.T
