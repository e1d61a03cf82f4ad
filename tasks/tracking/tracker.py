"""The MLflow record of a run.

One parent run per workspace and set of parameters, one child per round. All writing happens on one background
thread, in batches, so that nothing waits for MLflow. Training is recorded from its files: whatever
`train/metrics.jsonl` has and MLflow lacks is written, so a resumed run completes its record and no step is
written twice.

`connection.py` connects, `record.py` says which run records a workspace, `names.py` names the metrics,
`facts.py` describes the run, `traces.py` makes traces of episodes, `model.py` registers the policy,
`recorded_runs.py` owns the heartbeat. Only this package imports MLflow.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agents.huggingface.files import decoder
from envs.errors import WingspanError, describe
from envs.files import read_json, read_lines_as
from envs.redaction import redact
from tasks.config.parameters import parameters_of
from tasks.config.pipelines import Pipeline
from tasks.data.collapse import ALERTS, Alert
from tasks.evaluation.outcomes import EVALUATION, OUTCOMES, read_evaluation
from tasks.runs.folders import EVALUATION_TRAJECTORIES
from tasks.runs.rounds import final_step, read_rounds, round_file
from tasks.runs.steps import read_steps
from tasks.runs.usage import read_usage
from tasks.tracking import facts, recorded_runs, system_metrics
from tasks.tracking.batches import ItemFile, log_item_files, log_metrics, log_params, metrics_of
from tasks.tracking.connection import connect, experiment_of, has_run, tracking_uri
from tasks.tracking.lineage_record import LINEAGE
from tasks.tracking.logged_models import find_kept_policies, log_policies, written_ms
from tasks.tracking.model import Promotion, register
from tasks.tracking.names import metric_key, run_page, step_metric, summary_metric
from tasks.tracking.record import unfinished_run, write_record
from tasks.tracking.search import all_pages
from tasks.tracking.system_metrics import SystemMonitor
from tasks.tracking.traces import EpisodeTrace, evaluation_traces, judge_metrics, log_traces, round_traces
from tasks.verl.rewinds import RewindPoints, read_rewinds

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

MLFLOW_TAGS = {"git.commit": "mlflow.source.git.commit", "git.dirty": "mlflow.source.git.dirty"}
"""Facts of a run that MLflow shows by its own tags."""
COLLAPSE = "wingspan.collapse"
"""Tag: signs of a collapse of training, with their steps."""
MAX_TAG_CHARACTERS = 4000
MAX_ERROR_CHARACTERS = 300
"""Characters of an error in a message."""

_log = logging.getLogger(__name__)


class Tracker:
    """The MLflow run of one workspace, open for as long as the context.

    Methods return at once. A failure is logged as a warning and repaired by a later call, `finish` at the
    latest; leaving the context raises `WingspanError` if the record is still incomplete.
    """

    def __init__(self, name: str, *, pipeline: Pipeline, workspace: Path, is_candidate: bool = True) -> None:
        """`is_candidate`: whether the policy may become the champion of its registered model."""
        self._name = name
        self._is_candidate = is_candidate
        self._pipeline = pipeline
        self._workspace = workspace
        self._tags = {recorded_runs.WORKSPACE: str(workspace.resolve())}
        self._run: tuple[MlflowClient, str] | None = None
        self._system: SystemMonitor | None = None
        self._failure: Exception | None = None
        self._promotion: Promotion | None = None
        self._begins_anew = False
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mlflow")
        self._later(self._write_tags)  # connecting takes seconds: begin at once
        self._ending = threading.Lock()
        self._left = threading.Event()
        threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True).start()

    def tag(self, tags: Mapping[str, str]) -> None:
        """Set tags of the parent run."""
        self._tags = {**self._tags, **tags}
        self._later(self._write_tags)

    def sync_training(self) -> None:
        """Record signs of a collapse, and the rounds that training has finished since the last call, with
        their steps. If the recorded rounds were deleted, and training begins anew, another MLflow run records
        it."""
        # Now: a round may end before the thread comes to it.
        if not any((self._workspace / "train").glob("rounds/*.json")):
            self._begins_anew = True
        self._later(self._write_training)

    def finish(self) -> Promotion | None:
        """Record evaluation, report and traces, and register the policy; the run is finished.

        Returns when that is done: the promotion of the policy, if this call has made it the champion.
        """
        self._later(self._write_all)
        self.wait()
        return self._promotion

    def wait(self) -> None:
        """Return when all that was asked for so far is recorded."""
        self._thread.submit(lambda: None).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Wait until everything is written; an unfinished run is marked as failed or killed."""
        if error is not None and not isinstance(error, Exception):
            with suppress(Exception):  # stopping does not wait for the record; `mark_gone` corrects it
                self.kill()
            return
        self._left.set()
        if error is not None:
            self._later(lambda client, run_id: recorded_runs.end(client, run_id, status="FAILED"))
        self._thread.shutdown(wait=True)
        if self._failure is not None and error is None:
            raise WingspanError(
                f"the MLflow record at {tracking_uri()} is incomplete "
                f"({describe(self._failure)[:MAX_ERROR_CHARACTERS]}); all results are in {self._workspace}: "
                "fix the cause and run the same command to complete it"
            ) from self._failure

    def kill(self) -> None:
        """Mark the run as killed, unless it has ended; the next start writes what is missing."""
        self._left.set()
        with self._ending:
            self._thread.shutdown(wait=True, cancel_futures=True)
            if self._run is not None:
                recorded_runs.end(*self._run, status="KILLED")

    def _keep_beating(self) -> None:
        """Show that this process lives, and what its machine is doing."""
        next_beat, last_beat = time.monotonic() + recorded_runs.INTERVAL_S, None
        while not self._left.wait(system_metrics.INTERVAL_S):
            if self._system is not None:
                try:
                    self._system.sample()
                except Exception as error:  # a beat that stops would have the run marked as killed
                    _log.warning("system metrics end here: %s", describe(error))
                    self._system = None
            # A store that does not answer takes longer than a beat: they must not pile up before other jobs.
            if time.monotonic() >= next_beat and (last_beat is None or last_beat.done()):
                next_beat = time.monotonic() + recorded_runs.INTERVAL_S
                with suppress(RuntimeError):  # the writer thread has ended
                    last_beat = self._later(self._beat)

    def _later(self, write: Callable[["MlflowClient", str], None]) -> Future[None]:
        def job() -> None:
            try:
                if self._run is None:
                    self._run = self._open()
                write(*self._run)
            except Exception as error:  # a failing record must not stop the run
                self._failure = error
                _log.warning("MLflow: %s", describe(error)[:MAX_ERROR_CHARACTERS])

        return self._thread.submit(job)

    def _open(self) -> tuple["MlflowClient", str]:
        """Connect, then find or start the run."""
        client = connect()
        run_id = unfinished_run(self._workspace, pipeline=self._pipeline)
        if run_id is None or not has_run(client, run_id):
            run_id = self._start(client)
        self._write_parameters(client, run_id)
        client.update_run(run_id, status="RUNNING")
        self._system = SystemMonitor(run_id, began_ms=client.get_run(run_id).info.start_time)
        recorded_runs.beat(client, run_id)
        recorded_runs.mark_gone(client, experiment_id=experiment_of(client))
        return client, run_id

    def _start_over(self, client: "MlflowClient", run_id: str) -> str:
        """End the run as one that was stopped, and go on in a new one; returns its id."""
        recorded_runs.end(client, run_id, status="KILLED")
        self._start(client)
        self._run = None  # until the new run is open, so that the next job opens it if this one fails
        self._run = self._open()
        self._write_tags(*self._run)
        return self._run[1]

    def _start(self, client: "MlflowClient") -> str:
        experiment_id = experiment_of(client)
        tags = {
            **facts.source_tags(self._name),
            **recorded_runs.heartbeat(),  # from the start, so that no crash leaves it running
            "mlflow.note.content": self._description(),
        }
        run = client.create_run(experiment_id, run_name=self._workspace.name, tags=tags)
        run_id: str = run.info.run_id
        write_record(self._workspace, pipeline=self._pipeline, run=run, is_finished=False)
        return run_id

    def _write_parameters(self, client: "MlflowClient", run_id: str) -> None:
        """Write the parameters that the run lacks: all, or those that an earlier start did not get to."""
        recorded_params = client.get_run(run_id).data.params
        params = parameters_of(self._pipeline)
        log_params(
            client,
            run_id,
            [(key, value) for key, value in params.items() if metric_key(key) not in recorded_params],
        )

    def _write_tags(self, client: "MlflowClient", run_id: str) -> None:
        from mlflow.entities import RunTag

        tags = self._tags | {
            MLFLOW_TAGS[key]: value for key, value in self._tags.items() if key in MLFLOW_TAGS
        }
        client.log_batch(run_id, tags=[RunTag(key, redact(value)) for key, value in tags.items()])

    def _beat(self, client: "MlflowClient", run_id: str) -> None:
        recorded_runs.beat(client, run_id)
        self._write_system(client, run_id)

    def _write_system(self, client: "MlflowClient", run_id: str) -> None:
        if self._system is not None:
            self._system.write(client, run_id)

    def _write_training(self, client: "MlflowClient", run_id: str) -> None:
        if self._begins_anew and _children(client, client.get_run(run_id)):
            run_id = self._start_over(client, run_id)  # MLflow cannot forget the steps of the one before
        self._begins_anew = False
        log_item_files(client, run_id, self._item_files())
        parent, train = client.get_run(run_id), self._workspace / "train"
        steps = _read_steps(self._workspace)
        self._write_alerts(client, run_id)
        for prompt in sorted(train.glob("*.md")):
            client.log_artifact(run_id, str(prompt))
        children = _children(client, parent)
        last_final_step = self._last_final_step()
        for result in read_rounds(train):
            if result.last_step > last_final_step:
                continue
            number, first, last = result.index + 1, result.first_step, result.last_step
            at_ms = written_ms(round_file(train, result.index))
            began_ms = at_ms - round(1000 * result.seconds)
            child = children.get(number) or _begin_child(client, parent, number=number, began_ms=began_ms)
            if child.info.status == "FINISHED":
                continue
            own_steps = [steps[step] for step in range(first, last + 1) if step in steps]
            log_params(
                client, child.info.run_id, facts.round_params(own_steps, first=first, last=last).items()
            )
            quick = partial(summary_metric, group="eval/quick")
            series = metrics_of(result.evaluation, step=last, at_ms=at_ms, name=quick)
            for values in own_steps:
                series += metrics_of(values, step=values["step"], at_ms=at_ms, name=step_metric)
            # Until the child is finished, the whole round is written again to both; with equal timestamps the
            # rows are equal, and MLflow keeps them once.
            for target in (child.info.run_id, run_id):
                log_metrics(client, target, series)
            self._log_traces(
                client, run_id, round_traces(train, number=number, first_step=first, last_step=last)
            )
            client.set_terminated(child.info.run_id, status="FINISHED", end_time=at_ms)

    def _last_final_step(self) -> int:
        """The last step that no rewind undoes any more: MLflow cannot forget a step that it has."""
        settings, train = self._pipeline.train, self._workspace / "train"
        last_round = settings.num_rounds - 1
        is_trained = round_file(train, last_round).exists()
        if is_trained or settings.watch.on_collapse != "rewind":
            return settings.steps
        steps = _read_steps(self._workspace)
        points = RewindPoints.read(train, window=settings.watch.window)
        return points.target(max(steps, default=0))

    def _write_alerts(self, client: "MlflowClient", run_id: str) -> None:
        """Tag the run with its signs of a collapse; the metric `train/alerts` counts those that last."""
        train = self._workspace / "train"
        alerts = read_lines_as(Alert, train / ALERTS)
        signs = [
            f"went back from step {rewind.from_step} to {rewind.to_step}" for rewind in read_rewinds(train)
        ]
        signs += [f"{alert.monitor} at step {alert.step}" for alert in alerts]
        if signs:
            client.set_tag(run_id, COLLAPSE, "; ".join(signs)[:MAX_TAG_CHARACTERS])

    def _write_all(self, client: "MlflowClient", run_id: str) -> None:
        self._write_tags(client, run_id)
        self._write_system(client, run_id)
        self._write_training(client, run_id)
        workspace = self._workspace
        evaluation = read_evaluation(workspace)
        settings = self._pipeline.train
        last = settings.steps
        step_of_final = final_step(workspace / "train", settings.final_policy, last=last)
        timing = read_json(workspace / "timing.json")
        at_ms = written_ms(workspace / EVALUATION)
        usage = {
            f"{measure}/{stage}": value
            for stage, usage in read_usage(workspace).items()
            for measure, value in asdict(usage).items()
        }
        series = metrics_of(timing, step=last, at_ms=at_ms, name=lambda key: metric_key(f"time/{key}"))
        series += metrics_of(usage, step=last, at_ms=at_ms, name=lambda key: metric_key(f"usage/{key}"))
        for policy, step in (("before", 0), ("after", step_of_final)):
            for mode, summary in evaluation[policy].items():
                name = partial(summary_metric, group=f"eval/{mode}")
                series += metrics_of(summary, step=step, at_ms=at_ms, name=name)
        log_metrics(client, run_id, series)
        for file_name in (EVALUATION, OUTCOMES):
            client.log_artifact(run_id, str(workspace / file_name))
        if (workspace / LINEAGE).exists():
            client.log_artifact(run_id, str(workspace / LINEAGE))
            client.log_artifact(run_id, str(workspace / "train" / "metrics.jsonl"), "train")
        client.log_artifacts(run_id, str(workspace / "report"), "report")
        self._log_traces(client, run_id, evaluation_traces(workspace / EVALUATION_TRAJECTORIES))
        result = facts.result(evaluation)
        experiment_id = client.get_run(run_id).info.experiment_id
        page = run_page(experiment_id, run_id)
        artifact = run_page(experiment_id, run_id, tab="/artifacts/report/index.html")
        note = f"**{result}** [Report]({artifact})\n\n{facts.origins(self._tags)}\n\n{self._description()}"
        client.set_tag(run_id, "mlflow.note.content", note)
        tags = facts.version_tags(
            self._pipeline, workspace=workspace, evaluation=evaluation, run_tags=self._tags
        )
        test = ItemFile.read(workspace / "data" / "test.jsonl", data=self._pipeline.data)
        policies = find_kept_policies(self._pipeline, workspace, items=test.items)
        self._promotion = register(
            client,
            run_id,
            name=self._name,
            model_id=log_policies(client, run_id, policies, test=test, tags={"pipeline": self._name}),
            tags=tags,
            description=f"{result} [Run]({page})\n\n{self._description()}",
            outcomes=workspace / OUTCOMES,
            is_candidate=self._is_candidate,
        )
        client.set_terminated(run_id, status="FINISHED")
        write_record(
            workspace,
            pipeline=self._pipeline,
            run=client.get_run(run_id),
            is_finished=True,
            was_candidate=self._is_candidate,
        )
        self._failure = None  # earlier failures are repaired

    def _log_traces(self, client: "MlflowClient", run_id: str, traces: list[EpisodeTrace]) -> None:
        start = self._pipeline.model
        folders = (self._workspace / "policy", self._workspace / "warmup", start)
        decode = decoder(*folders, special_tokens=False)
        log_traces(client, run_id, traces, decode=decode, judges=judge_metrics(self._pipeline.agent))

    def _item_files(self) -> list[ItemFile]:
        files = [self._workspace / "data" / f"{split}.jsonl" for split in ("train", "test")]
        return [ItemFile.read(file, data=self._pipeline.data) for file in files if file.exists()]

    def _description(self) -> str:
        return facts.description(self._pipeline, name=self._name, workspace=self._workspace)


def _read_steps(workspace: Path) -> dict[int, dict[str, Any]]:
    """The training steps by their numbers."""
    return {values["step"]: values for values in read_steps(workspace)}


def _children(client: "MlflowClient", parent: "Run") -> dict[int, "Run"]:
    """Round number, from 1 → its run."""
    ours = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    runs = all_pages(client.search_runs, [parent.info.experiment_id], filter_string=ours)
    return {int(run.data.tags["round"]): run for run in runs}


def _begin_child(client: "MlflowClient", parent: "Run", *, number: int, began_ms: int) -> "Run":
    inherited_tags = ("mlflow.user", "mlflow.source.name", "mlflow.source.type", "pipeline")
    tags = {key: parent.data.tags[key] for key in inherited_tags if key in parent.data.tags}
    tags |= {"mlflow.parentRunId": parent.info.run_id, "round": str(number)}
    return client.create_run(
        parent.info.experiment_id, start_time=began_ms, run_name=f"round {number}", tags=tags
    )
