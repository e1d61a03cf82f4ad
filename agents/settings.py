"""The base of every block of settings, the bounds that several blocks share, and the block of a judge.

A block is declared once, beside the code that it is given to, and is the type of its block in
`pipelines.yaml` (`tasks/config/pipelines.py`). Configuration is read without importing `agents.rewards`.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""Of every random number generator; steps are added to it."""
Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """A block of settings: unknown keys and infinite numbers are errors, and values never change.

    Raises pydantic's `ValidationError`, a `ValueError`, for values out of bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class JudgeSettings(Settings):
    """How a judge is sampled, how its scores are read, and what it may cost."""

    lowest: float = 0.0
    highest: float = 10.0
    """The range of scores, which is scaled to [0, 1]."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    reply_tokens: Positive = 1024
    max_requests: Positive | None = None
    max_tokens: Positive | None = None
    """The budget of each process or, with `store`, of all together; the run ends when it is spent."""
    store: Path | None = None
    """A file that keeps replies and spending, for all processes and later runs."""

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> "JudgeSettings":
        if self.lowest >= self.highest:
            raise ValueError(f"scores from {self.lowest} to {self.highest}; give a lowest below a highest")
        return self
