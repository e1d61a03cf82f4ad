"""The flow: prepare → provision → warm-up → rounds of training → evaluate → report, then the records.

Each stage is a Prefect task run, cached on the hash of its inputs (`flows/lineage.py`); its cached
value is a receipt of what it wrote, which must still hold. Each round of training is a task run of its
own within that of `train`. What a stage does is in `tasks/`; what is recorded in MLflow, in
`tasks/tracking/tracker.py`.

Prefect orchestrates the work but does not own it: when its server dies during a run, the run goes on and is
finished, and only Prefect's record of it stays incomplete (`run_with_prefect`).
"""

import json
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psutil
from prefect import Task, flow
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.runtime import flow_run

from envs.errors import WingspanError, describe
from flows.guardian import guard
from flows.lineage import LOCK_FILE, Receipt, Stage, cache_key, holds, path_md5, receipt, stage_key
from flows.plan import Plan, checked_address, locked, make_plan
from flows.prefect_runs import cancel, check_server, take_over
from flows.progress import Display, StageState
from flows.stages import call_stage, make_display, read_timing, running, show_training, write_timing
from flows.stopping import on_stop, signals_claimed
from flows.versioning import commit_to_dvc
from tasks.config.parameters import changed_parameters, write_changes
from tasks.config.pipelines import load_pipeline
from tasks.tracking.provenance import provenance
from tasks.tracking.tracker import Tracker, check_tracking, is_recorded

if TYPE_CHECKING:
    from tasks.rollout.served_policy import ServedAt
    from tasks.stages.train import TrainSession


@flow(name="train-agent", flow_run_name="{pipeline}")
def train_agent(
    pipeline: str,
    overrides: dict[str, Any] | None = None,
    workspace: str | None = None,
    serve_policy: str | None = None,
) -> dict[str, Any]:
    """Run `pipeline` of `pipelines.yaml`, or what is left of it, in its workspace.

    `overrides`: parameters by dotted key, e.g. `{"train.lr": 1e-3}`; they get a workspace of their
    own unless `workspace` names one. `serve_policy`: `PORT` or `HOST:PORT`, where the policy answers by
    OpenAI's protocol while it is trained. Returns `evaluation.json`. Raises `WingspanError` for whatever a
    user can mend; running the same again goes on where this one stopped.
    """
    guard()
    serve = None if serve_policy is None else checked_address(serve_policy)
    check_server()
    check_tracking()
    plan = make_plan(pipeline, overrides=overrides or {}, workspace=Path(workspace) if workspace else None)
    with signals_claimed(), locked(plan.workspace):
        take_over(plan.workspace, flow_run_id=flow_run.id)
        on_stop(partial(cancel, UUID(str(flow_run.id))))
        with make_display(
            plan.name, pipeline=plan.pipeline, stages=list(plan.stages), workspace=plan.workspace
        ) as display:
            return _Run(plan, display=display, serve=serve).execute()


def run_with_prefect(
    pipeline: str, overrides: dict[str, Any], workspace: str | None, serve_policy: str | None
) -> tuple[dict[str, Any], Exception | None]:
    """`train_agent`, and what kept Prefect's record of it from being complete: its server may have died.

    Raises what the run itself raises, and `WingspanError` if Prefect fails before the run has begun.
    """
    outcome: list[dict[str, Any]] = []
    failures: list[Exception] = []

    def work(
        pipeline: str, overrides: dict[str, Any], workspace: str | None, serve_policy: str | None
    ) -> dict[str, Any]:
        try:
            outcome.append(train_agent.fn(pipeline, overrides, workspace, serve_policy))
        except Exception as error:
            failures.append(error)
            raise
        return outcome[0]

    orchestrated = flow(name=train_agent.name, flow_run_name="{pipeline}")(work)
    prefect_failure: Exception | None = None
    try:
        orchestrated(pipeline, overrides, workspace, serve_policy)
    except Exception as error:
        prefect_failure = error
    if failures:
        raise failures[0]
    if prefect_failure is not None and not outcome:
        raise WingspanError(
            f"Prefect could not begin the run: {describe(prefect_failure)[:300]}"
        ) from prefect_failure
    return outcome[0], prefect_failure


class _Run:
    """One execution of a plan, and those who are told how it goes."""

    def __init__(self, plan: Plan, *, display: Display, serve: "ServedAt | None") -> None:
        self._plan = plan
        self._serve = serve
        self._display = display
        self._closing = ExitStack()
        self._tracker: Tracker | None = None
        self._session: TrainSession | None = None
        self._keys: dict[str, str] = {}
        self._worked_s = 0.0

    def execute(self) -> dict[str, Any]:
        plan = self._plan
        changed = changed_parameters(plan.pipeline, default=load_pipeline(plan.name))
        write_changes(plan.workspace, name=plan.name, changed=changed)
        with self._closing:
            for stage in plan.stages.values():
                self._run_stage(stage)
            # With every stage from the cache there is nothing to tell, unless a run was killed
            # between its last stage and here.
            to_record = self._tracker is not None or not is_recorded(plan.workspace, pipeline=plan.pipeline)
            dvc_failure = self._record() if to_record else None
        if to_record:
            self._write_totals()
        if dvc_failure is not None:
            raise dvc_failure
        evaluation: dict[str, Any] = json.loads((plan.workspace / "evaluation.json").read_text())
        return evaluation

    def _run_stage(self, stage: Stage) -> None:
        """Run `stage`, unless it ran before on the same inputs and what it wrote is still there."""
        key = self._keys[stage.name] = stage_key(stage)

        def work() -> Receipt:
            self._work(stage)
            return receipt(stage)

        run = Task(
            work,
            name=stage.name,
            persist_result=True,
            result_serializer="json",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, _inputs: cache_key(stage, key)),
        )
        state = run(return_state=True)
        found = state.result()
        if state.name == "Cached":
            if holds(stage, found):
                self._display.stage(stage.name, StageState.CACHED)
            else:  # what it wrote was deleted or changed since
                run.with_options(refresh_cache=True)()

    def _work(self, stage: Stage) -> None:
        plan, display = self._plan, self._display
        self._opened_tracker()
        started = time.perf_counter()
        try:
            with running(stage, display=display):
                if stage.name == "warmup":
                    self._opened_session().prestart()
                if stage.name == "train":
                    self._train()
                else:
                    call_stage(stage.name, pipeline=plan.pipeline, workspace=plan.workspace, display=display)
        finally:
            self._worked_s += time.perf_counter() - started

    def _train(self) -> None:
        """The rounds that are left, on one trainer that stays up; each a task run and an MLflow run."""
        session = self._opened_session()
        for index in range(session.rounds):
            Task(session.run_round, name=f"round {index + 1}", cache_policy=NO_CACHE)(index)
            self._opened_tracker().sync_training()
        session.export()
        session.close()

    def _opened_session(self) -> "TrainSession":
        if self._session is None:
            from tasks.stages.train import TrainSession

            session = TrainSession(
                self._plan.pipeline,
                self._plan.workspace,
                on_step=partial(show_training, display=self._display),
                on_phase=partial(self._display.phase, "train"),
                serve=self._serve,
            )
            self._session = self._closing.enter_context(session)
        return self._session

    def _opened_tracker(self) -> Tracker:
        if self._tracker is None:
            plan = self._plan
            tracker = Tracker(plan.name, pipeline=plan.pipeline, workspace=plan.workspace)
            self._tracker = self._closing.enter_context(tracker)
            on_stop(tracker.kill)
            facts = provenance(envs=plan.pipeline.data.envs)
            tracker.tag({**facts, "seed": str(plan.pipeline.seed), "prefect.flow_run": str(flow_run.id)})
        return self._tracker

    def _record(self) -> WingspanError | None:
        """Tell MLflow and DVC, side by side, of a run whose stages are all finished.

        What DVC could not do is returned: MLflow's record shall not suffer from it.
        """
        plan, tracker = self._plan, self._opened_tracker()
        for stage in plan.stages.values():
            tracker.tag({f"md5.{name}": md5 for name, md5 in receipt(stage).items()})
        tracker.finish()
        if not plan.tracked:
            return None
        # What changed while the run went on is not what its outputs were made from.
        same = [name for name, stage in plan.stages.items() if stage_key(stage) == self._keys[name]]
        try:
            commit_to_dvc(same, name=plan.name, pipeline=plan.pipeline, workspace=plan.workspace)
        except WingspanError as error:
            return error
        if LOCK_FILE.exists():
            tracker.tag({"md5.dvc.lock": path_md5(LOCK_FILE)})
        return None

    def _write_totals(self) -> None:
        """Seconds since this process began, and those of them in which no stage was at work."""
        wall_s = time.time() - psutil.Process().create_time()
        timing = read_timing(self._plan.workspace)
        timing["run"] = {"wall": round(wall_s, 3), "orchestration": round(wall_s - self._worked_s, 3)}
        write_timing(self._plan.workspace, timing)
