"""Prefect deployments: one for each pipeline, all of the same flow; one for evaluations; one for sweeps."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.errors import ConfigError
from tasks.config.pipelines import Pipeline

ENTRYPOINT = "flows/train_agent.py:train_agent"
"""Path relative to the project's folder."""
EVALUATION, EVALUATION_ENTRYPOINT = "any-policy", "flows/evaluate_policy.py:evaluate_policy"
"""Name and flow of the deployment that evaluates: its parameters are those of `wingspan evaluate`."""

SWEEP, SWEEP_ENTRYPOINT = "any-pipeline", "flows/sweep/flow.py:sweep"
"""Name and flow of the deployment that sweeps: its parameters are those of `wingspan sweep`."""


def deploy(pipelines: Mapping[str, Pipeline], *, pool: str, secrets: Mapping[str, str]) -> Iterator[str]:
    """Deploy `pipelines`, by name, evaluations and sweeps to the work pool `pool`; yields their full names.

    Flow runs work in the folder in which this is called. An earlier deployment of the same name is replaced.
    `secrets` maps environment variables of the flow runs to names of Prefect's Secret blocks. The deployments
    hold these names; a worker reads the values when it starts a run. Raises `ConfigError` for a work pool or
    a block that the server does not know.
    """
    from prefect.client.orchestration import get_client
    from prefect.deployments.runner import RunnerDeployment
    from prefect.exceptions import ObjectNotFound
    from prefect.runner.storage import LocalStorage

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(pool)
        except ObjectNotFound:
            raise ConfigError(
                f"--pool {pool}: there is no such work pool; prefect work-pool create {pool} --type process"
            ) from None
        for variable, block in secrets.items():
            try:
                client.read_block_document_by_name(block, "secret", include_secrets=False)
            except ObjectNotFound:
                raise ConfigError(
                    f"--secret {variable}={block}: there is no Secret block {block!r}; create it on "
                    f"Prefect's page, or by Secret(value=…).save({block!r}) in Python"
                ) from None
    variables = {variable: f"{{{{ prefect.blocks.secret.{block} }}}}" for variable, block in secrets.items()}

    def make(entrypoint: str, name: str, description: str, **parameters: Any) -> str:
        deployment = RunnerDeployment.from_entrypoint(
            entrypoint,
            name=name,
            description=description,
            parameters=parameters,
            work_pool_name=pool,
            job_variables={"env": variables} if variables else {},
        )
        # Else a worker copies the folder, and deletes the copy with what the run has written.
        deployment.storage = LocalStorage(str(Path.cwd()))
        deployment.apply()
        return f"{deployment.flow_name}/{name}"

    for name, pipeline in pipelines.items():
        yield make(ENTRYPOINT, name, pipeline.description, pipeline=name)
    yield make(EVALUATION_ENTRYPOINT, EVALUATION, "Evaluate any policy on any environment.")
    yield make(SWEEP_ENTRYPOINT, SWEEP, "Run any pipeline with several seeds and parameters, and compare.")
