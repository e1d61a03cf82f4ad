"""Prefect deployments: one for each pipeline, all of the same flow; one for each other kind of work."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError, to_line
from tasks.config.override_schema import override_schemas
from tasks.config.pipelines import Pipeline
from tasks.runs.provenance import head_commit

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient

ENTRYPOINT = "flows/train_agent.py:train_agent"
"""Path relative to the project's folder."""
PREPARATION, PREPARATION_ENTRYPOINT = "any-pipeline", "flows/prepare_data.py:prepare_data"
"""Name and flow of the deployment that prepares the data of a pipeline."""
EVALUATION, EVALUATION_ENTRYPOINT = "any-policy", "flows/evaluate_policy.py:evaluate_policy"
"""Name and flow of the deployment that evaluates: its parameters are those of `wingspan evaluate`."""

SWEEP, SWEEP_ENTRYPOINT = "any-pipeline", "flows/sweep/flow.py:sweep"
"""Name and flow of the deployment that sweeps: its parameters are those of `wingspan sweep`."""


def deploy(
    pipelines: Mapping[str, Pipeline], *, are_all: bool, pool: str, secrets: Mapping[str, str]
) -> Iterator[str]:
    """Deploy `pipelines`, by name, to the work pool `pool`; if they `are_all` that there are, also what works
    with any of them: the preparation of data, evaluations and sweeps. Yields the deployments' full names.

    Flow runs work in the folder in which this is called. An earlier deployment of the same name gets what is
    given here, and keeps the rest: schedules, tags, limits, and parameters and variables of other names.
    `secrets` maps environment variables of the flow runs to names of Prefect's Secret blocks. The deployments
    hold these names; a worker reads the values when it starts a run. Raises `ConfigError` for a work pool or
    a block that the server does not know, and for a deployment that it refuses.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    from flows.evaluate_policy import evaluate_policy
    from flows.prepare_data import prepare_data
    from flows.sweep.flow import sweep
    from flows.train_agent import train_agent

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
        variables = {
            variable: f"{{{{ prefect.blocks.secret.{block} }}}}" for variable, block in secrets.items()
        }

        def make(
            flow: "Flow[..., Any]",
            entrypoint: str,
            name: str,
            description: str,
            *,
            pipelines: Mapping[str, Pipeline] = pipelines,
            **parameters: object,
        ) -> str:
            fields = _fields(flow, entrypoint=entrypoint, description=description)
            fields["parameter_openapi_schema"] = describe_parameters(flow, pipelines)
            _apply(client, flow, name, fields=fields, parameters=parameters, pool=pool, variables=variables)
            return f"{flow.name}/{name}"

        for name, pipeline in pipelines.items():
            own = {name: pipeline}
            yield make(train_agent, ENTRYPOINT, name, pipeline.description, pipelines=own, pipeline=name)
        if are_all:
            description = "Write the items of any pipeline, and prove that its environments work."
            yield make(prepare_data, PREPARATION_ENTRYPOINT, PREPARATION, description)
            description = "Evaluate any policy on any environment."
            yield make(evaluate_policy, EVALUATION_ENTRYPOINT, EVALUATION, description)
            description = "Run any pipeline with several seeds and parameters, and compare."
            yield make(sweep, SWEEP_ENTRYPOINT, SWEEP, description)


def _fields(flow: "Flow[..., Any]", *, entrypoint: str, description: str) -> dict[str, Any]:
    """What every `wingspan deploy` sets anew."""
    from flows.orchestrator.runs import pull_step

    return {
        "version": (head_commit() or "")[:8] or flow.version,
        "description": description,
        "entrypoint": entrypoint,
        "pull_steps": [pull_step()],
    }


def describe_parameters(flow: "Flow[..., Any]", pipelines: Mapping[str, Pipeline]) -> dict[str, Any]:
    """The JSON schema by which Prefect's page and API check the parameters of `flow` before a run: `pipeline`
    is one of `pipelines`, and `overrides` and `vary` have keys and values that these can have."""
    from prefect.utilities.callables import parameter_schema

    schema: dict[str, Any] = parameter_schema(flow).model_dump(exclude_unset=True)
    properties = schema["properties"]
    text, *_ = properties["pipeline"].get("anyOf", [properties["pipeline"]])
    text["enum"] = list(pipelines)
    schemas = override_schemas(list(pipelines.values()))
    lists = {key: {"type": "array", "items": schema, "minItems": 1} for key, schema in schemas.items()}
    for name, content in (("overrides", schemas), ("vary", lists)):
        if name in properties:
            # The page does not look below `then`: it shows an editor of the object, not hundreds of fields.
            properties[name] |= {
                "if": {"type": "object"},
                "then": {"properties": content, "additionalProperties": False},
            }
    return schema


def _job_variables(before: Mapping[str, Any], variables: Mapping[str, str]) -> dict[str, Any]:
    """The job variables of a deployment that had those of `before`, with `variables` in its environment.

    Unless `before` says otherwise, a worker does not read what a run prints: if the worker were killed, the
    pipe would break, and the run's next line end it. The log on Prefect's page comes from the run itself.
    """
    after = {"stream_output": False, **before}
    if variables:
        after["env"] = {**(before.get("env") or {}), **variables}
    return after


def _apply(
    client: "SyncPrefectClient",
    flow: "Flow[..., Any]",
    name: str,
    *,
    fields: Mapping[str, Any],
    parameters: Mapping[str, object],
    pool: str,
    variables: Mapping[str, str],
) -> None:
    """Create the deployment, or change these `fields` of the one that is there.

    Not by `Flow.deploy`, whose update also sends the defaults of what it was not given: it would remove
    schedules and tags, and resume a deployment that was paused.
    """
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError

    full_name = f"{flow.name}/{name}"
    try:
        found = client.read_deployment_by_name(full_name)
    except ObjectNotFound:
        client.create_deployment(
            client.create_flow(flow),
            name,
            parameters=dict(parameters),
            work_pool_name=pool,
            job_variables=_job_variables({}, variables),
            enforce_parameter_schema=True,
            **fields,
        )
        return
    changes = {
        **fields,
        "parameters": {**found.parameters, **parameters},
        "job_variables": _job_variables(found.job_variables, variables),
    }
    if pool != found.work_pool_name:  # else it would go back to the pool's default queue
        changes["work_pool_name"] = pool
    try:
        client.update_deployment(found.id, DeploymentUpdate(**changes))
    except PrefectHTTPStatusError as error:
        reason = to_line(error.response.json().get("detail", error), limit=300)
        raise ConfigError(
            f"Prefect refuses deployment {full_name} ({reason}); change what its page says, or delete it: "
            f"prefect deployment delete {full_name}"
        ) from None
