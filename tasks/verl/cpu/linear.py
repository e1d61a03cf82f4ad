"""Products of activations with weights by oneDNN, which torch's CPU builds contain, instead of MKL.

torch computes products of matrices in fp32 with MKL, which is slow for widths that are no multiples of 16.
oneDNN's products are as exact, and up to 1.8 times as fast for those of a small model (docs/results.md). The
gradient of a weight stays with MKL: oneDNN would copy both of its factors.
"""

from typing import Any

import torch
from torch import Tensor


def use_onednn(module: torch.nn.Module) -> None:
    """Have every `torch.nn.Linear` in `module` compute with oneDNN where this torch has it."""
    if not torch.backends.mkldnn.is_available():
        return
    for layer in module.modules():
        if type(layer) is torch.nn.Linear:
            layer.__class__ = OneDnnLinear


class OneDnnLinear(torch.nn.Linear):
    """`torch.nn.Linear` for fp32 on a CPU."""

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., in_features] → [..., out_features]."""
        output: Tensor = _Linear.apply(inputs, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return output


def _multiply(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[..., I], [O, I] → [..., O]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
    return product


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return _multiply(inputs, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        rows = gradient.flatten(0, -2)
        return (
            _multiply(gradient, weight.t()) if needs_input else None,
            rows.t() @ inputs.flatten(0, -2) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )
