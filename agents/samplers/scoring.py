"""Log-probs of tokens that somebody else has sampled: what a teacher says of a policy's turns."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agents.huggingface.files import load_config
from envs.errors import ConfigError, describe

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class ScoredTokens:
    """A context, and what follows it, observations included."""

    prompt_ids: Sequence[int]  # [P], at least one
    response_ids: Sequence[int]  # [R]


class Scorer(Protocol):
    """A model that is never trained."""

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest sequence that it reads; None if that is unknown."""

    def score(self, continuations: Sequence[ScoredTokens], *, temperature: float) -> list[list[float]]:
        """[R] each: the log-prob of every token of the response, given all tokens before it, by the
        distribution at `temperature`. The numbers of one continuation do not depend on the others."""


class LocalScorer:
    """The model of a folder in Hugging Face format, in this process, on the CPU and in float32."""

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a model that cannot be loaded."""
        from agents.huggingface.models import AutoModelForCausalLM

        try:
            self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                folder, dtype="float32"
            ).eval()
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{folder} cannot be loaded: {describe(error)[:300]}; give a folder in Hugging Face format"
            ) from error
        self.max_length = read_max_length(folder)

    def score(self, continuations: Sequence[ScoredTokens], *, temperature: float) -> list[list[float]]:
        """The sequences are scored one at a time: the numbers of a batch depend on its shape."""
        import torch

        scores = []
        with torch.inference_mode():
            for continuation in continuations:
                ids = torch.tensor([[*continuation.prompt_ids, *continuation.response_ids]])
                count = len(continuation.response_ids)
                logits = self._model(input_ids=ids, use_cache=False, logits_to_keep=count + 1).logits[0, :-1]
                losses = torch.nn.functional.cross_entropy(
                    logits / temperature, ids[0, -count:], reduction="none"
                )
                scores.append((-losses).tolist())
        return scores


def read_max_length(folder: Path) -> int | None:
    """Tokens of the longest sequence that the model in `folder` reads, which is not loaded; None if it does
    not say."""
    config = load_config(folder).get_text_config()
    length = getattr(config, "max_position_embeddings", None)
    return length if isinstance(length, int) else None
