"""Supervised fine-tuning on trajectories."""

from typing import Annotated, ClassVar

from pydantic import Field

from agents.settings import UserPath
from tasks.algorithms.offline import Imitation


class Sft(Imitation):
    """Imitate the good episodes of `data`. Training starts from the warm-up's policy or, without one, from
    `model`."""

    adds_to_original: ClassVar[bool] = False

    name: str = "sft"
    data: Annotated[tuple[UserPath, ...], Field(min_length=1)]

    @property
    def is_sampling(self) -> bool:
        return False
