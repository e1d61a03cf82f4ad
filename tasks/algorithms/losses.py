"""Policy losses: how a token's loss depends on its advantage and on the ratio of new to old probability.

Shapes: `B` rows of a micro-batch (a row is a segment of a conversation), `R` tokens of the longest response.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from agents.settings import Settings
from envs.errors import WingspanError

if TYPE_CHECKING:
    from torch import Tensor

ClipRatio = Annotated[float, Field(gt=0)]
MaxRatio = Annotated[float, Field(gt=1)]
Share = Annotated[float, Field(gt=0, le=1)]
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
    """The seed of what is drawn at random: a function of the pipeline's seed, the step and the
    conversations."""

    @property
    def log_ratios(self) -> "Tensor":
        """[B, R]: log of new by old probability, 0 where the mask is False."""
        return ((self.log_probs - self.old_log_probs) * self.mask).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)

    def conversation_mean(self, values: "Tensor") -> "Tensor":
        """[B, 1]: the mean of `values` [B, R] over all sampled tokens of the row's conversation.

        0 for a conversation without a sampled token here, which a row of verl's padding may name. Raises
        `WingspanError` if only some of a conversation's tokens are in this micro-batch.
        """
        _, inverse = self.conversation.unique(return_inverse=True)

        def per_conversation(rows: "Tensor") -> "Tensor":
            return rows.new_zeros(int(inverse.max()) + 1).index_add(0, inverse, rows)[inverse]

        num_tokens = per_conversation(self.mask.sum(1))
        if not ((num_tokens == self.conversation_tokens) | (num_tokens == 0)).all():
            raise WingspanError(
                "a micro-batch has only a part of a conversation's segments, and this loss needs the whole; "
                "use a loss of single tokens"
            )
        return (per_conversation((values * self.mask).sum(1)) / self.conversation_tokens).unsqueeze(1)


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """The losses of a micro-batch."""

    losses: "Tensor"  # [B, R]
    clipped: "Tensor | None" = None
    """[B, R], bool: tokens on which the clip or mask acts; None for a loss that has none."""


class PolicyLoss(Settings, ABC):
    """One loss's parameters. Subclasses set `name` and implement `per_token`."""

    needs_whole_conversations: ClassVar[bool] = False
    """Whether it computes with all tokens of a conversation at once."""
    averages_advantages: ClassVar[bool] = False
    """Whether the tokens of a conversation count with the mean of their advantages."""
    penalizes_ratios: ClassVar[bool] = False
    """Whether a token of advantage 0 has a gradient, too, where its ratio is not 1."""

    name: str

    @abstractmethod
    def per_token(self, tokens: Tokens) -> TokenLosses:
        """The loss of each token, before tokens are weighed and added up."""


class Vanilla(PolicyLoss):
    """min(r·A, clip(r, 1 − low, 1 + high)·A), with r the ratio of new to old probability.

    Schulman et al. 2017 (arXiv 1707.06347, equation 7). `clip_high` above `clip_low` is clip-higher (DAPO,
    arXiv 2503.14476). `dual_clip` bounds the loss of a negative advantage at that ratio (Ye et al. 2019,
    arXiv 1912.09729, equation 5). verl: `vanilla`.
    """

    name: Literal["vanilla"] = "vanilla"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: ClipRatio = 0.2
    dual_clip: Annotated[float, Field(gt=1)] = 3.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        ratio, advantages = tokens.log_ratios.exp(), tokens.advantages
        free = -advantages * ratio
        clipped_losses = -advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        losses = free.maximum(clipped_losses)
        dual_clipped = losses.minimum(-advantages * self.dual_clip)
        return TokenLosses(dual_clipped.where(advantages < 0, losses), clipped_losses > free)


class GspoLoss(PolicyLoss):
    """PPO's clipped objective with one ratio for a whole conversation: the geometric mean of its tokens'
    ratios.

    Zheng et al. 2025 (arXiv 2507.18071, equations 5 and 7, in the token form of equation 13, whose gradient
    is the same for equal advantages; the clip of section 5.1). verl: `gspo`.
    """

    needs_whole_conversations = True

    name: Literal["gspo"] = "gspo"
    clip_low: ClipRatio = 3e-4
    clip_high: ClipRatio = 4e-4

    def per_token(self, tokens: Tokens) -> TokenLosses:
        mean_log_ratio = tokens.conversation_mean(tokens.log_ratios).detach()
        ratio = (tokens.log_probs - tokens.log_probs.detach() + mean_log_ratio).exp()
        free = -tokens.advantages * ratio
        clipped_losses = -tokens.advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLosses(free.maximum(clipped_losses), clipped_losses > free)


class GeoMean(PolicyLoss):
    """−A·exp(mean over a conversation's tokens of the clipped log-ratio), A the mean of the tokens'
    advantages.

    GMPO, Zhao et al. 2025 (arXiv 2507.20673, equation 5). verl: `geo_mean`, which takes the mean over the
    rows of a micro-batch; here a conversation weighs as `aggregation` says.
    """

    needs_whole_conversations = True
    averages_advantages = True

    name: Literal["geo_mean"] = "geo_mean"
    clip_low: ClipRatio = 0.4
    """The bounds of the log-ratio."""
    clip_high: ClipRatio = 0.4

    def per_token(self, tokens: Tokens) -> TokenLosses:
        sign, log_ratios = tokens.advantages.sign(), tokens.log_ratios
        clipped_ratios = log_ratios.clamp(-self.clip_low, self.clip_high)
        pessimistic = sign * (sign * log_ratios).minimum(sign * clipped_ratios)
        ratio = tokens.conversation_mean(pessimistic).exp()
        advantage = tokens.conversation_mean(tokens.advantages)
        is_clipped = sign * clipped_ratios < sign * log_ratios
        return TokenLosses((-advantage * ratio).expand_as(log_ratios), is_clipped)


class CispoLoss(PolicyLoss):
    """−sg(clip(r, 1 − low, 1 + high))·A·log π: no token loses its gradient.

    MiniMax-M1 (arXiv 2506.13585, equation 4), which bounds the ratio from above only (`clip_low: 1`); the
    bound of 5 is ScaleRL's (arXiv 2510.13786). verl: `cispo`.
    """

    name: Literal["cispo"] = "cispo"
    clip_low: Annotated[float, Field(gt=0, le=1)] = 1.0
    clip_high: ClipRatio = 4.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        ratio = tokens.log_ratios.exp().detach()
        clipped_ratio = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLosses(-clipped_ratio * tokens.advantages * tokens.log_probs, clipped_ratio != ratio)


class SapoLoss(PolicyLoss):
    """−A·(4/τ)·σ(τ(r − 1)), with τ by the sign of the advantage.

    Gao et al. 2025 (arXiv 2511.20347, equation 6, with the temperatures of section 4). verl: `sapo`.
    """

    name: Literal["sapo"] = "sapo"
    tau_positive: Annotated[float, Field(gt=0)] = 1.0
    tau_negative: Annotated[float, Field(gt=0)] = 1.05

    def per_token(self, tokens: Tokens) -> TokenLosses:
        ratio, advantages = tokens.log_ratios.exp(), tokens.advantages

        def gate(tau: float) -> "Tensor":
            return (4.0 / tau) * (tau * (ratio - 1.0)).sigmoid()

        gates = gate(self.tau_positive).where(advantages > 0, gate(self.tau_negative))
        return TokenLosses(-gates * advantages)


class DppoTv(PolicyLoss):
    """−sg(min(r, max_ratio))·A·log π, where the total variation that a token moved is within bounds.

    A token is left out if A > 0 and π − π_old > high, or A ≤ 0 and π − π_old < −low. DPPO-Binary-TV (arXiv
    2602.04879, section 4). verl: `dppo_tv`.
    """

    name: Literal["dppo_tv"] = "dppo_tv"
    divergence_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    divergence_high: Annotated[float, Field(gt=0, lt=1)] = 0.2
    max_ratio: MaxRatio = 20.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        shift = (tokens.log_probs.exp() - tokens.old_log_probs.exp()).detach()
        is_inside = (shift <= self.divergence_high).where(
            tokens.advantages > 0, shift >= -self.divergence_low
        )
        return _inside_the_region(tokens, is_inside, max_ratio=self.max_ratio)


class DppoKl(PolicyLoss):
    """Like `DppoTv`, but with the KL divergence of the two-valued distribution "this token or another".

    DPPO-Binary-KL (arXiv 2602.04879, section 4). verl: `dppo_kl`.
    """

    name: Literal["dppo_kl"] = "dppo_kl"
    divergence_low: Annotated[float, Field(gt=0)] = 0.05
    divergence_high: Annotated[float, Field(gt=0)] = 0.05
    max_ratio: MaxRatio = 20.0

    def per_token(self, tokens: Tokens) -> TokenLosses:
        new, old = tokens.log_probs.detach().exp(), tokens.old_log_probs.exp()
        rest = ((1 - old + 1e-8) / (1 - new + 1e-8)).log()
        divergence = old * (tokens.old_log_probs - tokens.log_probs.detach()) + (1 - old) * rest
        too_high = (divergence > self.divergence_high) & (new > old)
        too_low = (divergence > self.divergence_low) & (new < old)
        is_inside = ~too_high.where(tokens.advantages > 0, too_low)
        return _inside_the_region(tokens, is_inside, max_ratio=self.max_ratio)


def _inside_the_region(tokens: Tokens, is_inside: "Tensor", *, max_ratio: float) -> TokenLosses:
    ratio = tokens.log_ratios.exp().clamp(max=max_ratio).detach()
    return TokenLosses(-tokens.advantages * ratio * tokens.log_probs * is_inside, ~is_inside)


class ClipCov(PolicyLoss):
    """PPO's clipped objective without the gradient of a few tokens of high covariance, drawn at random.

    Cui et al. 2025 (arXiv 2505.22617, section 4, equations 10 and 11). As in verl, the means are those of a
    micro-batch: its size has an effect. verl: `clip_cov`.
    """

    name: Literal["clip_cov"] = "clip_cov"
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.2
    clip_high: ClipRatio = 0.2
    share: Share = 2e-4
    """The share of the tokens that lose their gradient."""
    lowest: float = 1.0
    highest: float = 5.0
    """Between these bounds, a token's covariance is high."""

    @model_validator(mode="after")
    def _has_a_range(self) -> "ClipCov":
        if self.lowest >= self.highest:
            raise ValueError(
                f"lowest {self.lowest} is not below highest {self.highest}: no covariance is between them; "
                "raise highest, or lower lowest"
            )
        return self

    def per_token(self, tokens: Tokens) -> TokenLosses:
        import torch

        ratio, mask = tokens.log_ratios.exp(), tokens.mask
        free = -tokens.advantages * ratio
        clipped_losses = -tokens.advantages * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        covariance = _covariance(tokens)
        high = (covariance > self.lowest) & (covariance < self.highest) & mask & (clipped_losses <= free)
        candidates = high.reshape(-1).nonzero().squeeze(1)
        count = max(int(self.share * int(mask.sum())), 1)
        generator = torch.Generator().manual_seed(tokens.seed)
        dropped_indices = candidates[
            torch.randperm(len(candidates), generator=generator)[:count].to(candidates.device)
        ]
        is_dropped = (
            torch.zeros_like(mask).reshape(-1).index_fill(0, dropped_indices, True).reshape(mask.shape)
        )
        return TokenLosses(free.maximum(clipped_losses) * ~is_dropped, is_dropped)


class KlCov(PolicyLoss):
    """−r·A, with a penalty |log r| on the tokens of the highest covariance.

    Cui et al. 2025 (arXiv 2505.22617, section 4, equations 12 and 13), with means as in `ClipCov`. verl:
    `kl_cov`.
    """

    penalizes_ratios = True

    name: Literal["kl_cov"] = "kl_cov"
    share: Share = 2e-4
    """The share of the tokens that are penalised."""
    coef: Annotated[float, Field(gt=0)] = 1.0
    """The coefficient of the penalty."""

    def per_token(self, tokens: Tokens) -> TokenLosses:
        import torch

        log_ratios, mask = tokens.log_ratios, tokens.mask
        covariance = _covariance(tokens)[mask]
        count = max(int(self.share * len(covariance)), 1)
        places = mask.reshape(-1).nonzero().squeeze(1)[covariance.topk(min(count, len(covariance))).indices]
        high = torch.zeros_like(mask).reshape(-1).index_fill(0, places, True).reshape(mask.shape)
        return TokenLosses(-tokens.advantages * log_ratios.exp() + self.coef * log_ratios.abs() * high, high)


def _covariance(tokens: Tokens) -> "Tensor":
    """[B, R]: each token's part in the covariance of advantage and log-probability."""
    log_probs, mask = tokens.log_probs.detach(), tokens.mask

    def subtract_mean(values: "Tensor") -> "Tensor":
        return values - values[mask].mean()

    return subtract_mean(tokens.advantages) * subtract_mean(log_probs)


class GpgLoss(PolicyLoss):
    """−A·log π: REINFORCE, without ratio or trust region (Chu et al. 2025, arXiv 2504.02546). verl: `gpg`."""

    name: Literal["gpg"] = "gpg"

    def per_token(self, tokens: Tokens) -> TokenLosses:
        return TokenLosses(-tokens.advantages * tokens.log_probs)


class Dro(PolicyLoss):
    """−(A·log π − β/2·(log r)²): Richemond et al. 2024 (arXiv 2405.19107, equation 6). verl: `dro`."""

    penalizes_ratios = True

    name: Literal["dro"] = "dro"
    beta: Annotated[float, Field(gt=0)] = 0.05

    def per_token(self, tokens: Tokens) -> TokenLosses:
        penalty = 0.5 * self.beta * tokens.log_ratios.square()
        return TokenLosses(penalty - tokens.advantages * tokens.log_probs)


AnyLoss = Annotated[
    Vanilla | GspoLoss | GeoMean | CispoLoss | SapoLoss | DppoTv | DppoKl | ClipCov | KlCov | GpgLoss | Dro,
    Field(discriminator="name"),
]
"""Any policy loss, as the type of an algorithm's `loss`."""
