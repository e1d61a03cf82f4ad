"""The base of every block of settings, and the bounds that several blocks share.

A block is declared once, beside the code that it is given to, and is the type of its block in
`pipelines.yaml` (`tasks/config/pipelines.py`).
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**31)]
"""What every generator of random numbers here takes; steps are added to it."""
Seconds = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """A block of settings: unknown keys and infinite numbers are errors, and values never change.

    Raises pydantic's `ValidationError`, a `ValueError`, for values out of bounds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
