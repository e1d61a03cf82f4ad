"""The record of a run in MLflow; the only module that imports it.

One parent run per workspace and set of parameters, one child per round. All writing happens on one
background thread, in batches, so that nothing waits for MLflow. Training is recorded from its own
files: whatever `train/metrics.jsonl` has and MLflow has not is written, so a run that was killed is
completed, and no step is ever written twice. A run that is open has a heartbeat (`tasks/recorded_runs.py`).
"""

import hashlib
import json
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from envs.errors import ConfigError, WingspanError, described
from envs.files import one_at_a_time, write_atomically
from tasks import recorded_runs
from tasks.settings import Pipeline
from tasks.trajectories import read_trajectories

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

DEFAULT_URI = "sqlite:///mlflow.db"
EXPERIMENT = "wingspan"
RECORD = "mlflow.json"
"""In the workspace: which MLflow run is its own."""
MAX_BATCH = 1000
"""Metrics per call, MLflow's own limit."""
TRACES = 10
"""Trajectories of the final evaluation that are kept as traces."""
MAX_TOLD = 300
"""Characters of a server's complaint."""

_log = logging.getLogger(__name__)


def tracking_uri() -> str:
    """Where MLflow records: `MLFLOW_TRACKING_URI`, or a SQLite file in the project."""
    return os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def check_tracking() -> None:
    """Raise `ConfigError` if a tracking server is configured that nobody answers for."""
    uri = urlsplit(tracking_uri())
    if uri.scheme in ("http", "https") and uri.hostname:
        port = uri.port or (443 if uri.scheme == "https" else 80)
        try:
            socket.create_connection((uri.hostname, port), timeout=5).close()
        except OSError as error:
            raise ConfigError(
                f"MLFLOW_TRACKING_URI={tracking_uri()} does not answer ({error}); start that server, or "
                f"unset the variable to record in {DEFAULT_URI.removeprefix('sqlite:///')}"
            ) from None


class Tracker:
    """The MLflow run of one workspace, open for as long as the context.

    Methods return at once. What fails is logged as a warning and made good by a later call, `finish`
    at the latest; leaving raises `WingspanError` if the record stayed incomplete.
    """

    def __init__(self, name: str, *, pipeline: Pipeline, workspace: Path) -> None:
        self._name = name
        self._pipeline = pipeline
        self._workspace = workspace
        self._tags = {recorded_runs.WORKSPACE: str(workspace.resolve())}
        self._run: tuple[MlflowClient, str] | None = None
        self._failure: Exception | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlflow")
        self._later(self._write_tags)  # connecting takes seconds: begin at once
        self._ending = threading.Lock()
        self._left = threading.Event()
        threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True).start()

    def tag(self, facts: Mapping[str, str]) -> None:
        """Set tags of the parent run."""
        self._tags = {**self._tags, **facts}
        self._later(self._write_tags)

    def sync_training(self) -> None:
        """Record the rounds that training has finished since the last call, with their steps."""
        self._later(self._write_training)

    def finish(self) -> None:
        """Record evaluation, report and traces, and register the policy; the run is finished."""
        self._later(self._write_all)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait until all is written; a run that did not come to its end is marked as failed, or as killed."""
        if error is not None and not isinstance(error, Exception):
            with suppress(Exception):  # who stops a run does not wait for its record; `mark_gone` will
                self.kill()
            return
        self._left.set()
        if error is not None:
            self._later(lambda client, run_id: recorded_runs.end(client, run_id, status="FAILED"))
        self._thread.shutdown(wait=True)
        if self._failure is not None and error is None:
            raise WingspanError(
                f"the MLflow record at {tracking_uri()} is incomplete "
                f"({described(self._failure)[:MAX_TOLD]}); all results are in {self._workspace}: "
                "mend the cause and run the same command to complete it"
            ) from self._failure

    def kill(self) -> None:
        """Mark the run as killed, unless it has ended; what was not written yet, the next start writes."""
        self._left.set()
        with self._ending:
            self._thread.shutdown(wait=True, cancel_futures=True)
            if self._run is not None:
                recorded_runs.end(*self._run, status="KILLED")

    def _keep_beating(self) -> None:
        while not self._left.wait(recorded_runs.INTERVAL_S):
            with suppress(RuntimeError):  # the thread that writes has ended meanwhile
                self._later(recorded_runs.beat)

    def _later(self, write: Callable[["MlflowClient", str], None]) -> None:
        def job() -> None:
            try:
                if self._run is None:
                    self._run = self._open()
                write(*self._run)
            except Exception as error:  # a record that fails must not stop what it records
                self._failure = error
                _log.warning("MLflow: %s", described(error)[:MAX_TOLD])

        self._thread.submit(job)

    def _open(self) -> tuple["MlflowClient", str]:
        """Connect, then find or start the run."""
        client = connect()
        run_id = unfinished_run(self._workspace, pipeline=self._pipeline)
        if run_id is None or not _exists(client, run_id):
            run_id = self._start(client)
        client.update_run(run_id, status="RUNNING")
        recorded_runs.beat(client, run_id)
        recorded_runs.mark_gone(client, experiment_id=experiment_of(client))
        return client, run_id

    def _start(self, client: "MlflowClient") -> str:
        from mlflow.entities import Param

        experiment_id = experiment_of(client)
        run = client.create_run(experiment_id, run_name=self._workspace.name, tags={"pipeline": self._name})
        run_id: str = run.info.run_id
        params = [
            Param(_named(key), str(value))
            for key, value in flat(self._pipeline.model_dump(mode="json"), sep=".")
        ]
        for start in range(0, len(params), 100):
            client.log_batch(run_id, params=params[start : start + 100])
        _remember(self._workspace, pipeline=self._pipeline, run_id=run_id, finished=False)
        return run_id

    def _write_tags(self, client: "MlflowClient", run_id: str) -> None:
        from mlflow.entities import RunTag

        client.log_batch(run_id, tags=[RunTag(key, value) for key, value in self._tags.items()])

    def _write_training(self, client: "MlflowClient", run_id: str) -> None:
        parent = client.get_run(run_id)
        steps = _read_steps(self._workspace / "train" / "metrics.jsonl")
        for prompt in sorted((self._workspace / "train").glob("*.md")):
            client.log_artifact(run_id, str(prompt))
        children = _children(client, parent)
        for file in sorted((self._workspace / "train" / "rounds").glob("*.json")):
            ended = json.loads(file.read_text())
            number, last = ended["index"] + 1, ended["last_step"]
            child = children.get(number) or _begin_child(client, parent, number=number)
            if child.info.status == "FINISHED":
                continue
            at_ms = file.stat().st_mtime_ns // 1_000_000
            series = _metrics(ended["evaluation"], step=last, at_ms=at_ms, prefix="quick_evaluation/")
            for step in range(ended["first_step"], last + 1):
                series += _metrics(steps.get(step, {}), step=step, at_ms=at_ms)
            # Until the child is finished, all of the round is written again, to both; with the same
            # timestamp it makes the same rows, which MLflow keeps once.
            for target in (child.info.run_id, run_id):
                _log_metrics(client, target, series)
            client.set_terminated(child.info.run_id, status="FINISHED")

    def _write_all(self, client: "MlflowClient", run_id: str) -> None:
        self._write_tags(client, run_id)
        self._write_training(client, run_id)
        workspace = self._workspace
        evaluation = json.loads((workspace / "evaluation.json").read_text())
        last = self._pipeline.train.steps
        timing = json.loads((workspace / "timing.json").read_text())
        at_ms = time.time_ns() // 1_000_000
        _log_metrics(client, run_id, _metrics(evaluation, step=last, at_ms=at_ms, prefix="evaluation/"))
        _log_metrics(client, run_id, _metrics(timing, step=last, at_ms=at_ms, prefix="seconds/"))
        client.log_artifact(run_id, str(workspace / "evaluation.json"))
        client.log_artifacts(run_id, str(workspace / "report"), "report")
        _write_traces(client, run_id, workspace / "evaluation_trajectories.jsonl")
        _register(client, run_id, name=self._name, policy=workspace / "policy")
        client.set_terminated(run_id, status="FINISHED")
        _remember(workspace, pipeline=self._pipeline, run_id=run_id, finished=True)
        self._failure = None  # whatever was missing is there now


def connect() -> "MlflowClient":
    """A client of where the record is kept; the first time, MLflow creates its database."""
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(tracking_uri())
    with _alone():
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    return client


def _alone() -> AbstractContextManager[None]:
    """Two first runs at once would both create the tables of a database file."""
    file = tracking_uri().removeprefix("sqlite:///")
    return nullcontext() if file == tracking_uri() else one_at_a_time(Path(f"{file}.lock"))


def unfinished_run(workspace: Path, *, pipeline: Pipeline) -> str | None:
    """The MLflow run that this workspace began with these parameters and has not finished."""
    record = _recorded(workspace)
    ours = record.get("uri") == tracking_uri() and record.get("identity") == _identity(pipeline)
    return str(record["run_id"]) if ours and not record["finished"] else None


def is_recorded(workspace: Path, *, pipeline: Pipeline) -> bool:
    """Whether MLflow has a finished run of this workspace with these parameters."""
    record = _recorded(workspace)
    return record.get("identity") == _identity(pipeline) and bool(record.get("finished"))


def flat(values: Mapping[str, Any], *, sep: str, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Leaves of nested mappings: `{"a": {"b": 1}}` → `("a.b", 1)`."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, sep=sep, prefix=f"{prefix}{key}{sep}")
        else:
            yield f"{prefix}{key}", value


def _read_steps(file: Path) -> dict[int, dict[str, Any]]:
    """`train/metrics.jsonl` by global step."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(values["step"]): values for values in map(json.loads, lines)}


def _recorded(workspace: Path) -> dict[str, Any]:
    file = workspace / RECORD
    record: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return record


def _remember(workspace: Path, *, pipeline: Pipeline, run_id: str, finished: bool) -> None:
    record = {
        "uri": tracking_uri(),
        "run_id": run_id,
        "identity": _identity(pipeline),
        "finished": finished,
    }
    write_atomically(workspace / RECORD, json.dumps(record, indent=2) + "\n")


def _identity(pipeline: Pipeline) -> str:
    return hashlib.md5(pipeline.model_dump_json().encode(), usedforsecurity=False).hexdigest()


def experiment_of(client: "MlflowClient") -> str:
    """The id of the experiment that all runs are in; it is made where it is not there."""
    found = client.get_experiment_by_name(EXPERIMENT)
    if found is not None:
        return str(found.experiment_id)
    # A tracking server says itself where artifacts go; beside a SQLite file they go to a folder.
    here = Path("mlartifacts").resolve().as_uri() if tracking_uri().startswith("sqlite") else None
    return str(client.create_experiment(EXPERIMENT, artifact_location=here))


def _exists(client: "MlflowClient", run_id: str) -> bool:
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException:
        return False


def _children(client: "MlflowClient", parent: "Run") -> dict[int, "Run"]:
    """Round number, from 1 → its run."""
    ours = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    runs = client.search_runs([parent.info.experiment_id], filter_string=ours, max_results=1000)
    return {int(run.data.tags["round"]): run for run in runs}


def _begin_child(client: "MlflowClient", parent: "Run", *, number: int) -> "Run":
    tags = {"mlflow.parentRunId": parent.info.run_id, "round": str(number)}
    return client.create_run(parent.info.experiment_id, run_name=f"round {number}", tags=tags)


def _metrics(values: Mapping[str, Any], *, step: int, at_ms: int, prefix: str = "") -> list["Metric"]:
    from mlflow.entities import Metric

    return [
        Metric(_named(f"{prefix}{key}"), float(value), timestamp=at_ms, step=step)
        for key, value in flat(values, sep="/")
        if isinstance(value, (int, float)) and not isinstance(value, bool) and key != "step"
    ]


def _named(key: str) -> str:
    """`key` as MLflow allows it: `webshop-mini:text?actions=false` has signs that it does not."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)


def _log_metrics(client: "MlflowClient", run_id: str, metrics: list["Metric"]) -> None:
    for start in range(0, len(metrics), MAX_BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + MAX_BATCH])


def _write_traces(client: "MlflowClient", run_id: str, file: Path) -> None:
    """A sample of the trained policy's sampled trajectories: one trace each, one span per turn."""
    import mlflow

    played = [
        trajectory
        for trajectory in read_trajectories(file)
        if (trajectory.metrics["policy"], trajectory.metrics["mode"]) == ("after", "sampled")
    ]
    experiment_id = client.get_run(run_id).info.experiment_id
    for trajectory in played[:: max(1, len(played) // TRACES)][:TRACES]:
        facts = {
            "item": trajectory.item.item_id,
            "stop_reason": str(trajectory.stop_reason),
            "success": str(trajectory.success),
        }
        episode = mlflow.start_span_no_context(
            trajectory.item.item_id,
            span_type="AGENT",
            inputs=dict(trajectory.item.metadata),
            metadata={"mlflow.sourceRun": run_id},
            tags=facts,
            experiment_id=experiment_id,
        )
        for number, turn in enumerate(trajectory.turns, start=1):
            span = mlflow.start_span_no_context(
                f"turn {number}", span_type="TOOL", parent_span=episode, inputs=turn.text
            )
            span.set_attributes({"action": turn.action, "reward": turn.reward})
            span.end(outputs=turn.observation)
        episode.end(outputs={**facts, "reward": trajectory.reward})


def _register(client: "MlflowClient", run_id: str, *, name: str, policy: Path) -> None:
    """Store the policy's folder and make it the newest version of the registered model `name`.

    The folder is in Hugging Face format and loads from what
    `mlflow.artifacts.download_artifacts("models:/<name>/<version>")` returns.
    """
    if client.search_model_versions(f"run_id = '{run_id}'"):
        return
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    client.log_artifacts(run_id, str(policy), "policy")
    client.create_model_version(name, source=f"runs:/{run_id}/policy", run_id=run_id)
