"""AgentEvol: self-evolution by repeated exploration and imitation."""

from typing import ClassVar

from tasks.algorithms.offline import Imitation


class Agentevol(Imitation):
    """Each round samples with the last round's policy, adds the good episodes to the original data, and
    trains `model` on all of it from the start.

    Xi et al. 2024 (arXiv 2406.04151, section 4.2, algorithm 1), with 4 rounds. The original data are the
    demonstrations of the warm-up, whose policy (behaviour cloning) samples in the first round, and `data`.
    Episodes of earlier rounds are not kept, as in AgentGym's `train_agentevol_multi_task.sh`.
    """

    repeats: ClassVar[bool] = True
    needs_original: ClassVar[bool] = True

    name: str = "agentevol"
