"""Muon in fp32: momentum whose matrix is made orthogonal before it is applied.

Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks". `torch.optim.Muon` runs
the same iteration in bf16, which a CPU without bf16 units emulates: it then takes longer than the
forward and backward pass of the base model together.
"""

from collections.abc import Iterable
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Muon for 2-D parameters, with Nesterov momentum, decoupled weight decay."""

    def __init__(
        self, params: Iterable[torch.Tensor], *, lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = orthogonal(parameter.grad.lerp(momentum, group["momentum"]))
                rows, columns = parameter.shape
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest (semi-)orthogonal matrix to `matrix` [rows, columns], by Newton-Schulz iteration;
    singular values end between about 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (wide.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: torch.Tensor = x if matrix.shape[0] <= matrix.shape[1] else x.T
    return result
