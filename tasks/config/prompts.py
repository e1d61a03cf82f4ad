"""Checks a model against a pipeline's items: its tokenizer, its chat template, the room after the prompts.

Loads only the tokenizer of the model. A few items of each part are reset where that starts no process and
asks no server; elsewhere the prompt without the observation is a lower bound.
"""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from agents.prompting.renderer import Renderer
from envs.errors import ConfigError, WingspanError, describe
from envs.registry import EnvSpec
from envs.types import Item, Observation
from tasks.config.environments import environments
from tasks.config.episodes import make_episode_config
from tasks.config.pipelines import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ITEMS = 3
"""Items of each part that are reset."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def check_prompts(pipeline: Pipeline, items: Sequence[Item]) -> None:
    """Check that episodes of `items` have room for a turn.

    Raises `ConfigError` for a model without a tokenizer or with a chat template that cannot be used, and for
    a part of the data whose prompts leave less than `rollout.max_tokens_per_turn` of
    `rollout.context_length`.
    """
    tokenizer = load_tokenizer(pipeline.model)
    renderer = Renderer(tokenizer)
    if pipeline.agent.program is not None:
        return  # which puts the items itself
    specs = {spec.name: spec for spec in environments(pipeline)}
    configs = {name: make_episode_config(spec, pipeline, tokenizer=tokenizer) for name, spec in specs.items()}
    if pipeline.warmup is not None and pipeline.warmup.new_words:
        return  # the policy gets another vocabulary
    for name in pipeline.data.parts:
        part_items = list(islice((item for item in items if pipeline.data.part_of(item) == name), ITEMS))
        spec = specs[pipeline.data.parts[name].env]
        sizes = []
        for item, observation in zip(
            part_items, _reset_episodes(part_items, spec, pipeline=pipeline), strict=True
        ):
            if not observation.images:  # which only a processor can count
                opening = configs[spec.name].agent.render(item, observation.text)
                sizes.append(len(renderer.prompt_ids(opening.messages, tools=opening.tools)))
        if sizes:
            _check_room(pipeline, min(sizes), part=name)


def load_tokenizer(model: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model's folder or name, by whatever class reads its files quickest: to count with.

    Raises `ConfigError`.
    """
    folder = Path(model)
    if folder.is_dir() and not any((folder / name).exists() for name in TOKENIZER_FILES):
        raise ConfigError(
            f"model {model!r} has no tokenizer: the folder has no {TOKENIZER_FILES[0]}; save it beside the "
            "model by tokenizer.save_pretrained"
        )
    try:
        if (folder / "tokenizer.json").exists():
            # Without the table of all models, whose import takes longer than all else here.
            from transformers import PreTrainedTokenizerFast

            return PreTrainedTokenizerFast.from_pretrained(model)
        from agents.huggingface import AutoTokenizer

        return AutoTokenizer.from_pretrained(model)
    except Exception as error:  # of transformers, tokenizers, the hub's client, or a damaged file
        raise ConfigError(
            f"the tokenizer of model {model!r} cannot be loaded ({describe(error)[:200]}); save it again"
        ) from None


def _check_room(pipeline: Pipeline, shortest: int, *, part: str) -> None:
    rollout = pipeline.rollout
    minimum_length = shortest + rollout.max_tokens_per_turn
    if minimum_length > rollout.context_length:
        raise ConfigError(
            f"rollout.context_length {rollout.context_length}: the prompts of data.parts.{part} have "
            f"{shortest} tokens or more, and rollout.max_tokens_per_turn {rollout.max_tokens_per_turn} do "
            f"not fit behind them; give {minimum_length} at least, or lower max_tokens_per_turn"
        )


def _reset_episodes(items: Sequence[Item], spec: EnvSpec, *, pipeline: Pipeline) -> Sequence[Observation]:
    """The first observations of `items`; empty where they would need a process or a server."""
    nothing = [Observation("") for _ in items]
    if spec.isolation != "none" or spec.name in pipeline.servers or spec.name.startswith("openenv:"):
        return nothing

    async def begin() -> Sequence[Observation]:
        env = spec.make()
        try:
            async with asyncio.timeout(pipeline.rollout.step_timeout_s):
                return [Observation.wrap(await env.reset(item)) for item in items]
        finally:
            await env.close()

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller may have an event loop
            return thread.submit(asyncio.run, begin()).result()
    except ConfigError:
        raise
    except (WingspanError, TimeoutError):
        return nothing  # a fault of the environment, of which the stage `provision` tells more
