"""This process's connection to Ray: the cluster that there is, or a local one of its own.

A local one has a control service (GCS) whose death Ray's own client answers by ending this process. Its
process is therefore watched here: `result_of` raises `RayDied` within a second, and the caller starts anew.
"""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import WingspanError
from tasks.cluster.address import check_ray_address, cluster_address
from tasks.cluster.network import loopback_and_token, read_token
from tasks.cluster.placement import QUEUE_CPUS, WORKER_CPUS
from tasks.config.pipelines import Pipeline
from tasks.errors import RayDied

if TYPE_CHECKING:
    import psutil

ATTEMPTS = 5
"""On a busy machine Ray may give up its own start."""
LOCAL_CPUS = 16
"""Logical, at least: enough for verl's bookings and environments, however few cores there are."""
POLL_S = 1.0
"""Between two looks at the control service."""
_NEVER_S = "1000000"

_gcs: "psutil.Process | None" = None
"""The control service of the local cluster that this process has started last."""


def connect_ray(pipeline: Pipeline) -> bool:
    """Connect this process to Ray where it is not yet; True if that started or joined a session.

    A local Ray has as many CPUs as verl books for `backend.workers`, and on a CPU as many GPUs: they are
    logical. Raises `ConfigError` if the cluster of `RAY_ADDRESS` cannot be joined.
    """
    import ray

    if ray.is_initialized():
        return False
    # Else Ray hides all GPUs from the trainer, which claims none itself.
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    address = cluster_address()
    if address:
        check_ray_address()  # Ray's own attempt would not end
        read_token()
        ray.init(address=address, log_to_driver=False)
        return True
    workers = pipeline.backend.workers
    cpus = max(LOCAL_CPUS, os.cpu_count() or 1, workers * WORKER_CPUS + QUEUE_CPUS)
    logical = {"num_gpus": workers} if pipeline.backend.device == "cpu" else {}
    start_local_ray(num_cpus=cpus, **logical)
    return True


def start_local_ray(**options: Any) -> None:
    """A Ray cluster of this machine's own, with `ray.init`'s `options`; ends with this process.

    Raises `WingspanError` if it does not come up.
    """
    import psutil
    import ray

    global _gcs
    # After this long without the control service Ray's client ends this process; `result_of` is earlier.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _NEVER_S)
    # Ray would start idle workers ahead; ours have environments of their own and cannot use them.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    for attempt in range(1, ATTEMPTS + 1):
        earlier_processes = psutil.Process().children(recursive=True)
        try:
            with loopback_and_token(), _signals_kept():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,  # its notes on a start would stand in the progress display
                    **options,
                )
            _gcs = next(child for child in psutil.Process().children() if child.name() == "gcs_server")
            _print_no_dumps()
            return
        except Exception as error:  # Ray says no more than this when 30 s, a constant, have passed
            if "timed out" not in str(error) or attempt == ATTEMPTS:
                raise WingspanError(f"Ray did not start: {' '.join(str(error).split())[:200]}") from error
            for left in psutil.Process().children(recursive=True):  # Ray forgets them
                if left not in earlier_processes:
                    with suppress(psutil.NoSuchProcess):
                        left.kill()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself when it starts, and would print a stack: give it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was not set from Python cannot be set again
                signal.signal(number, handler)


def result_of(answer: Any) -> Any:
    """`ray.get`. Raises what that raises, and `RayDied` when the local cluster's control service is gone."""
    import ray

    while not ray.wait([answer], timeout=POLL_S)[0]:
        check_ray()
    return ray.get(answer)


def check_ray() -> None:
    """Raise `RayDied` if this process has started a local cluster whose control service is gone."""
    import psutil

    if _gcs is not None and (not _gcs.is_running() or _gcs.status() == psutil.STATUS_ZOMBIE):
        raise RayDied("Ray's control service (gcs_server) died; run the same command again")


def keep_logs(folder: Path) -> None:
    """Copy the logs of this process's session to `folder`: its own are removed when the command ends."""
    import ray

    with suppress(Exception):  # whatever is missing or is being written: what can be copied is
        session = Path(ray._private.worker._global_node.get_logs_dir_path())
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(session, folder, ignore_dangling_symlinks=True)


def _print_no_dumps() -> None:
    """Keep off the screen what Ray prints when one of its processes dies: hundreds of lines of its state.

    They are in its logs. It has no setting for it: `log_to_driver` is about the output of workers.
    """
    import ray

    ray._private.worker.print_to_stdstream = lambda *_, **__: None


def end_local_ray() -> None:
    """Leave the cluster, and end it if it is a local one."""
    import ray

    global _gcs
    ray.shutdown()
    _gcs = None
