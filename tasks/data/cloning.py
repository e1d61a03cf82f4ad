"""What behaviour cloning starts from: the model, with the tokens that it lacks, and the demonstrations."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, to_line
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import Demonstration, demonstrate
from tasks.data.vocabulary import add_whole_words, add_words, find_spelled_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare_cloning(
    pipeline: Pipeline, items: Sequence[Item], *, folder: Path
) -> tuple[str, list[Demonstration]]:
    """The model to start from (saved in `folder` if it gets new words), and demonstrations in its tokens.

    The same arguments give the same of both. Raises `ConfigError` for a model that cannot be loaded.
    """

    settings = pipeline.warmup
    assert settings is not None
    tokenizer = load_tokenizer(pipeline.model)
    if not settings.new_words:
        return pipeline.model, asyncio.run(demonstrate(items, pipeline=pipeline, tokenizer=tokenizer))
    if settings.whole_words:
        tokenizer = add_whole_words(tokenizer, settings.whole_words, folder)
    # As long as they may be: with new words they are much shorter.
    rollout = pipeline.rollout.model_copy(update={"context_length": sys.maxsize // 2})
    boundless = pipeline.model_copy(update={"rollout": rollout})
    demonstrations = asyncio.run(demonstrate(items, pipeline=boundless, tokenizer=tokenizer))
    conversations = (
        demonstration.prompt_ids + demonstration.response_ids for demonstration in demonstrations
    )
    words = find_spelled_words(tokenizer, conversations, at_most=settings.new_words)
    add_words(pipeline.model, tokenizer, words, folder, seed=pipeline.seed)
    tokenizer = load_tokenizer(str(folder))
    return str(folder), asyncio.run(demonstrate(items, pipeline=pipeline, tokenizer=tokenizer))


def load_tokenizer(model: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of `model`; raises `ConfigError`."""
    from agents.huggingface import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} cannot be loaded: {to_line(error, limit=200)}") from None
