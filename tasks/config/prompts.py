"""Checks a model against a pipeline's items: its tokenizer, its chat template, the room after the prompts.

Loads only the tokenizer of the model. A few items of each part are reset where that starts no process and
asks no server; elsewhere the prompt without the observation is a lower bound.
"""

from collections.abc import Sequence
from itertools import islice

from agents.agent_results import open_conversation
from agents.huggingface.files import load_tokenizer
from agents.prompting.renderer import Renderer
from envs.errors import ConfigError, EnvCrashed, WingspanError, boundary
from envs.registry import EnvSpec
from envs.runtime.concurrency import run_blocking
from envs.runtime.pool import CLOSE_TIMEOUT_S
from envs.runtime.time_limits import run_in_time
from envs.types import Environment, Item, Observation, reset_env
from tasks.config.environments import environments
from tasks.config.episodes import make_episode_config
from tasks.config.pipelines import Pipeline

ITEMS = 3
"""Items of each part that are reset."""


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
                opening = open_conversation(configs[spec.name].agent, item, observation.text)
                sizes.append(len(renderer.prompt_ids(opening.messages, tools=opening.tools)))
        if sizes:
            _check_room(pipeline, min(sizes), part=name)


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

    async def reset_all(env: Environment) -> Sequence[Observation]:
        return [await reset_env(env, item) for item in items]

    async def begin() -> Sequence[Observation]:
        with boundary(EnvCrashed, f"environment {spec.name!r}"):
            env = spec.make()
            try:
                return await run_in_time(
                    reset_all(env), timeout_s=pipeline.rollout.step_timeout_s, name=f"{spec.name}: reset"
                )
            finally:
                await run_in_time(
                    env.close(), timeout_s=CLOSE_TIMEOUT_S, name=f"closing environment {spec.name!r}"
                )

    try:
        return run_blocking(begin())
    except ConfigError:
        raise
    except WingspanError:
        return nothing  # a fault of the environment, of which the stage `provision` tells more
