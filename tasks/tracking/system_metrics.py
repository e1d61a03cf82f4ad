"""What the machine is doing during a run, for MLflow's page "System metrics": processors, memory, disk,
network and GPUs, by MLflow's own monitors.

MLflow's thread that writes them ends for good at its first failure and asks the server for the run with every
sample; here the thread of the heartbeat takes samples, and the tracker's writer writes their means.
"""

import threading
import time
from typing import TYPE_CHECKING

from tasks.tracking.batches import log_metrics

if TYPE_CHECKING:
    from mlflow import MlflowClient

INTERVAL_S = 10.0
"""The time between two samples."""


class SystemMonitor:
    """Samples of this machine since the last `take`; used by several threads."""

    def __init__(self, run_id: str, *, began_ms: int) -> None:
        """`began_ms`: when the run began, since the epoch; steps of its metrics are seconds from there."""
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(run_id)
        self._began_s = began_ms / 1000
        self._lock = threading.Lock()
        self.take()  # the use of processors is counted from the first sample

    def sample(self) -> None:
        """Take a sample."""
        with self._lock:
            self._monitor.collect_metrics()

    def take(self) -> dict[str, float]:
        """Take a last sample; returns the means of all since the last call, by MLflow's names."""
        with self._lock:
            self._monitor.collect_metrics()
            metrics = self._monitor.aggregate_metrics()
            for monitor in self._monitor.monitors:
                monitor.clear_metrics()
        return {f"system/{name}": float(value) for name, value in metrics.items()}

    def write(self, client: "MlflowClient", run_id: str) -> None:
        """Record what `take` returns."""
        from mlflow.entities import Metric

        now_s = time.time()
        step, at_ms = round(now_s - self._began_s), round(1000 * now_s)
        series = [Metric(key, value, timestamp=at_ms, step=step) for key, value in self.take().items()]
        log_metrics(client, run_id, series)
