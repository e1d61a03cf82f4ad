"""Direct preference optimization."""

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from agents.settings import Positive
from tasks.algorithms.offline import OfflineAlgorithm


class Dpo(OfflineAlgorithm):
    """Prefer the better of two whole episodes of an item, near the policy that training starts from.

    Rafailov et al. 2023 (arXiv 2305.18290, equation 7), over the tokens of all turns. Thresholds and `beta`
    are those of AgentGym's `examples/dpo`; its script for WebShop has 0.9 and 0.1 for the thresholds.
    """

    needs_groups: ClassVar[bool] = True

    name: str = "dpo"
    beta: Annotated[float, Field(gt=0)] = 0.5
    """How strongly the policy is held near its start."""
    win_threshold: float = 0.7
    """The least reward of the better episode."""
    min_gap: Annotated[float, Field(gt=0)] = 0.01
    """The least difference of the two rewards."""
    pairs_per_item: Positive = 1
    """At most: the best episode with the worst, the second best with the second worst, and so on."""
    samples: bool = True
    """Whether the policy samples episodes for pairs, besides those of `data`."""

    @model_validator(mode="after")
    def _has_episodes(self) -> "Dpo":
        if not self.samples and not self.data:
            raise ValueError("samples: false leaves no episodes to compare; give data, or leave it out")
        return self

    @property
    def is_sampling(self) -> bool:
        return self.samples
