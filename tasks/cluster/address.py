"""Checks the Ray cluster that `RAY_ADDRESS` names: whether it answers, whether it asks for a token, and
whether its nodes have the environment variables that a run needs there.

Ray tries for minutes to reach a cluster that does not exist, and writes to the terminal meanwhile, so the
attempt is made in a process that can be ended.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from envs.errors import ConfigError, to_line

CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
"""The time for a process that imports Ray and connects: 2 s on an idle machine."""
NODES_TIMEOUT_S = 60.0
"""The time in which every node must say which variables it has; a new Python process has to start there: 1 s
on an idle machine."""

_PROBE = """
import json, sys, traceback
def find_unset(variables):
    import os
    return [variable for variable in variables if not os.environ.get(variable)]
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    answer = {"unset": {}}
    if variables := sys.argv[2:]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
        ask = ray.remote(num_cpus=0)(find_unset)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
        lists = ray.get([ask.options(scheduling_strategy=place).remote(variables) for place in places])
        answer["unset"] = {node["NodeManagerAddress"]: unset for node, unset in zip(nodes, lists)}
except BaseException as error:
    refused = "AuthenticationError" in traceback.format_exc()  # Ray passes it on as text
    while error.__cause__ is not None:
        error = error.__cause__
    answer = {"refused": refused, "text": str(error).partition("Last connection error")[0]}
print("\\n" + json.dumps(answer), flush=True)
"""
_FEW_RETRIES = {"RAY_NUM_REDIS_GET_RETRIES": "2"}
"""Retries of the first connection, one per second; Ray's default is 20."""
_REMEDY = "start the cluster, correct RAY_ADDRESS, or unset it for a Ray on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """An attempt to join the cluster."""

    failure: str | None = None
    """Ray's message, in one line; None if this machine can join."""
    is_refused: bool = False
    """The cluster exists but asks for another token."""
    unset: Mapping[str, list[str]] = field(default_factory=dict)
    """The variables that are not set on a node, by the address of the node."""


def cluster_address() -> str | None:
    """`RAY_ADDRESS`; None if a run starts its own Ray."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else address


def check_ray_address(variables: Mapping[str, str] = {}) -> None:
    """Raise `ConfigError` if `RAY_ADDRESS` is set and this process cannot join that cluster, or a node of it
    lacks one of `variables`: environment variables, each with the setting that names it.

    A run does not send them there: Ray writes what it is given for a process into its logs.
    """
    address = cluster_address()
    if address is None:
        return
    setting = f"RAY_ADDRESS={address}"
    _check_port(address, setting=setting)
    attempt = _try_to_join(address, {}, variables)
    if attempt.is_refused:
        raise ConfigError(
            f"{setting}: the cluster refuses this process's token; set RAY_AUTH_MODE=token, and put the "
            "cluster's token into ~/.ray/auth_token or the file that RAY_AUTH_TOKEN_PATH names"
        )
    if attempt.failure is not None:
        raise ConfigError(f"{setting}: {attempt.failure}; {_REMEDY}")
    for node, unset in attempt.unset.items():
        for variable in unset:
            raise ConfigError(
                f"{variables[variable]}: the environment variable {variable} is not set on node {node} of "
                f"{setting}, where training reads it; export it there before `ray start`"
            )


def asks_for_token() -> bool:
    """Whether the cluster of `RAY_ADDRESS` rejects clients without a token."""
    return _try_to_join(os.environ["RAY_ADDRESS"].strip(), {"RAY_AUTH_MODE": "disabled"}).is_refused


def _check_port(address: str, *, setting: str) -> None:
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise ConfigError(f"{setting} is not HOST:PORT of a Ray cluster's head; {_REMEDY}")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S):
            pass
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{setting}: no Ray cluster answers ({error}); {_REMEDY}") from None


def _try_to_join(address: str, environment: dict[str, str], variables: Collection[str] = ()) -> _Attempt:
    """Connect to the cluster in a separate process, with `environment` added to this one's variables, and ask
    its nodes for those of `variables` that they lack."""
    limit_s = PROBE_TIMEOUT_S + (NODES_TIMEOUT_S if variables else 0.0)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address, *variables],
            env=os.environ | _FEW_RETRIES | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Ray's own log
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return _Attempt(failure=f"no Ray cluster answers within {limit_s:.0f} s")
    try:
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except json.JSONDecodeError:  # Ray ended the process
        return _Attempt(failure="no Ray cluster answers")
    if "unset" in answer:
        return _Attempt(unset=answer["unset"])
    return _Attempt(failure=to_line(answer["text"], limit=200), is_refused=answer["refused"])
