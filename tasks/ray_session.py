"""This process's connection to Ray: the cluster that there is, or a local one of its own."""

import logging
import os
from contextlib import suppress
from typing import Any

from envs.errors import WingspanError
from tasks.ray_address import check_ray_address, cluster_address
from tasks.ray_network import loopback_and_token, read_token
from tasks.ray_placement import QUEUE_CPUS, WORKER_CPUS
from tasks.settings import Pipeline

ATTEMPTS = 5
"""On a busy machine Ray may give up its own start."""
LOCAL_CPUS = 16
"""Logical, at least: enough for verl's bookings and environments, however few cores there are."""


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

    # Ray would start idle workers ahead; ours have environments of their own and cannot use them.
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    for attempt in range(1, ATTEMPTS + 1):
        others = psutil.Process().children(recursive=True)
        try:
            with loopback_and_token():
                ray.init(
                    address="local",
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,  # its notes on a start would stand in the progress display
                    **options,
                )
            return
        except Exception as error:  # Ray says no more than this when 30 s, a constant, have passed
            if "timed out" not in str(error) or attempt == ATTEMPTS:
                raise WingspanError(f"Ray did not start: {' '.join(str(error).split())[:200]}") from error
            for left in psutil.Process().children(recursive=True):  # Ray forgets them
                if left not in others:
                    with suppress(psutil.NoSuchProcess):
                        left.kill()
