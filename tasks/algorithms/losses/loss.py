"""What every policy loss is given, and what it returns.

Shapes: `B` rows of a micro-batch (a row is a segment of a conversation), `R` tokens of the longest response.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from agents.settings import Settings
from envs.errors import WingspanError

if TYPE_CHECKING:
    from torch import Tensor

ClipRatio = Annotated[float, Field(gt=0)]
MAX_LOG_RATIO = 20.0
"""Log-ratios are cut here, as in verl: exp(20) is far beyond every clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A micro-batch's tokens, and the conversation that each row is a segment of."""

    log_probs: "Tensor"  # [B, R], with gradient
    old_log_probs: "Tensor"  # [B, R]
    advantages: "Tensor"  # [B, R]
    mask: "Tensor"  # [B, R], bool: True on the policy's tokens
    conversation: "Tensor"  # [B], int64: rows of one conversation have the same number
    conversation_tokens: "Tensor"  # [B], int64: sampled tokens of the whole conversation
    seed: int = 0
    """Of what is drawn at random: a function of the pipeline's seed, the step and the conversations."""

    @property
    def log_ratios(self) -> "Tensor":
        """[B, R]: log of new by old probability, 0 where the mask is False."""
        return ((self.log_probs - self.old_log_probs) * self.mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def conversation_mean(self, values: "Tensor") -> "Tensor":
        """[B, 1]: the mean of `values` [B, R] over all sampled tokens of the row's conversation.

        Raises `WingspanError` if a conversation's rows are not all in this micro-batch.
        """
        _, inverse = self.conversation.unique(return_inverse=True)

        def per_conversation(rows: "Tensor") -> "Tensor":
            return rows.new_zeros(int(inverse.max()) + 1).index_add(0, inverse, rows)[inverse]

        if not per_conversation(self.mask.sum(1)).equal(self.conversation_tokens):
            raise WingspanError(
                "a micro-batch has only a part of a conversation's segments, and this loss needs the whole; "
                "use a loss of single tokens, or agent.context.when_full: stop"
            )
        return (per_conversation((values * self.mask).sum(1)) / self.conversation_tokens).unsqueeze(1)


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Of a micro-batch."""

    losses: "Tensor"  # [B, R]
    clipped: "Tensor | None" = None
    """[B, R], bool: tokens on which the clip or mask acts; None for a loss that has none."""


class PolicyLoss(Settings, ABC):
    """One loss's parameters. Subclasses set `name` and implement `per_token`."""

    needs_whole_conversations: ClassVar[bool] = False
    """Whether it computes with all tokens of a conversation at once."""

    name: str

    @abstractmethod
    def per_token(self, tokens: Tokens) -> TokenLosses:
        """The loss of each token, before tokens are weighed and added up."""
