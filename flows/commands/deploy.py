"""Prefect deployments of the pipelines: one each, all of the same flow."""

from collections.abc import Iterator, Sequence

from envs.errors import ConfigError
from tasks.config.pipelines import load_pipeline

ENTRYPOINT = "flows/train_agent.py:train_agent"
"""From the folder of the project, in which the worker runs it."""


def deploy(names: Sequence[str], *, pool: str) -> Iterator[str]:
    """Deploy the pipelines `names` to the work pool `pool`; yields each deployment's name once it is there.

    What was deployed earlier under the same name is replaced. Raises `ConfigError` for a pipeline that is not
    valid, before anything is deployed, and for a pool that the server does not have.
    """
    pipelines = {name: load_pipeline(name) for name in names}
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
