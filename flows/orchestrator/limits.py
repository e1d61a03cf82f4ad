"""What runs on one Prefect server share: GPUs, and environments whose number is limited outside of the runs.

Prefect's global concurrency limits say how many there are; a flow run holds its slots from before its first
stage until its end. They are leases, renewed by a thread: those of a run that was killed are free again after
`LEASE_S`. A limit that the server does not have limits nothing. Runs on a temporary server hold none.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound

from envs.errors import ConfigError
from flows.orchestrator.runs import has_lasting_server, log_in_run
from tasks.config.environments import outside_envs
from tasks.config.pipelines import Pipeline
from tasks.reporting.pages import format_count

if TYPE_CHECKING:
    from prefect.client.schemas.responses import GlobalConcurrencyLimitResponse

GPUS = "wingspan-gpus"
"""A slot is a GPU."""
INSTANCES = "wingspan-envs-{}"
"""The limit of an environment's instances (`instances_limit`); a slot is a live instance."""
LEASE_S = 120.0
"""Prefect's server asks for 60 s at least, and looks for expired leases every few seconds."""


def needed_slots(pipeline: Pipeline, *, has_trainer: bool = True) -> dict[str, int]:
    """The slots that a run of `pipeline` needs, by limit. `has_trainer`: whether it trains."""
    slots = {}
    if has_trainer and pipeline.backend.device == "cuda":
        slots[GPUS] = pipeline.backend.workers
    for name in outside_envs(pipeline):
        slots[instances_limit(name)] = pipeline.rollout.max_live_envs
    return slots


def instances_limit(env: str) -> str:
    """The name of the limit of the environment `env`, whose name may be an address: with a dash for what
    Prefect's names must not have (`/%&<>`), and for what ends the path of the request for one (`?#`)."""
    return INSTANCES.format(re.sub(r"[/%&<>?#\s]+", "-", env))


def missing_limits(names: Iterable[str]) -> list[str]:
    """A line for each limit of `names` that the server does not have, with the command that creates it."""
    return [_describe_missing(name) for name in names if _find(name) is None]


@contextmanager
def hold_slots(slots: Mapping[str, int]) -> Iterator[None]:
    """Wait within a flow run until `slots` are free, by limit, and hold them.

    Raises `ConfigError` for more slots than a limit has.
    """
    with ExitStack() as stack:
        # In one order in all runs, so that no two wait for each other.
        for name in sorted(slots) if has_lasting_server() else ():
            limit = _find(name)
            if limit is None:
                log_in_run(_describe_missing(name), logging.WARNING)
            elif limit.active:
                stack.enter_context(_hold(limit, slots[name]))
        yield


def _find(name: str) -> "GlobalConcurrencyLimitResponse | None":
    try:
        with get_client(sync_client=True) as client:
            return client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        return None


def _describe_missing(name: str) -> str:
    create = f"prefect global-concurrency-limit create {name} --limit N"
    return f"there is no limit {name}: runs do not wait for each other; {create}"


@contextmanager
def _hold(limit: "GlobalConcurrencyLimitResponse", count: int) -> Iterator[None]:
    name, slots_needed = limit.name, format_count(count, "slot")
    if limit.limit < count:
        raise ConfigError(
            f"the run needs {slots_needed} of {name}, which has {limit.limit}; lower what the pipeline asks "
            f"for, or prefect global-concurrency-limit update {name} --limit {count}"
        )
    log_in_run(f"waiting for {count} of {limit.limit} slots of {name}")
    slots = concurrency(name, count, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False)
    slots.__enter__()
    log_in_run(f"holding {slots_needed} of {name}")
    try:
        yield
    finally:
        with suppress(Exception):  # if the server has died, the run goes on, and the lease expires
            slots.__exit__(None, None, None)
