"""Prefect deployments of the pipelines: one for each, all of the same flow."""

from collections.abc import Iterator, Mapping

from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline

ENTRYPOINT = "flows/train_agent.py:train_agent"
"""Path relative to the project's folder, in which the worker runs it."""


def deploy(pipelines: Mapping[str, Pipeline], *, pool: str) -> Iterator[str]:
    """Deploy `pipelines`, by name, to the work pool `pool`; yields the name of each deployment.

    An earlier deployment of the same name is replaced. Raises `ConfigError` for a work pool that the server
    does not know.
    """
    from prefect.client.orchestration import get_client
    from prefect.deployments.runner import RunnerDeployment
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise ConfigError(
                f"--pool {pool}: there is no such work pool; prefect work-pool create {pool} --type process"
            ) from None
    for name, pipeline in pipelines.items():
        deployment = RunnerDeployment.from_entrypoint(
            ENTRYPOINT,
            name=name,
            description=pipeline.description,
            parameters={"pipeline": name},
            work_pool_name=pool,
        )
        deployment.apply()
        yield f"{deployment.flow_name}/{name}"
