"""Starts a run of a deployment, and waits for its end, as `wingspan run` does for its own.

    python -m bench.deployed train-agent/textcraft-cpu --parameters '{"overrides": {"seed": 1}}'

Exits with status 0 if the run has completed, else with 1. Unlike `prefect deployment run … --watch`, it goes
on when Prefect's server is restarted meanwhile.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError

from flows.cli.options import parse_settings

POLL_S = 1.0
PROCESS = r"prefect\.(runner\._workspace_supervisor|engine)|_workspace_runtime_bootstrap\.py"
"""What is in the command line of the process of a deployed run, from its start by the worker on."""


def deployed_command(
    pipeline: str, workspace: Path, *, settings: Sequence[str], variables: dict[str, str]
) -> list[str]:
    """This program, for a run of the deployment of `pipeline` with `variables` in its environment."""
    parameters = {"overrides": parse_settings(list(settings)), "workspace": str(workspace)}
    options = ("--parameters", json.dumps(parameters), "--variables", json.dumps(variables))
    return [sys.executable, "-m", "bench.deployed", f"train-agent/{pipeline}", *options]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("deployment")
    parser.add_argument("--parameters", type=json.loads, default={}, help="of the flow, as JSON")
    parser.add_argument("--variables", type=json.loads, default={}, help="of the environment, as JSON")
    arguments = parser.parse_args()
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(arguments.deployment)
        run = client.create_flow_run_from_deployment(
            deployment.id, parameters=arguments.parameters, job_variables={"env": arguments.variables}
        )
        print(f"{arguments.deployment}: flow run {run.id}", flush=True)
        state = wait_for_end(client, run.id)
    print(f"{state.name}: {state.message}")
    sys.exit(0 if state.is_completed() else 1)


def wait_for_end(client: SyncPrefectClient, flow_run_id: UUID) -> State[Any]:
    """The state in which the flow run ends; prints each state that it has before."""
    shown = None
    while True:
        try:
            state = client.read_flow_run(flow_run_id).state
        except (httpx.HTTPError, PrefectHTTPStatusError):  # the server was killed, and will be there again
            state = None
        if state is not None:
            if state.is_final():
                return state
            if state.name != shown:
                shown = state.name
                print(shown, flush=True)
        time.sleep(POLL_S)


if __name__ == "__main__":
    main()
