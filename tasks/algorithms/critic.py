"""The critic: a copy of the policy's model that predicts returns."""

from typing import Annotated

from pydantic import Field

from agents.settings import Positive, Settings


class CriticSettings(Settings):
    """How the critic is trained. It starts from the same weights as the policy, with a new head that is zero.

    By AdamW at a constant rate, with verl's defaults (weight decay 0.01, gradient norm of at most 1):
    `train.optimizer` is the policy's.
    """

    lr: Annotated[float, Field(gt=0, le=1)] = 1e-5
    epochs: Positive = 1
    """Passes over each step's trajectories."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Training steps at the beginning that train the critic alone."""
    clip_range: Annotated[float, Field(gt=0)] = 0.5
    """A value's change within a step is clipped here, as PPO's ratio is."""
