"""What online algorithms are made of: an advantage estimator, a policy loss, and how tokens are weighed."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from agents.settings import Positive, Settings
from tasks.algorithms.equality import have_equal_rewards
from tasks.algorithms.losses import AnyLoss, Vanilla

if TYPE_CHECKING:
    from torch import Tensor

    from agents.types import Trajectory
    from tasks.algorithms.conversations import Conversations

Aggregation = Literal["seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "token-mean"]
"""verl's names, where a sequence is a whole conversation: how the losses of tokens become one number.

- `seq-mean-token-mean`: the mean over a conversation's sampled tokens, then over the conversations;
- `seq-mean-token-sum`: the sum over a conversation's tokens, then the mean over the conversations;
- `seq-mean-token-sum-norm`: as before, divided by `rollout.context_length`;
- `token-mean`: the mean over all sampled tokens.

The conversations and tokens that are counted are those that were played, whether they have a gradient or not.
"""


class DynamicSampling(Settings):
    """Replace groups that teach nothing by groups of other items (DAPO, arXiv 2503.14476, section 3.2)."""

    max_refills: Positive = 3
    """Times that a step replaces its uninformative groups before it trains on what it has."""


class OverlongPenalty(Settings):
    """A penalty for long episodes (DAPO, arXiv 2503.14476, equation 13): none up to the last `buffer` of
    `rollout.context_length`, then falling linearly to −`penalty` at its end."""

    buffer: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of `rollout.context_length`; the paper's is 4,096 of 20,480 tokens."""
    penalty: Annotated[float, Field(gt=0)] = 1.0

    def compute_penalty(self, tokens: int, *, context_length: int) -> float:
        """The penalty of an episode whose longest context, prompt included, has `tokens`; at least 0."""
        excess = tokens / context_length - (1 - self.buffer)
        return self.penalty * min(max(excess / self.buffer, 0.0), 1.0)


class Algorithm(Settings):
    """One algorithm's parameters. It is an `OnlineAlgorithm` or an `OfflineAlgorithm`."""

    name: str


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an estimator returns, of `C` conversations and `T` tokens; 0 where there is no token."""

    advantages: "Tensor"  # [C, T]
    returns: "Tensor | None" = None
    """[C, T]: what a critic learns to predict."""
    return_weights: "Tensor | None" = None
    """[C, T]: how much the critic's error at a token counts, on average 1 over a conversation's tokens; None
    counts all alike."""


class OnlineAlgorithm(Algorithm):
    """Estimates advantages of episodes that the policy has just sampled. Subclasses set `name` and the
    defaults, and implement `estimate`."""

    compares_group: ClassVar[bool] = True
    """Whether an advantage is relative to the other episodes of the item: groups then need two episodes that
    can be trained on, and one with fewer is left out."""
    skips_equal_groups: ClassVar[bool] = True
    """Whether a group whose advantages are all 0 (`has_advantages`) need not be trained on."""
    needs_sum_pi_squared: ClassVar[bool] = False
    """Whether the squared probabilities of the vocabulary are added up for each sampled token."""
    needs_greedy: ClassVar[bool] = False
    """Whether a greedy episode of each item is played as well; it is not trained on."""
    compares_states: ClassVar[bool] = False
    """Whether turns are compared that were taken in the same state: the environments must have states
    (`EnvSpec.has_states`)."""
    credits_parts: ClassVar[bool] = False
    """Whether the tokens or turns of a conversation may have different advantages."""

    loss: AnyLoss = Vanilla()
    aggregation: Aggregation = "seq-mean-token-mean"
    dynamic_sampling: DynamicSampling | None = None
    overlong: OverlongPenalty | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_loss_has_no_name(cls, values: Any) -> object:
        """`loss: {clip_high: 0.28}` changes parameters of the algorithm's own loss."""
        loss = values.get("loss") if isinstance(values, dict) else None
        if isinstance(loss, str):
            return values | {"loss": {"name": loss}}
        if isinstance(loss, dict) and "name" not in loss:
            default = cls.model_fields["loss"].default
            return values | {"loss": default.model_dump() | loss}
        return values

    @model_validator(mode="after")
    def _samples_dynamically_by_groups(self) -> "OnlineAlgorithm":
        if self.dynamic_sampling is not None and not self.skips_equal_groups:
            raise ValueError(
                f"dynamic_sampling: {self.name} learns from groups of equal rewards, too; leave it out"
            )
        return self

    @model_validator(mode="after")
    def _keeps_the_credit_of_parts(self) -> "OnlineAlgorithm":
        if self.credits_parts and self.loss.averages_advantages:
            raise ValueError(
                f"loss {self.loss.name} takes the mean of a conversation's advantages, and those of "
                f"{self.name} differ from token to token or turn to turn; use another loss"
            )
        return self

    @model_validator(mode="after")
    def _penalises_a_reward_that_counts(self) -> "OnlineAlgorithm":
        if self.overlong is not None and self.unused_reward:
            raise ValueError(
                f"overlong changes the reward of the episode, which has no effect ({self.unused_reward}); "
                "leave it out"
            )
        return self

    @property
    def unused_reward(self) -> str:
        """The parameter with which the reward of the episode has no effect; empty if it has one."""
        return ""

    def has_advantages(self, group: Sequence["Trajectory"], scores: Sequence[float]) -> bool:
        """False if all advantages of the group are sure to be 0; `scores`: rewards less the penalty."""
        return not have_equal_rewards(scores)

    @abstractmethod
    def estimate(self, batch: "Conversations") -> Estimate:
        """The advantage of each sampled token; the rewards are of trajectories that are trained on."""


class CriticSettings(Settings):
    """How the critic, a copy of the policy's model that predicts returns, is trained.

    It starts from the same weights as the policy, with a new head that is zero.
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


def check_turn_parameter(algorithm: OnlineAlgorithm, name: str, *, step_weight: float) -> None:
    """Raise `ValueError` if the parameter `name`, which only the advantages of turns depend on, is changed
    and their `step_weight` is 0."""
    value = getattr(algorithm, name)
    if not step_weight and value != type(algorithm).model_fields[name].default:
        raise ValueError(
            f"{name} {value} is of the turns' advantages, which have step_weight 0; leave it out"
        )


class ActorCritic(OnlineAlgorithm):
    """An algorithm with a critic: `estimate` is given its values, and returns what it learns to predict.

    Its advantages are generalized advantage estimates (Schulman et al. 2015, arXiv 1506.02438); a subclass
    says what a step is.
    """

    compares_group = False
    skips_equal_groups = False
    credits_parts = True

    gamma: Annotated[float, Field(gt=0, le=1)] = 1.0
    """γ, the discount of a step."""
    lam: Annotated[float, Field(ge=0, le=1)] = 1.0
    """λ: 1 trusts the rewards alone, 0 the critic's value of the next step."""
    critic: CriticSettings = CriticSettings()
