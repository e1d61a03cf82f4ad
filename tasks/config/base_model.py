"""The block `base`: how the shipped base model was made (`tasks/base_model/train.py`)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from agents.settings import Positive, Settings


class BaseCycle(Settings):
    """One cycle of the base model's learning rate, which falls to zero at its end."""

    tokens: Positive
    widen: bool = False
    """Add the circuit of `tasks/base_model/widening.py` before this cycle."""
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The peak of the learning rates, as a share of `muon_lr` and `adamw_lr`."""
    misreads: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the episodes in which the expert misreads recipes, is refused, and reads again."""
    families: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences that do not drill groups and drill families of recipes which differ in one word
    alone; above 0, most families of the episodes' problems are such, too."""
    twins: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences that drill neither and drill recipes which begin alike; above 0, a share of the
    useless recipes of episodes (`TWINS_SHARE`) are such, too."""
    groups: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of the sequences that drill recipes with groups (`planks`); above 0, most problems of
    episodes have a group."""


class BaseSettings(Settings):
    """The whole training of the base model."""

    seed: int
    cycles: Annotated[list[BaseCycle], Field(min_length=1)]
    processes: Positive
    """The processes share the work, one core each; they change its speed, not its result."""
    layers: Annotated[int, Field(ge=2)]
    """The first two begin as the circuit that looks recipes up."""
    width: Annotated[int, Field(ge=128, multiple_of=32)]
    batch_tokens: Positive
    muon_lr: Annotated[float, Field(gt=0)]
    adamw_lr: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _can_be_widened(self) -> Self:
        count = sum(cycle.widen for cycle in self.cycles)
        if count and (count > 1 or self.layers < 3 or self.width != 128):
            raise ValueError(
                f"cycles widen a model of {self.layers} layers and width {self.width} {count} times; one "
                "with 3 layers or more and width 128 can be widened once"
            )
        return self
