"""The block `train.optimizer`: how a gradient becomes a step."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agents.settings import Settings

Beta = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class OptimizerSettings(Settings):
    """The policy's optimizer; its learning rate is `train.lr`."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` (Jordan et al. 2024, kellerjordan.github.io/posts/muon) trains the hidden matrices, and AdamW
    (arXiv 1711.05101) the embeddings, the head and all vectors; on CPUs."""
    matrix_lr: Rate | None = None
    """Muon's learning rate, about the change of a matrix's singular values in a step; 0.02 when a model is
    trained from the start."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.01
    """Each step shrinks a weight by this times the learning rate."""
    grad_clip: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """A gradient of all parameters that is longer is scaled to this norm; `grad_norm` is from before."""
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Training steps of the policy in which the learning rate rises in equal steps; the last of them has all
    of it."""
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the learning rate in the last training step of a cosine; by default 0.1."""

    @model_validator(mode="after")
    def _has_no_key_without_effect(self) -> "OptimizerSettings":
        if self.name == "muon" and self.matrix_lr is None:
            raise ValueError("name muon needs matrix_lr, its learning rate for matrices, for example 0.005")
        if self.name != "muon" and self.matrix_lr is not None:
            raise ValueError(f"matrix_lr is for name: muon, and {self.name} has train.lr alone; leave it out")
        if self.schedule == "constant" and self.min_lr_ratio is not None:
            raise ValueError("min_lr_ratio is for schedule: cosine; leave it out")
        return self

    @property
    def last_ratio(self) -> float:
        """Share of the learning rate in the last training step."""
        if self.schedule == "constant":
            return 1.0
        return 0.1 if self.min_lr_ratio is None else self.min_lr_ratio
