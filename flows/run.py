"""One run of a plan: its display, its record in MLflow, its trainer, and its stages as Prefect task runs.

Outside of a Prefect flow, as in `wingspan stage`, which `dvc repro` calls, the same work is done by plain
calls: without a server, a cache or a record.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psutil
import typer
from prefect import Task
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.context import FlowRunContext
from prefect.results import ResultStore
from prefect.serializers import JSONSerializer
from prefect.tasks import MaterializingTask

from envs.errors import WingspanError
from envs.files import read_json, write_json
from flows.display.display import Display
from flows.display.state import StageState
from flows.endings.stopping import on_stop
from flows.lineage.lock_file import locked_receipt
from flows.lineage.reuse import copy_outputs
from flows.lineage.stages import (
    LOCK_FILE,
    Receipt,
    Stage,
    cache_key,
    check_written,
    find_difference,
    has_inputs,
    make_receipt,
    stage_key,
)
from flows.lineage.versioning import commit_to_dvc
from flows.orchestrator.assets import describe_assets, stage_assets
from flows.orchestrator.page import PrefectPage
from flows.orchestrator.runs import open_local_results, read_receipt
from flows.plan import Plan
from flows.recorder import Recorder
from tasks.cluster.address import cluster_address
from tasks.config.offline import OfflineSettings
from tasks.config.parameters import changed_parameters, write_changes
from tasks.config.pipelines import load_pipeline
from tasks.data.collapse import Alert
from tasks.data.hashes import path_md5
from tasks.data.items import planned_turns
from tasks.evaluation.outcomes import Evaluation, read_evaluation
from tasks.rollout.current_episode import EPISODE_FILE
from tasks.runs.progress import Progress
from tasks.runs.provenance import provenance, uncommitted_files
from tasks.runs.state import mark_stopped, recorded_state
from tasks.runs.usage import Usage, watch_usage, write_usage
from tasks.tracking.model import Promotion, promote_recorded
from tasks.tracking.record import is_recorded, was_candidate
from tasks.tracking.tracker import Tracker
from tasks.verl.cpu import fork_server

if TYPE_CHECKING:
    from tasks.stages.offline import OfflineSession
    from tasks.stages.train import TrainSession

T = TypeVar("T")

STAGES = ("prepare", "provision", "warmup", "train", "evaluate", "report")
"""Stage `x` is in `tasks/stages/x.py`: a function `x(pipeline, workspace, progress)`, imported when it runs;
`train` alone is a session, whose rounds `flows/train_agent.py` drives."""

RECORD = "record"
"""The end of a recorded run, which is no stage and is shown like one."""

TIMING = "timing.json"
"""The file in the workspace: `{"stages": {name: seconds}, "run": {"wall", "orchestration"}}`. The seconds of
a stage include those of earlier attempts that it resumed, except attempts that were killed."""


@contextmanager
def open_run(
    plan: Plan, *, stages: Sequence[str] | None = None, flow_run_id: str | None = None
) -> Iterator["Run"]:
    """A run of `stages` of `plan`, by default all of them and then `RECORD`.

    Only a run with a `flow_run_id` is recorded.
    """
    if flow_run_id is not None:
        changes = changed_parameters(plan.pipeline, default=load_pipeline(plan.name))
        write_changes(plan.workspace, name=plan.name, changes=changes)
    pipeline = plan.pipeline
    steps = {"train": pipeline.train.steps}
    if pipeline.warmup is not None:
        steps["warmup"] = pipeline.warmup.steps
    on_stop(partial(mark_stopped, plan.workspace))
    with (
        recorded_state(plan.workspace),
        Display(
            f"{plan.name} in {plan.workspace}",
            stages=[*plan.stages, RECORD] if stages is None else stages,
            steps=steps,
            steps_per_round=pipeline.train.steps_per_round,
            horizon_at=planned_turns(pipeline),
            episode_file=plan.workspace.resolve() / EPISODE_FILE,
        ) as display,
        ExitStack() as closing,
    ):
        closing.enter_context(fork_server.keep_open())
        page = None
        if flow_run_id is not None:
            page = closing.enter_context(
                PrefectPage(plan.name, pipeline=pipeline, workspace=plan.workspace, flow_run_id=flow_run_id)
            )
        yield Run(plan, display=display, closing=closing, page=page, flow_run_id=flow_run_id)


def read_finished(plan: Plan) -> Evaluation | None:
    """The content of `evaluation.json` of a run of which nothing is left to do, which is then shown; else
    None.

    Checks the receipt of each stage and the record in MLflow as a run does, and needs no server: a start of
    Prefect's takes longer than all of it. If Prefect stores results elsewhere, nothing is found; a stage that
    only `dvc.lock` knows gets its receipt in a run. `plan` may be unchecked: what a run needs is not needed
    here.
    """
    if not is_recorded(plan.workspace, pipeline=plan.pipeline):
        return None
    if plan.is_candidate and not was_candidate(plan.workspace):
        return None
    if not all(has_inputs(stage) for stage in plan.stages.values()):
        return None
    results = open_local_results()
    for stage in plan.stages.values():
        receipt = read_receipt(results, cache_key(stage, stage_key(stage)))
        if receipt is None or find_difference(stage, receipt) is not None:
            return None
    title = f"{plan.name} in {plan.workspace}"
    with Display(title, stages=[*plan.stages, RECORD], steps={}, steps_per_round=1) as display:
        for name in (*plan.stages, RECORD):
            display.stage(name, StageState.CACHED)
    return read_evaluation(plan.workspace)


class Run:
    """What the stages of one run share."""

    def __init__(
        self,
        plan: Plan,
        *,
        display: Display,
        closing: ExitStack,
        page: PrefectPage | None,
        flow_run_id: str | None,
    ) -> None:
        self.plan = plan
        self._display = display
        self._closing = closing
        self._usage = closing.enter_context(watch_usage())
        self._page = page
        self._flow_run_id = flow_run_id
        self._receipts = ResultStore(serializer=JSONSerializer())
        self._recorder = Recorder(plan)
        self._tracker: Tracker | None = None
        self._session: TrainSession | OfflineSession | None = None
        self._keys: dict[str, str] = {}
        self._busy_s = 0.0
        self._uncommitted: list[str] = []

    def stage(self, name: str, *inputs: Receipt, meanwhile: Callable[[], object] | None = None) -> Receipt:
        """Run stage `name`, which reads what the stages of `inputs` wrote, unless it is up to date.

        `meanwhile` is called as the stage starts.
        """
        stage = self.plan.stages[name]

        def work() -> None:
            with self.working(stage):
                if meanwhile is not None:
                    meanwhile()
                if source := copy_outputs(stage, self.key(stage)):
                    self._display.progress(name).on_note(f"copied from {source}: the inputs are the same")
                    return
                body = import_module(f"tasks.stages.{name}").__dict__[name]
                body(self.plan.pipeline, stage.workspace, self._display.progress(name))

        return self.finish(stage, work, *inputs)

    def finish(self, stage: Stage, work: Callable[[], object], *inputs: object) -> Receipt:
        """Do `work`, the last part of `stage`; Prefect stores the receipt, and later runs skip the stage."""
        if FlowRunContext.get() is None:
            work()
            receipt = make_receipt(stage)
            self._recorder.finish(receipt)
            return receipt
        key = cache_key(stage, self.key(stage))
        is_finished = self.is_finished(stage)
        if is_finished:
            self._display.stage(stage.name, StageState.CACHED)

        assets = stage_assets(stage)

        def work_and_hash(*_: object) -> Receipt:
            work()
            receipt = make_receipt(stage)
            self._recorder.finish(receipt)
            describe_assets(stage, receipt, assets=assets)
            return receipt

        task = MaterializingTask(
            work_and_hash,
            assets=assets,
            name=stage.name,
            persist_result=True,
            result_serializer="json",
            cache_policy=CacheKeyFnPolicy(cache_key_fn=lambda _context, _inputs: key),
            refresh_cache=not is_finished,
        )
        return task(*inputs)

    def task(self, name: str, work: Callable[..., T], *inputs: object, after: Sequence[object] = ()) -> T:
        """Call `work` with `inputs` as a task run. `after`: results on which it depends and does not take."""
        if FlowRunContext.get() is None:
            return work(*inputs)
        task: Task[..., T] = Task(work, name=name, cache_policy=NO_CACHE)
        return task(*inputs, wait_for=list(after))

    def key(self, stage: Stage) -> str:
        """The hash of the inputs of `stage` when it began."""
        return self._keys.setdefault(stage.name, stage_key(stage))

    def is_finished(self, stage: Stage) -> bool:
        """Whether `stage` ran before on the same inputs and its outputs are unchanged.

        Where only `dvc.lock` says so, as after `dvc pull` or `dvc repro`, the stage gets a receipt.
        """
        if FlowRunContext.get() is None:
            return False
        key = cache_key(stage, self.key(stage))
        receipt = read_receipt(self._receipts, key)
        if receipt is not None and find_difference(stage, receipt) is None:
            return True
        receipt = locked_receipt(stage, name=self.plan.name) if self.plan.is_tracked else None
        if receipt is None or find_difference(stage, receipt) is not None:
            return False
        self._receipts.write(receipt, key=key)
        self._recorder.accept(receipt)
        self._display.progress(stage.name).on_note(f"up to date, as recorded in {LOCK_FILE}")
        return True

    @contextmanager
    def working(self, stage: Stage, *, is_resumed: bool = False) -> Iterator[None]:
        """Show `stage` as running, and record the run. Even if the stage fails, its seconds are added to
        `timing.json` and what it used to `usage.json`.

        `is_resumed`: add them to those of earlier attempts. Raises `ConfigError` for a missing output of
        another stage.
        """
        check_written(stage, self.plan.stages.values())
        if self._flow_run_id is not None:
            self._open_tracker()
        self._recorder.begin(stage, key=self.key(stage), is_resumed=is_resumed)
        before_s = self._usage.begin()
        self._display.stage(stage.name, StageState.RUNNING)
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._busy_s += seconds
            self._usage.look()
            if not cluster_address():  # whose processes are elsewhere
                usage = Usage(
                    cpu_s=round(self._usage.cpu_s - before_s, 2), peak_memory_bytes=self._usage.peak_memory
                )
                write_usage(stage.workspace, stage.name, usage, is_resumed=is_resumed)
            timing = _read_timing(stage.workspace)
            before = timing["stages"].get(stage.name, 0.0) if is_resumed else 0.0
            timing["stages"][stage.name] = round(before + seconds, 3)
            write_json(stage.workspace / TIMING, timing)
        self._display.stage(stage.name, StageState.DONE)

    def training_session(self) -> "TrainSession | OfflineSession":
        """The session of the train stage, the same one in each call."""
        if self._session is None:
            plan, progress = self.plan, self._training_progress()
            if isinstance(plan.pipeline.train, OfflineSettings):
                from tasks.stages.offline import OfflineSession

                self._session = OfflineSession(plan.pipeline, plan.workspace, progress)
            else:
                from tasks.stages.train import TrainSession
                from tasks.verl.process import RayTrainingProcess

                process = RayTrainingProcess(serve=plan.served_at)
                self._session = TrainSession(plan.pipeline, plan.workspace, progress, process=process)
            self._closing.enter_context(self._session)
        return self._session

    def _training_progress(self) -> Progress:
        """What the display shows, and Prefect's page of a recorded run."""
        progress = self._display.progress("train")
        if self._page is None:
            return progress
        observed_progress = self._page.observe(progress)

        def on_alert(alert: Alert) -> None:
            observed_progress.on_alert(alert)
            self.record_rounds()

        return replace(observed_progress, on_alert=on_alert)

    def record_rounds(self) -> None:
        """Record in MLflow the rounds that have ended, and signs of a collapse; show them in Prefect."""
        if self._tracker is not None:
            self._tracker.sync_training()
        if self._page is not None:
            self._page.sync_rounds()

    def record(self, report: Receipt) -> Evaluation:
        """Record the finished run in DVC and MLflow; returns the content of `evaluation.json`.

        Raises `WingspanError` if a record is incomplete; the records do not depend on each other.
        """
        plan = self.plan
        evaluation = read_evaluation(plan.workspace)
        # With every stage up to date there is nothing to record, unless a run was killed before it came here.
        if self._tracker is None and is_recorded(plan.workspace, pipeline=plan.pipeline):
            promotion = None
            if plan.is_candidate and not was_candidate(plan.workspace):
                promotion = promote_recorded(plan.workspace, name=plan.name)
            self._show_result(evaluation, promotion=promotion)
            self._display.stage(RECORD, StageState.CACHED)
            return evaluation
        self._display.stage(RECORD, StageState.RUNNING)
        progress = self._display.progress(RECORD)
        tracker = self._open_tracker()
        for stage in plan.stages.values():
            tracker.tag({f"md5.{name}": md5 for name, md5 in make_receipt(stage).outputs.items()})
        # First: a run whose record in MLflow is finished is not recorded again.
        dvc_failure = None
        if plan.is_tracked:
            progress.on_phase("committing to DVC")
            dvc_failure = self._commit(tracker)
        progress.on_phase("writing traces and the policy to MLflow")
        self._show_result(evaluation, promotion=tracker.finish())
        self._closing.close()
        if self._uncommitted:
            names = " ".join(f"{name}@{plan.name}" for name in self._uncommitted)
            typer.echo(
                f"dvc.lock has no new entry of {names}: inputs changed meanwhile; dvc repro {names} makes it",
                err=True,
            )
        self._write_totals()
        if dvc_failure is not None:
            raise dvc_failure
        self._display.stage(RECORD, StageState.DONE)
        return evaluation

    def _show_result(self, evaluation: Evaluation, *, promotion: Promotion | None = None) -> None:
        if self._page is not None:
            self._page.show_links(evaluation)
            if promotion is not None:
                self._page.announce(promotion)

    def _commit(self, tracker: Tracker) -> WingspanError | None:
        """Commit to DVC the stages whose inputs did not change during the run; returns what went wrong."""
        plan = self.plan
        tracker.wait()  # DVC moves the files that it reads to its cache and back
        try:
            stages = [name for name, stage in plan.stages.items() if stage_key(stage) == self._keys[name]]
            self._uncommitted = [name for name in plan.stages if name not in stages]
            commit_to_dvc(stages, name=plan.name, pipeline=plan.pipeline, workspace=plan.workspace)
        except WingspanError as error:
            return error
        if LOCK_FILE.exists():
            tracker.tag({"md5.dvc.lock": path_md5(LOCK_FILE)})
        return None

    def _open_tracker(self) -> Tracker:
        if self._tracker is None:
            plan = self.plan
            tracker = Tracker(
                plan.name, pipeline=plan.pipeline, workspace=plan.workspace, is_candidate=plan.is_candidate
            )
            self._tracker = self._closing.enter_context(tracker)
            on_stop(tracker.kill)
            facts = provenance(envs=plan.pipeline.data.envs, uncommitted=uncommitted_files())
            tags = {"seed": str(plan.pipeline.seed), "prefect.flow_run": str(self._flow_run_id)}
            tracker.tag({**facts, **tags})
        return self._tracker

    def _write_totals(self) -> None:
        """Write the seconds since this process began, and those of them in which no stage worked."""
        wall_s = time.time() - psutil.Process().create_time()
        timing = _read_timing(self.plan.workspace)
        timing["run"] = {"wall": round(wall_s, 3), "orchestration": round(wall_s - self._busy_s, 3)}
        write_json(self.plan.workspace / TIMING, timing)


def _read_timing(workspace: Path) -> dict[str, dict[str, float]]:
    return read_json(workspace / TIMING) or {"stages": {}}
