"""Checks the Ray cluster that `RAY_ADDRESS` names: whether it answers, and whether it asks for a token.

Ray tries for minutes to reach a cluster that does not exist, and writes to the terminal meanwhile, so the
attempt is made in a process that can be ended.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from envs.errors import ConfigError, to_line

CONNECT_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
"""For a process that imports Ray and connects: 2 s on an idle machine."""

_PROBE = """
import json, sys, traceback
try:
    import ray
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
    answer = {}
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


@dataclass(frozen=True, slots=True)
class _Failure:
    text: str
    """Ray's message, in one line."""
    refused: bool = False
    """The cluster exists but asks for another token."""


def cluster_address() -> str | None:
    """`RAY_ADDRESS`; None if a run starts its own Ray."""
    address = os.environ.get("RAY_ADDRESS", "").strip()
    return None if address in ("", "local") else address


def check_ray_address() -> None:
    """Raise `ConfigError` if `RAY_ADDRESS` is set and this process cannot join that cluster."""
    address = cluster_address()
    if address is None:
        return
    setting = f"RAY_ADDRESS={address}"
    _check_port(address, setting=setting)
    failure = _try_to_join(address, {})
    if failure is None:
        return
    if failure.refused:
        raise ConfigError(
            f"{setting}: the cluster refuses this process's token; set RAY_AUTH_MODE=token, and put the "
            "cluster's token into ~/.ray/auth_token or the file that RAY_AUTH_TOKEN_PATH names"
        )
    raise ConfigError(f"{setting}: {failure.text}; {_REMEDY}")


def asks_for_token() -> bool:
    """Whether the cluster of `RAY_ADDRESS` rejects clients without a token."""
    failure = _try_to_join(os.environ["RAY_ADDRESS"].strip(), {"RAY_AUTH_MODE": "disabled"})
    return failure is not None and failure.refused


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


def _try_to_join(address: str, environment: dict[str, str]) -> _Failure | None:
    """Connect to the cluster in a separate process, with `environment` added to this one's variables."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            env=os.environ | _FEW_RETRIES | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Ray's own log
            text=True,
            timeout=PROBE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return _Failure(f"no Ray cluster answers within {PROBE_TIMEOUT_S:.0f} s")
    try:
        answer = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    except json.JSONDecodeError:  # Ray ended the process
        return _Failure("no Ray cluster answers")
    if not answer:
        return None
    return _Failure(to_line(answer["text"], limit=200), refused=answer["refused"])
