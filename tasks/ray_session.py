"""This process's connection to Ray: the cluster that there is, or a local one of its own."""

import logging
import os
from contextlib import suppress
from typing import Any

from envs.errors import ConfigError, WingspanError
from tasks.ray_network import loopback_and_token
from tasks.settings import Pipeline

ATTEMPTS = 5
"""On a busy machine Ray may give up its own start."""


def connect_ray(pipeline: Pipeline) -> bool:
    """Connect this process to Ray where it is not yet; True if that started or joined a session.

    Raises `ConfigError` if the cluster has fewer GPUs than `backend.workers`. On a CPU they are
    logical: verl counts its workers by them.
    """
    import ray

    workers = pipeline.backend.workers
    connected = not ray.is_initialized()
    if connected:
        # Else Ray hides all GPUs from the trainer, which claims none itself.
        os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
        address = os.environ.get("RAY_ADDRESS")
        if address:
            ray.init(address=address, log_to_driver=False)
        else:
            logical = {"num_gpus": workers, "num_cpus": 16} if pipeline.backend.device == "cpu" else {}
            start_local_ray(**logical)
    available = int(ray.cluster_resources().get("GPU", 0))
    if available < workers:
        if connected:
            ray.shutdown()
        raise ConfigError(
            f"backend.workers is {workers}, but the Ray cluster has {available} GPUs; lower it, or start Ray "
            f"with --num-gpus={workers} (on a CPU they are logical)"
        )
    return connected


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
