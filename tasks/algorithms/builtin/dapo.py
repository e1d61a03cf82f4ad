"""Decoupled clip and dynamic sampling policy optimization."""

from tasks.algorithms.algorithm import Aggregation, DynamicSampling, OverlongPenalty
from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.losses import AnyLoss, Vanilla


class Dapo(Grpo):
    """GRPO's advantages with clip-higher, the loss averaged over tokens, dynamic sampling and a penalty for
    overlong episodes.

    Yu et al. 2025 (arXiv 2503.14476, section 3). verl: the recipe `dapo`.
    """

    name: str = "dapo"
    loss: AnyLoss = Vanilla(clip_high=0.28)
    aggregation: Aggregation = "token-mean"
    dynamic_sampling: DynamicSampling | None = DynamicSampling()
    overlong: OverlongPenalty | None = OverlongPenalty()
