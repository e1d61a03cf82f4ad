"""Connects this process to Ray: to the existing cluster, or to a local one that it starts.

If the control service (GCS) of a local cluster dies, Ray's client ends this process. The service is therefore
watched here: `result_of` raises `RayDied` within a second, and the caller starts another cluster.
"""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.cores import count_cores
from envs.errors import WingspanError, to_line
from envs.requirements.plugins import replace_attribute
from tasks.cluster import setup_worker
from tasks.cluster.address import check_ray_address, cluster_address
from tasks.cluster.network import loopback_and_token, read_token
from tasks.cluster.placement import QUEUE_CPUS, WORKER_CPUS
from tasks.config.pipelines import Pipeline
from tasks.errors import RayDied

if TYPE_CHECKING:
    from ray import ObjectRef

ATTEMPTS = 5
"""Ray may give up its start on a busy machine."""
LOCAL_CPUS = 16
"""The fewest logical CPUs: enough for verl's reservations and environments, whatever the number of cores."""
LOGS = "ray-logs"
"""Folder that `keep_logs` copies to, by convention."""
POLL_S = 1.0
"""Time between two checks of the control service."""
_NEVER_S = "1000000"


def connect_ray(pipeline: Pipeline) -> bool:
    """Connect this process to Ray unless it is connected; returns whether it started or joined a session.

    A local Ray has as many logical CPUs as verl reserves for `backend.workers`, and on a CPU as many logical
    GPUs. Raises `ConfigError` if the cluster of `RAY_ADDRESS` cannot be joined.
    """
    import ray

    if ray.is_initialized():
        return False
    # Else Ray hides all GPUs from the trainer, which reserves none itself.
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    address = cluster_address()
    if address:
        check_ray_address()  # Ray's own attempt would not end
        read_token()
        with _signals_kept():
            ray.init(address=address, log_to_driver=False)
        return True
    workers = pipeline.backend.workers
    cpus = max(LOCAL_CPUS, count_cores(), workers * WORKER_CPUS + QUEUE_CPUS)
    logical = {"num_gpus": workers} if pipeline.backend.device == "cpu" else {}
    start_local_ray(num_cpus=cpus, **logical)
    return True


def start_local_ray(**options: object) -> None:
    """Start a Ray cluster on this machine, with the `options` of `ray.init`; it ends with this process.

    Raises `WingspanError` if it does not come up.
    """
    import psutil
    import ray

    # After this long without the control service Ray's client ends this process; `result_of` is earlier.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _NEVER_S)
    # Ray would start idle workers ahead; ours have other environment variables and cannot use them.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # Its autoscaler and its log monitor would take a CPU-second each. This cluster has a fixed size, and its
    # logs are read when it has ended. `ray start` has options for both, `ray.init` has none; the program that
    # sets up a worker has none in either.
    module = ray._private.parameter
    parameters = partial(
        module.RayParams, no_monitor=True, include_log_monitor=False, setup_worker_path=setup_worker.__file__
    )
    for attempt in range(1, ATTEMPTS + 1):
        earlier_processes = psutil.Process().children(recursive=True)
        try:
            with loopback_and_token(), _signals_kept(), replace_attribute(module, "RayParams", parameters):
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,  # its messages at the start would break the progress display
                    **options,
                )
            _print_no_dumps()
            return
        except Exception as error:  # Ray says no more when its fixed limit of 30 s has passed
            if "timed out" not in str(error) or attempt == ATTEMPTS:
                raise WingspanError(f"Ray did not start: {to_line(error, limit=200)}") from error
            for left in psutil.Process().children(recursive=True):  # Ray forgets them
                if left not in earlier_processes:
                    with suppress(psutil.NoSuchProcess):
                        left.kill()


def disconnect_ray() -> None:
    """Leave the cluster; ends it if this process has started it."""
    import ray

    with _signals_kept():
        ray.shutdown()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the signal handlers: Ray replaces that of SIGTERM when it starts, and removes it when it ends.

    The removal is below Python: `signal.getsignal` still returns the handler that no signal reaches.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # a handler that was not set from Python cannot be set again
                signal.signal(number, handler)


def result_of(answer: "ObjectRef", *, while_waiting: Callable[[], object] = lambda: None) -> Any:
    """`ray.get`; calls `while_waiting` every `POLL_S`.

    Also raises `RayDied` when the local cluster's control service is gone.
    """
    import ray

    try:
        while not ray.wait([answer], timeout=POLL_S)[0]:
            check_ray()
            while_waiting()
        return ray.get(answer)
    except SystemError as error:
        # How Cython reports that a signal handler has raised in a call of Ray that succeeded.
        if error.__cause__ is not None and not isinstance(error.__cause__, Exception):
            raise error.__cause__ from None
        raise


def check_ray() -> None:
    """Raise `RayDied` if this process has started the cluster, and the cluster's control service is gone."""
    import ray

    node = ray._private.worker._global_node
    services = node.all_processes.get("gcs_server", []) if node else []
    if any(service.process.poll() is not None for service in services):
        raise RayDied("Ray's control service (gcs_server) died; run the same command again")


def keep_logs(folder: Path) -> bool:
    """Copy the logs of this process's session to `folder`: its own are removed when the command ends.

    Returns whether there are any: those of a cluster may be on another machine.
    """
    import ray

    with suppress(Exception):  # some files are missing or being written: copy the others
        session = Path(ray._private.worker._global_node.get_logs_dir_path())
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(session, folder, ignore_dangling_symlinks=True)
    return folder.is_dir()


def _print_no_dumps() -> None:
    """Suppress the hundreds of lines of state that Ray prints when one of its processes dies.

    Its logs hold them too. Ray has no setting for this: `log_to_driver` is for the output of workers.
    """
    import ray

    ray._private.worker.print_to_stdstream = lambda *_, **__: None
