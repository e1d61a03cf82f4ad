"""Clipped importance sampling policy optimization."""

from tasks.algorithms.algorithm import Aggregation
from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.losses import AnyLoss, CispoLoss


class Cispo(Grpo):
    """GRPO's advantages with clipped weights of importance sampling, averaged over tokens.

    MiniMax-M1 (arXiv 2506.13585, section 3.1).
    """

    name: str = "cispo"
    loss: AnyLoss = CispoLoss()
    aggregation: Aggregation = "token-mean"
