"""What behaviour cloning starts from: the model, with the tokens that it lacks, and the demonstrations."""

import asyncio
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface.files import load_tokenizer
from envs.registry import Split
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import Demonstration, demonstrate
from tasks.data.renaming import rename_words
from tasks.data.vocabulary import add_whole_words, add_words, find_spelled_words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prepare_cloning(pipeline: Pipeline, items: Split, *, folder: Path) -> tuple[str, list[Demonstration]]:
    """The model to start from (saved in `folder` if it gets new words), and demonstrations in its tokens.

    With `warmup.rename_words`, the words of test items are new words, too; nothing else of them is used. The
    same arguments give the same of both. Raises `ConfigError` for a model that cannot be loaded.
    """
    settings = pipeline.warmup
    assert settings is not None
    tokenizer = load_tokenizer(pipeline.model)
    if not settings.new_words:
        return pipeline.model, asyncio.run(demonstrate(items.train, pipeline=pipeline, tokenizer=tokenizer))
    if settings.whole_words:
        tokenizer = add_whole_words(tokenizer, settings.whole_words, folder)
    conversations = _play_for_words(pipeline, items, tokenizer=tokenizer)
    words = find_spelled_words(tokenizer, conversations, at_most=settings.new_words)
    add_words(pipeline.model, tokenizer, words, folder, seed=pipeline.seed)
    tokenizer = load_tokenizer(str(folder))
    demonstrations = asyncio.run(demonstrate(items.train, pipeline=pipeline, tokenizer=tokenizer))
    if settings.rename_words:
        ids = dict(zip(words, tokenizer.convert_tokens_to_ids(words), strict=True))
        copies = math.ceil(settings.steps * settings.batch_size / len(demonstrations))  # none is shown twice
        demonstrations = rename_words(demonstrations, ids, copies=copies, seed=pipeline.seed)
    return str(folder), demonstrations


def _play_for_words(
    pipeline: Pipeline, items: Split, *, tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[list[int]]:
    """The conversations in which new words are counted: with `warmup.rename_words`, one of each item.

    They may be of any length: with new words they are much shorter.
    """
    settings, played = pipeline.warmup, items.train
    assert settings is not None
    if settings.rename_words:
        played = [*items.train, *items.test]
        settings = settings.model_copy(update={"demonstrations": len(played), "noise": 0.0})
    rollout = pipeline.rollout.model_copy(update={"context_length": sys.maxsize // 2})
    boundless = pipeline.model_copy(update={"warmup": settings, "rollout": rollout})
    for one in asyncio.run(demonstrate(played, pipeline=boundless, tokenizer=tokenizer)):
        yield one.prompt_ids + one.response_ids
