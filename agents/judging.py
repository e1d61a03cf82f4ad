"""The settings of a reward that a language model gives (`agents/rewards/judge`)."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from agents.settings import Positive, Settings


class JudgeSettings(Settings):
    """How a judge is sampled, how its scores are read, and what it may cost."""

    lowest: float = 0.0
    highest: float = 10.0
    """The range of scores; the reward is scaled to [0, 1]."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    reply_tokens: Positive = 1024
    max_requests: Positive | None = None
    max_tokens: Positive | None = None
    """The budget of each process or, with `store`, of all together; beyond it, the run ends."""
    store: Path | None = None
    """A file that keeps replies and what was spent, for all processes and later runs."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> "JudgeSettings":
        if self.lowest >= self.highest:
            raise ValueError(f"scores from {self.lowest} to {self.highest}; give a lowest below a highest")
        return self
