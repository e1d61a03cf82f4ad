"""What the algorithms have in common that learn from a teacher's probabilities."""

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field, ValidationError

from agents.settings import EndpointSettings, Seconds, UserPath, describe_invalid
from tasks.algorithms.algorithm import Aggregation, Estimate, OnlineAlgorithm

if TYPE_CHECKING:
    from tasks.algorithms.conversations import Conversations


class TeacherEndpoint(EndpointSettings):
    """A server that returns the log-probs of a prompt of token ids, as vLLM's `/v1/completions` does. A step
    fails after the last of a request's `max_attempts`."""

    request_timeout_s: Seconds = 600.0
    """The time for one segment of a conversation."""


def _parse_teacher(value: object) -> object:
    if isinstance(value, str | Path | TeacherEndpoint):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"{value!r:.60} is no teacher; give a folder, or {{url: …, model: …}}")
    try:
        return TeacherEndpoint.model_validate(dict(value))
    except ValidationError as error:
        raise ValueError(describe_invalid(error, TeacherEndpoint)) from None


TeacherSource = Annotated[UserPath | TeacherEndpoint, BeforeValidator(_parse_teacher)]
"""A folder in Hugging Face format, or an endpoint: each with the policy's vocabulary."""


class Distillation(OnlineAlgorithm):
    """log π_teacher − log π at each sampled token, with no credit for later ones: the gradient is that of the
    reverse KL divergence of the policy from the teacher, in the contexts that the policy has sampled. π is
    that of `old_log_probs`: the policy that sampled, or with `train.rollout_correction` the trainer's.

    Lu and Thinking Machines Lab 2025 (thinkingmachines.ai/blog/on-policy-distillation); Agarwal et al. 2023
    (GKD, arXiv 2306.13649) with the reverse KL and no data but the policy's. verl: `distillation` with
    `use_policy_gradient` and `loss_mode: k1`, for teachers in vLLM and episodes of its own agent loop.
    """

    compares_group = False
    skips_equal_groups = False
    credits_parts = True

    aggregation: Aggregation = "token-mean"
    """The mean over tokens, as the metric `distill/kl` is a mean over the tokens."""
    reward_weight: Annotated[float, Field(ge=0)] = 0.0
    """The weight of GRPO's advantage, which is added; 0 learns from the teacher alone."""

    @property
    def unused_reward(self) -> str:
        return "" if self.reward_weight else "reward_weight 0"

    @property
    @abstractmethod
    def teacher_source(self) -> Path | TeacherEndpoint | None:
        """None is the policy that training starts from, frozen."""

    def estimate(self, batch: "Conversations") -> Estimate:
        import torch

        from tasks.algorithms.builtin.grpo import Grpo
        from tasks.algorithms.conversations import by_rows

        assert batch.teacher_log_probs is not None, "the teacher computed no log-probs"
        advantages = by_rows(torch.sub, batch.teacher_log_probs, batch.old_log_probs)
        if self.reward_weight:
            advantages.add_(Grpo().estimate(batch).advantages, alpha=self.reward_weight)
        return Estimate(advantages)
