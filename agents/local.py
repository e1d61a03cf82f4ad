"""A model of this machine: a folder in Hugging Face format, sampled on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, described

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agents.sampler_cpu import CpuSampler


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Which model samples on this machine's CPU, and how."""

    folder: Path
    _: KW_ONLY
    seed: int = 0
    """Of its draws."""
    max_sequences: int = 256
    """Episodes that it decodes side by side."""

    def check(self) -> None:
        """Raise `ConfigError` unless the folder holds a model."""
        if not (self.folder / "config.json").exists():
            raise ConfigError(
                f"no model in {str(self.folder)!r}: a folder in Hugging Face format has a config.json; "
                "give such a folder, or an endpoint"
            )

    @contextmanager
    def loaded(self, *, context_length: int) -> Iterator[tuple["CpuSampler", "PreTrainedTokenizerBase"]]:
        """Its sampler and tokenizer, within. Raises `ConfigError` for a model that cannot be loaded."""
        self.check()
        from transformers import AutoTokenizer

        from agents.sampler_cpu import CpuSampler

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self.folder))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{self.folder} has no tokenizer ({described(error)[:200]}); save it beside the model"
            ) from error
        sampler = CpuSampler(
            self.folder, context_length=context_length, max_sequences=self.max_sequences, seed=self.seed
        )
        try:
            yield sampler, tokenizer
        finally:
            sampler.close()
