"""A local model: a folder in Hugging Face format, sampled on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface.files import load_tokenizer
from agents.prompting.images import load_processor
from envs.errors import ConfigError, describe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

    from agents.samplers.cpu import CpuSampler
    from agents.samplers.transformers import TransformersSampler
    from agents.samplers.vllm import VllmSampler


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to sample."""

    sampler: "CpuSampler | TransformersSampler | VllmSampler"
    tokenizer: "PreTrainedTokenizerBase"
    processor: "ProcessorMixin | None"
    """The processor of a vision-language model."""


@dataclass(frozen=True, slots=True)
class LocalModel:
    """Which model is sampled on this machine's CPU, and how."""

    folder: Path
    _: KW_ONLY
    seed: int = 0
    """The seed of sampling."""
    threads: int = 1
    """The threads of the CPU engine; more than one pays only on an otherwise idle machine."""
    max_sequences: int = 256
    """Episodes that the CPU engine or vLLM decodes side by side; transformers decodes one at a time."""
    vllm_python: Path | None = None
    """The Python that runs vLLM (`agents.samplers.vllm.find_python`), which then samples."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # which notebooks give as a text

    def check(self) -> None:
        """Raise `ConfigError` unless the folder holds a model."""
        if not (self.folder / "config.json").exists():
            raise ConfigError(
                f"no model in {str(self.folder)!r}: a folder in Hugging Face format has a config.json; "
                "give such a folder"
            )

    def read_context_length(self) -> int:
        """Tokens that the model was made for, by its config.json. Raises `ConfigError`."""
        self.check()
        from agents.samplers.scoring import read_max_length

        try:
            length, reason = read_max_length(self.folder), "no max_position_embeddings"
        except (OSError, ValueError) as error:
            length, reason = None, describe(error)[:200]
        if length is None:
            raise ConfigError(
                f"{self.folder}/config.json has no context length ({reason}); name another model"
            )
        return length

    @contextmanager
    def load(self, *, context_length: int) -> Iterator[LoadedModel]:
        """The model with its sampler, which is closed at the end.

        Without vLLM, a model whose architecture the CPU engine does not know is sampled by transformers.
        Raises `ConfigError` for a model that cannot be loaded, `MissingDependency` for what its processor
        needs.
        """
        self.check()
        tokenizer = load_tokenizer(self.folder)
        processor = load_processor(self.folder)
        sampler = self._sampler(processor, context_length=context_length)
        try:
            yield LoadedModel(sampler, tokenizer, processor)
        finally:
            sampler.close()

    def _sampler(
        self, processor: "ProcessorMixin | None", *, context_length: int
    ) -> "CpuSampler | TransformersSampler | VllmSampler":
        from agents.samplers.cpu import CpuSampler, is_supported
        from agents.samplers.transformers import TransformersSampler
        from agents.samplers.vllm import VllmSampler

        if self.vllm_python is not None:
            return VllmSampler(
                self.folder,
                python=self.vllm_python,
                context_length=context_length,
                max_sequences=self.max_sequences,
                seed=self.seed,
                threads=self.threads,
            )
        if is_supported(self.folder):
            return CpuSampler(
                self.folder,
                context_length=context_length,
                max_sequences=self.max_sequences,
                seed=self.seed,
                threads=self.threads,
            )
        return TransformersSampler(self.folder, processor, context_length=context_length, seed=self.seed)
