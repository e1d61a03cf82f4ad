"""Cancellation of a deployed flow run, from Prefect's page or by its worker: it ends as a command does.

A process worker, or `serve`, announces a cancellation to the run's process over a socket, then sends SIGTERM,
and 30 s later SIGKILL. Prefect's client acknowledges the announcement only while Prefect's own handler of
SIGTERM is installed; without it, the worker would report a crash before the cancellation. So that handler
stays; it raises an exception in the main thread, as the handler of a command does.
"""

import json
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from logging import Logger, LoggerAdapter

from prefect.context import FlowRunContext
from prefect.logging import get_run_logger
from prefect.logging.handlers import APILogHandler
from prefect.runtime import deployment, flow_run

from envs.redaction import redact
from flows.endings.stopping import Stoppable, on_stop
from flows.orchestrator.runs import check_server


@contextmanager
def end_when_cancelled(advice: str) -> Iterator[None]:
    """When the flow run of a deployment is stopped, end this process within seconds.

    Its log then ends with `advice` and the command that runs it again; the worker sets the state. Any other
    flow run is left to the signal handlers of its caller.
    """
    context = FlowRunContext.get()
    run = None if context is None else context.flow_run
    is_main = threading.current_thread() is threading.main_thread()
    if run is None or run.deployment_id is None or not is_main:
        yield
        return
    check_server()  # it may be restarting, and is asked for the deployment's name
    name = f"{flow_run.flow_name}/{deployment.name}"
    command = ["prefect", "deployment", "run", name, "--params", json.dumps(run.parameters)]
    line = redact(f"stopped; {advice}: {shlex.join(command)}")
    with Stoppable(None, handled=[signal.SIGINT]):
        on_stop(partial(_log, get_run_logger(), line))
        yield


def _log(logger: Logger | LoggerAdapter[Logger], line: str) -> None:
    """Log on the console and for Prefect's page."""
    logger.warning(line)
    APILogHandler().flush()
