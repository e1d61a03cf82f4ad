"""Group sequence policy optimization."""

from tasks.algorithms.builtin.grpo import Grpo
from tasks.algorithms.losses import AnyLoss, GspoLoss


class Gspo(Grpo):
    """GRPO's advantages with one ratio for a whole conversation, clipped.

    Zheng et al. 2025 (arXiv 2507.18071).
    """

    name: str = "gspo"
    loss: AnyLoss = GspoLoss()
