"""Muon and AdamW as one optimizer, for verl's engine: one state in a checkpoint, one schedule.

Parameters may be sharded (FSDP2's DTensors): operations on these are operations on the whole matrix, so the
step does not depend on the number of ranks.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from tasks.base_model.muon import Muon

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class MuonWithAdamW(torch.optim.Optimizer):
    """AdamW is the first parameter group, Muon the second."""

    def __init__(
        self,
        *,
        matrices: Iterable[torch.Tensor],
        others: Iterable[torch.Tensor],
        lr: float,
        matrix_lr: float,
        betas: tuple[float, float],
        weight_decay: float,
    ) -> None:
        """`matrices`: 2-D, trained by Muon at `matrix_lr`; `others`: by AdamW at `lr`."""
        self._adamw = torch.optim.AdamW(others, lr=lr, betas=betas, weight_decay=weight_decay)
        self._muon = Muon(matrices, lr=matrix_lr, weight_decay=weight_decay)
        super().__init__([*self._adamw.param_groups, *self._muon.param_groups], {})

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        """Apply one update to every parameter that has a gradient."""
        parts = ((self._adamw, self.param_groups[:1]), (self._muon, self.param_groups[1:]))
        for optimizer, groups in parts:
            # Loading a checkpoint replaces the groups and the state.
            optimizer.param_groups, optimizer.state = groups, self.state
            optimizer.step()


def hidden_matrices(model: "PreTrainedModel") -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The trained parameters of `model`: its 2-D matrices, and all others, to which embeddings
    and the head belong."""
    head = model.get_output_embeddings()
    modules = [m for m in model.modules() if isinstance(m, torch.nn.Embedding) or m is head]
    words = {id(parameter) for module in modules for parameter in module.parameters()}
    trainable_parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [p for p in trainable_parameters if p.ndim == 2 and id(p) not in words]
    matrix_ids = set(map(id, matrices))
    return matrices, [p for p in trainable_parameters if id(p) not in matrix_ids]
