"""Metrics of a server for Prometheus."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector

_SECONDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)


class Metrics:
    """Counters of one server, in their own registry."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, env: str, *, live: Callable[[], int], capacity: int) -> None:
        """`live`: how many instances hold resources now."""
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge = Gauge("wingspan_sessions_live", "Instances that hold resources", ["env"], registry=registry)
        gauge.labels(env).set_function(live)
        Gauge("wingspan_sessions_limit", "The most there may be", ["env"], registry=registry).labels(env).set(
            capacity
        )
        self.opened_sessions = Counter(
            "wingspan_sessions_opened", "Sessions made so far", ["env"], registry=registry
        ).labels(env)
        self._end_count = Counter(
            "wingspan_sessions_ended", "Sessions ended so far, by cause", ["env", "cause"], registry=registry
        )
        seconds = Histogram(
            "wingspan_environment_seconds",
            "Time in the environment",
            ["env", "call"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.reset_s = seconds.labels(env, "reset")
        self.step_s = seconds.labels(env, "step")
        self._answers = Counter(
            "wingspan_answers", "Answers so far, by path and status", ["path", "status"], registry=registry
        )
        self._by_answer: dict[tuple[str, int], Counter] = {}  # looking labels up takes longer than to count
        self._env = env
        self._registry = registry

    def count_end(self, cause: str) -> None:
        """Count the end of a session."""
        self._end_count.labels(self._env, cause).inc()

    def count_answer(self, path: str, status: int) -> None:
        """Count an answer; `path` is a route's, not a request's."""
        key = (path, status)
        if key not in self._by_answer:
            self._by_answer[key] = self._answers.labels(path, status)
        self._by_answer[key].inc()

    def text(self) -> bytes:
        """All of them, in Prometheus' format."""
        return generate_latest(self._registry)
