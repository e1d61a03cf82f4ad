"""Algorithms that learn from finished episodes: by imitation of the good ones, or by comparison.

They estimate no advantages, and their training is supervised. Where they sample, a round samples all episodes
that its steps would sample online: `rollout.items_per_step` items for each step, `rollout.group_size` times.
"""

from typing import ClassVar

from pydantic import model_validator

from agents.settings import Positive, UserPath
from tasks.algorithms.algorithm import Algorithm, OnlineAlgorithm

_ONLINE = OnlineAlgorithm.model_fields.keys() - Algorithm.model_fields.keys()
"""Parameters of advantages and of policy losses, of which these algorithms have none."""


class OfflineAlgorithm(Algorithm):
    """What these algorithms have in common; `tasks/stages/offline.py` knows `Imitation` and `Dpo`."""

    repeats: ClassVar[bool] = False
    """Whether training may have several rounds, each of which begins anew."""
    needs_groups: ClassVar[bool] = False
    """Whether it compares episodes of one item."""
    needs_original: ClassVar[bool] = False
    """Whether it makes no sense without demonstrations or `data`."""

    batch_size: Positive = 16
    """Conversations, or pairs of them, of a step."""
    data: tuple[UserPath, ...] = ()
    """Files of trajectories, as `wingspan rollout --out` and training write them, whose tokens are those of
    `model`'s tokenizer. Episodes of test items are refused."""

    @model_validator(mode="before")
    @classmethod
    def _has_no_advantages(cls, values: object) -> object:
        unused_keys = sorted(_ONLINE & set(values)) if isinstance(values, dict) else []
        if unused_keys:
            raise ValueError(
                f"{', '.join(unused_keys)}: not used by an algorithm that learns offline; leave it out"
            )
        return values

    @property
    def is_sampling(self) -> bool:
        """Whether episodes are sampled for training."""
        return True


class Imitation(OfflineAlgorithm):
    """Supervised training on the tokens of good episodes."""

    adds_to_original: ClassVar[bool] = True
    """Whether each round trains from `model`, on the demonstrations of the warm-up, `data` and what it has
    sampled; else one trains the policy further, on `data` alone."""

    min_reward: float | None = None
    """The least reward of an episode that is imitated; None takes those that succeeded."""
