"""Rejection-sampling fine-tuning."""

from tasks.algorithms.offline import Imitation


class Rft(Imitation):
    """Sample from the policy, keep the good episodes, add them to the original data, train `model` on all.

    Yuan et al. 2023 (arXiv 2308.01825, section 3.3): the distinct correct samples of the fine-tuned model
    augment the original data, on which the pre-trained model is trained.
    """

    name: str = "rft"
