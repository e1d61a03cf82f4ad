"""A pipeline's environments: on this machine, or on the servers that it names."""

import os

from envs.errors import ConfigError
from envs.registry import EnvSpec, get_env
from envs.remote.servers import Servers, on_servers
from tasks.config.pipelines import Pipeline


def environments(pipeline: Pipeline) -> list[EnvSpec]:
    """The environments in which the pipeline's episodes run.

    Raises `ConfigError` for an unknown name, an invalid URL, or a missing token.
    """
    unknown_names = pipeline.servers.keys() - set(pipeline.data.envs)
    if unknown_names:
        raise ConfigError(
            f"servers.{min(unknown_names)}: this pipeline uses {', '.join(pipeline.data.envs)}; remove it, "
            "or correct it"
        )
    return [_environment(name, pipeline=pipeline) for name in pipeline.data.envs]


def check_environments(pipeline: Pipeline) -> None:
    """Raise `MissingDependency` for a missing requirement, `ConfigError` for too few live environments."""
    if pipeline.rollout.max_live_envs < len(pipeline.data.envs):
        raise ConfigError(
            f"rollout.max_live_envs is {pipeline.rollout.max_live_envs}, and {len(pipeline.data.envs)} "
            f"environments are played ({', '.join(pipeline.data.envs)}); give one for each at least"
        )
    for spec in environments(pipeline):
        (get_env(spec.name) if _is_played_here(spec, pipeline) else spec).check()


def outside_envs(pipeline: Pipeline) -> list[str]:
    """The environments of `pipeline` whose instances act on servers outside of the run, which serve a limited
    number."""
    return [env for env in pipeline.data.envs if env in pipeline.servers or get_env(env).is_shared]


def needed_here(pipeline: Pipeline) -> set[str]:
    """Names of the requirements that `check_environments` checks on this machine; does not read servers'
    URLs."""
    names: set[str] = set()
    for spec in map(get_env, pipeline.data.envs):
        names |= set(spec.packages)  # items are made with them, wherever the episodes run
        if _is_played_here(spec, pipeline):
            names |= {need.name for need in spec.needs}
    return names


def _is_played_here(spec: EnvSpec, pipeline: Pipeline) -> bool:
    """Demonstrations are played on this machine even if a server runs the episodes."""
    return spec.name not in pipeline.servers or (pipeline.warmup is not None and spec.has_expert)


def _environment(name: str, *, pipeline: Pipeline) -> EnvSpec:
    spec, settings = get_env(name), pipeline.servers.get(name)
    if settings is None:
        return spec
    if not spec.has_items:
        raise ConfigError(
            f"servers.{name}: its items are your data, which are not sent to servers; remove it, and its "
            "episodes run here"
        )
    token = None
    if settings.token_from is not None:
        token = os.environ.get(settings.token_from)
        if not token:
            raise ConfigError(
                f"servers.{name}.token_from: the environment variable {settings.token_from} is not set; "
                "export it"
            )
    return on_servers(spec, Servers(name, settings.urls, protocol=settings.protocol, token=token))
