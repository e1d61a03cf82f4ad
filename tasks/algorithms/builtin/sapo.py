"""Soft adaptive policy optimization."""

from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.losses import AnyLoss, SapoLoss


class Sapo(Grpo):
    """GRPO's advantages with a soft gate in place of the clip.

    Gao et al. 2025 (arXiv 2511.20347).
    """

    name: str = "sapo"
    loss: AnyLoss = SapoLoss()
