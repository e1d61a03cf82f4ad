"""The block `rollout.curriculum`: which items are drawn more often than others."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agents.settings import Settings

Pool = Literal["unseen", "hard", "medium", "easy"]
Weight = Annotated[float, Field(gt=0)]


class CurriculumSettings(Settings):
    """Weights of the pools of items; an item's pool is decided by its last success rate, the share of solved
    episodes when it was last sampled.

    An item is drawn with a probability in proportion to the weight of its pool, and no item comes twice in a
    step before all of its part have come. The values are those of prime-rl's difficulty pools, which go by
    the reward.
    """

    unseen: Weight = 1.0
    """Items that were not sampled yet."""
    hard: Weight = 0.2
    medium: Weight = 1.0
    easy: Weight = 0.2
    hard_at_most: Annotated[float, Field(ge=0, lt=1)] = 0.25
    """The highest success rate of a hard item."""
    medium_at_most: Annotated[float, Field(gt=0, lt=1)] = 0.75
    """The highest success rate of a medium item; items above it are easy."""

    @model_validator(mode="after")
    def _pools_are_in_order(self) -> "CurriculumSettings":
        if self.hard_at_most >= self.medium_at_most:
            raise ValueError(
                f"hard_at_most {self.hard_at_most} is not less than medium_at_most {self.medium_at_most}: no "
                "item would be medium"
            )
        return self

    def pool_of(self, success: float | None) -> Pool:
        """The pool of an item with the last success rate `success`; None for an item without one."""
        if success is None:
            return "unseen"
        if success <= self.hard_at_most:
            return "hard"
        return "medium" if success <= self.medium_at_most else "easy"

    def weigh(self, success: float | None) -> float:
        """The weight of an item with the last success rate `success`."""
        weight: float = getattr(self, self.pool_of(success))
        return weight
