"""What Prefect's page of a run shows besides its graph: artifacts and events, kept up to date.

Artifacts are written by a thread: training hands over the newest and goes on. A key is written every
`INTERVAL_S` at most, and only what has changed. In one flow run each key is one artifact, which is updated;
another run in the same workspace adds a version to the same keys. A server that has died costs nothing: what
cannot be written is dropped at the end. `artifacts.py` has the texts, `events.py` the events, `assets.py` the
outputs of stages.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from contextvars import copy_context
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self
from uuid import UUID

from envs.errors import describe
from envs.redaction import redact
from flows.orchestrator.artifacts import (
    RunArtifact,
    Step,
    artifact_key,
    curves_artifact,
    links_artifact,
    progress_artifact,
    rounds_artifact,
)
from flows.orchestrator.events import COLLAPSE, ROUND, emit, emit_promoted
from tasks.config.pipelines import Pipeline
from tasks.data.collapse import Alert
from tasks.evaluation.outcomes import Evaluation
from tasks.runs.parameters import try_read_lines
from tasks.runs.progress import Progress
from tasks.tracking.model import Promotion
from tasks.tracking.record import is_recorded

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from tasks.runs.rounds import RoundResult

INTERVAL_S = 3.0
"""The time between two updates of the page."""
RETRY_S = 30.0
"""After an update that failed."""
TIMEOUT_S = 3.0
"""The time for each request: the server may be gone or hang."""
CLOSE_TIMEOUT_S = 5.0
"""The time for the last update, at the end of the run."""

_log = logging.getLogger(__name__)


class PrefectPage:
    """The artifacts and events of one flow run, open for as long as the context."""

    def __init__(
        self,
        name: str,
        *,
        pipeline: Pipeline,
        workspace: Path,
        flow_run_id: str,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._name = name
        self._pipeline = pipeline
        self._workspace = workspace
        self._writer = ArtifactWriter(workspace, flow_run_id=flow_run_id, interval_s=interval_s)
        self._step: Step = {}
        self._rounds: dict[int, RoundResult] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Write what is pending; after a signal, without waiting."""
        if error is None or isinstance(error, Exception):
            self._writer.close()

    def observe(self, progress: Progress) -> Progress:
        """`progress` of training, which begins or is resumed; the page shows it as well."""
        self._rounds = self._read_rounds()
        self._step = next(reversed(_read_steps(self._workspace)), {})

        def on_step(values: Mapping[str, float]) -> None:
            progress.on_step(values)
            self._step = values
            self._show_progress("")
            self.show_links(None)

        def on_phase(text: str) -> None:
            progress.on_phase(text)
            self._show_progress(text)

        def on_alert(alert: Alert) -> None:
            progress.on_alert(alert)
            emit(COLLAPSE, asdict(alert), pipeline=self._name, workspace=self._workspace)

        return replace(progress, on_step=on_step, on_phase=on_phase, on_alert=on_alert)

    def sync_rounds(self) -> None:
        """Show the rounds that have ended; those that ended since the last call, or again, are events."""
        rounds = self._read_rounds()
        for index, done in rounds.items():
            if self._rounds.get(index) != done:
                facts = {"round": index + 1, "rounds": self._pipeline.train.num_rounds, **asdict(done)}
                emit(ROUND, facts, pipeline=self._name, workspace=self._workspace)
        self._rounds = rounds
        if rounds:
            self._show_progress("")  # the quick evaluation is over
            results, steps = list(rounds.values()), _read_steps(self._workspace)
            self._writer.put(rounds_artifact(results, steps))
            self._writer.put(curves_artifact(results, steps))

    def show_links(self, evaluation: Evaluation | None) -> None:
        """Link to the records of the run; `evaluation`: of a run that is recorded."""
        # Only a finished run has a report; this is called after every step.
        has_report = evaluation is not None and is_recorded(self._workspace, pipeline=self._pipeline)
        self._writer.put(links_artifact(self._workspace, evaluation=evaluation, is_recorded=has_report))

    def announce(self, promotion: Promotion) -> None:
        """Say that the policy of this run is the champion."""
        envs = self._pipeline.data.evaluated_envs
        emit_promoted(promotion, pipeline=self._name, envs=envs, workspace=self._workspace)

    def _show_progress(self, phase: str) -> None:
        self._writer.put(progress_artifact(self._step, pipeline=self._pipeline, phase=phase))

    def _read_rounds(self) -> "dict[int, RoundResult]":
        from tasks.runs.rounds import read_rounds

        return {result.index: result for result in read_rounds(self._workspace / "train")}


class ArtifactWriter:
    """Writes the newest artifact of each name, in a thread that begins with the first."""

    def __init__(self, workspace: Path, *, flow_run_id: str, interval_s: float) -> None:
        self._workspace = workspace
        self._flow_run_id = UUID(flow_run_id)
        self._interval_s = interval_s
        self._pending: dict[str, RunArtifact] = {}
        self._newest: dict[str, RunArtifact] = {}
        self._ids: dict[str, UUID] = {}
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def put(self, artifact: RunArtifact) -> None:
        """Write `artifact` soon, unless a newer one of its name comes first; returns at once."""
        with self._changed:
            if self._newest.get(artifact.name) == artifact:
                return
            self._newest[artifact.name] = self._pending[artifact.name] = artifact
            self._changed.notify()
        if self._thread is None:
            # In this context: Prefect's settings and the flow run are in it.
            self._thread = threading.Thread(
                target=copy_context().run, args=[self._work], name="prefect-artifacts", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write what is pending, if the server answers."""
        self._closing.set()
        with self._changed:
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _work(self) -> None:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S}) as client,
        ):
            while artifacts := self._take():
                is_written = self._write_all(client, artifacts)
                self._closing.wait(self._interval_s if is_written else RETRY_S)

    def _write_all(self, client: "SyncPrefectClient", artifacts: Sequence[RunArtifact]) -> bool:
        """Write all, or up to the first that fails; returns whether all are written."""
        for index, artifact in enumerate(artifacts):
            try:
                self._write(client, artifact)
            except Exception as error:  # the page must not stop the run
                _log.info("Prefect's artifact %s was not written: %s", artifact.name, describe(error))
                with self._changed:
                    if not self._closing.is_set():
                        self._pending = {item.name: item for item in artifacts[index:]} | self._pending
                return False
        return True

    def _take(self) -> list[RunArtifact]:
        """What is pending, as soon as there is something; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing.is_set())
            artifacts = list(self._pending.values())
            self._pending.clear()
            return artifacts

    def _write(self, client: "SyncPrefectClient", artifact: RunArtifact) -> None:
        from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate

        data = redact(artifact.data) if isinstance(artifact.data, str) else artifact.data
        description = redact(artifact.description)
        key = artifact_key(self._workspace, artifact.name)
        if artifact.name not in self._ids and (earlier_id := self._find(client, key)) is not None:
            self._ids[artifact.name] = earlier_id
        if (artifact_id := self._ids.get(artifact.name)) is not None:
            client.update_artifact(artifact_id, ArtifactUpdate(data=data, description=description))
            return
        created = client.create_artifact(
            ArtifactCreate(
                key=key, type=artifact.type, description=description, data=data, flow_run_id=self._flow_run_id
            )
        )
        self._ids[artifact.name] = created.id

    def _find(self, client: "SyncPrefectClient", key: str) -> UUID | None:
        """The artifact that an earlier attempt of this flow run wrote: Prefect retries under the same id."""
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, ArtifactFilterKey

        ours = ArtifactFilter(
            key=ArtifactFilterKey(any_=[key]), flow_run_id=ArtifactFilterFlowRunId(any_=[self._flow_run_id])
        )
        artifacts = client.read_artifacts(artifact_filter=ours, limit=1)
        return artifacts[0].id if artifacts else None


def _read_steps(workspace: Path) -> list[Step]:
    return list(try_read_lines(workspace / "train" / "metrics.jsonl"))
