"""A pipeline's environments, as it wants them: on this machine, or on servers."""

import os

from envs.errors import ConfigError
from envs.registry import EnvSpec, get_env
from envs.remote.servers import Servers, on_servers
from tasks.config.pipelines import Pipeline


def environments(pipeline: Pipeline) -> list[EnvSpec]:
    """What the pipeline's episodes are played on.

    Raises `ConfigError` for unknown names, a URL that is none, or a token that is not there.
    """
    unknown_names = pipeline.servers.keys() - set(pipeline.data.envs)
    if unknown_names:
        raise ConfigError(
            f"servers.{min(unknown_names)}: this pipeline uses {', '.join(pipeline.data.envs)}; remove it, "
            "or correct it"
        )
    return [_environment(name, pipeline=pipeline) for name in pipeline.data.envs]


def check_environments(pipeline: Pipeline) -> None:
    """Raise `MissingDependency` for what is missing here, `ConfigError` for too few places, too."""
    if pipeline.rollout.max_live_envs < len(pipeline.data.envs):
        raise ConfigError(
            f"rollout.max_live_envs is {pipeline.rollout.max_live_envs}, and {len(pipeline.data.envs)} "
            f"environments are played ({', '.join(pipeline.data.envs)}); give one for each at least"
        )
    for spec in environments(pipeline):
        (get_env(spec.name) if _is_played_here(spec, pipeline) else spec).check()


def needed_here(pipeline: Pipeline) -> set[str]:
    """Names of all that `check_environments` asks for on this machine; servers' URLs are not looked at."""
    names: set[str] = set()
    for spec in map(get_env, pipeline.data.envs):
        names |= set(spec.packages)  # items are made of them, wherever these are played
        if _is_played_here(spec, pipeline):
            names |= {need.name for need in spec.needs}
    return names


def _is_played_here(spec: EnvSpec, pipeline: Pipeline) -> bool:
    """Demonstrations are, whoever serves the episodes."""
    return spec.name not in pipeline.servers or (pipeline.warmup is not None and spec.has_expert)


def _environment(name: str, *, pipeline: Pipeline) -> EnvSpec:
    spec, settings = get_env(name), pipeline.servers.get(name)
    if settings is None:
        return spec
    if not spec.has_items:
        raise ConfigError(
            f"servers.{name}: its items are your data, which servers are not given; take it out, and it is "
            "played here"
        )
    token = None
    if settings.token_from is not None:
        token = os.environ.get(settings.token_from)
        if not token:
            raise ConfigError(
                f"servers.{name}.token_from: the environment variable {settings.token_from} is not set; "
                "export it"
            )
    return on_servers(spec, Servers(settings.urls, protocol=settings.protocol, token=token))
