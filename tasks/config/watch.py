"""The block `train.watch`: which signs of a collapse are looked for in the metrics of training."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from agents.settings import Positive, Settings

Share = Annotated[float, Field(gt=0, le=1)]
Above = Annotated[float, Field(gt=0)]

DEFAULT_REWINDS = 3


class WatchSettings(Settings):
    """Limits on the metrics of training steps, by monitor; None switches a monitor off.

    Each is compared with a median over `window` steps; a rise or a fall counts from the best earlier window.
    `tasks/data/collapse.py` has the definitions.
    """

    on_collapse: Literal["warn", "stop", "rewind"] = "warn"
    """`stop` saves a checkpoint and ends the run; the same command then trains on from there. `rewind` goes
    back to a checkpoint from before the alert's window and trains on from there with other draws."""
    max_rewinds: Positive | None = None
    """The most rewinds of a run, for `rewind`; by default 3; the next alert stops the run."""
    window: Positive = 5
    """Training steps that a median is taken over."""
    min_entropy: Above | None = 0.005
    """Nats per token."""
    max_entropy_rise: Above | None = 0.5
    """Nats per token."""
    max_parse_failure_rise: Share | None = 0.3
    """Share of turns."""
    max_repetition_rise: Share | None = 0.3
    """Share of n-grams."""
    max_kl: Above | None = 0.1
    """Nats per token, to the policy that sampled."""
    max_kl_reference: Above | None = None
    """The limit of the KL divergence that `train.kl` adds."""
    min_informative_groups: Share | None = 0.01
    """Share of groups."""
    max_success_fall: Share | None = 0.2
    """While the reward does not fall."""
    max_failures: Share | None = 0.25
    """Share of episodes that fail through no fault of the policy."""

    @model_validator(mode="after")
    def _rewinds_are_limited(self) -> "WatchSettings":
        if self.max_rewinds is not None and self.on_collapse != "rewind":
            raise ValueError(f"max_rewinds is for on_collapse: rewind, and it is {self.on_collapse}")
        return self

    @property
    def rewinds(self) -> int:
        """The most rewinds of a run."""
        if self.on_collapse != "rewind":
            return 0
        return self.max_rewinds or DEFAULT_REWINDS
