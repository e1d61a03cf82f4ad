"""The flow `sweep`: runs of a pipeline with several seeds and parameters; compares them, promotes the best.

Each run is a `wingspan run` in a process of its own, which prints to a file and records itself as any run
does; it may be resumed by hand. `flows/sweep/plan.py` plans the runs.
"""

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from uuid import UUID

import typer
from prefect import flow
from prefect.runtime import flow_run

from agents.settings import Positive, Seed
from envs.errors import ConfigError, WingspanError, to_line
from flows.endings.cancelling import end_when_cancelled
from flows.endings.guardian import guard
from flows.endings.stopping import claim_signals, on_stop
from flows.lineage.stages import IfChanged
from flows.lock import lock
from flows.orchestrator.artifacts import artifact_key
from flows.orchestrator.events import emit_promoted
from flows.orchestrator.runs import orchestrate
from flows.orchestrator.unfinished_runs import cancel, take_over
from flows.program import PROGRAM
from flows.sweep.plan import SweepPlan, SweepRun, plan_sweep
from tasks.reporting.comparison.compare import Comparison, compare
from tasks.reporting.comparison.runs import read_run
from tasks.tracking.model import Promotion, promote_best

LOG = "output.log"
"""The file in a run's workspace with the output of all attempts of `wingspan run`."""
COMPARISON = "comparison"
"""The comparison's folder in the sweep's."""


class RunState(StrEnum):
    """The state of one run of a sweep."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """A sweep whose runs have all finished."""

    comparison: Comparison
    page: Path
    best: SweepRun
    """The run with the highest success on the test split; the first of several."""
    success: float
    promotion: Promotion | None
    """None if the best run is not better than the champion, or is the champion already."""


@flow(name="sweep", flow_run_name="{pipeline}")
def sweep(
    pipeline: str,
    seeds: list[Seed] | None = None,
    vary: dict[str, list[object]] | None = None,
    overrides: dict[str, object] | None = None,
    at_once: Positive = 1,
    folder: str | None = None,
    if_changed: IfChanged = "refuse",
) -> dict[str, object]:
    """Train `pipeline` with each of `seeds` and each combination of `vary`, compare, and promote the best.

    `vary`: values by dotted key, e.g. `{"train.lr": [1e-3, 1e-4]}`; `overrides`: parameters of all runs;
    `at_once`: runs side by side; `if_changed`: as of `train_agent`, for each run. The same call goes on where
    this one stopped. Raises `WingspanError` for anything that a user can fix.
    """
    temporary = tempfile.gettempdir()
    guard()
    with end_when_cancelled("finished runs and checkpoints are kept, and this resumes"):
        plan = plan_sweep(
            pipeline,
            seeds=seeds,
            axes=vary or {},
            settings=overrides or {},
            at_once=at_once,
            folder=Path(folder) if folder else None,
            if_changed=if_changed,
        )
        with lock(plan.folder, option="folder"):
            return summarise(run_sweep(plan, temporary=temporary))


def sweep_with_prefect(
    plan: SweepPlan, *, parameters: Mapping[str, object], temporary: str
) -> tuple[SweepResult, Exception | None]:
    """Run `plan`, which was made of `parameters`, as the flow `sweep`; the caller holds the lock of its
    folder. Returns and raises as `orchestrate` does."""

    def work(
        pipeline: str,
        seeds: object,
        vary: object,
        overrides: object,
        at_once: int,
        folder: str,
        if_changed: str,
    ) -> SweepResult:
        return run_sweep(plan, temporary=temporary)

    plan_parameters = {"pipeline": plan.name, "at_once": plan.at_once, "folder": str(plan.folder)}
    return orchestrate(
        work, name=sweep.name, run_name=plan.name, parameters={**parameters, **plan_parameters}
    )


def summarise(result: SweepResult) -> dict[str, object]:
    """What the flow returns."""
    return {
        "best": result.best.name,
        "policy": str(result.best.workspace / "policy"),
        "success": result.success,
        "version": result.promotion and result.promotion.version,
        "comparison": str(result.page),
    }


def run_sweep(plan: SweepPlan, *, temporary: str) -> SweepResult:
    """Run the unfinished runs of `plan`, within a flow; then compare all runs, and promote the best.

    The caller holds the lock of the sweep's folder. `temporary`: folder of the runs' temporary files. Raises
    `WingspanError` if a run fails, when the others have ended.
    """
    with claim_signals():
        take_over(plan.folder, flow_run_id=flow_run.id)
        on_stop(partial(cancel, UUID(str(flow_run.id))))
        page = _Table(plan)
        run_all(plan, temporary=temporary, on_change=page.show)
        result = conclude(plan)
        if result.promotion is not None:
            best = result.best
            envs = best.pipeline.data.evaluated_envs
            emit_promoted(result.promotion, pipeline=plan.name, envs=envs, workspace=best.workspace)
        return result


def conclude(plan: SweepPlan) -> SweepResult:
    """Compare the runs of `plan`, all of which are finished, and promote the best if it is better than the
    champion."""
    comparison, page = compare([run.workspace for run in plan.runs], plan.folder / COMPARISON)
    success = {run.name: read_run(run.workspace).after for run in plan.runs}
    best = max(plan.runs, key=lambda run: success[run.name])
    promotion = promote_best(best.workspace, name=plan.name, num_candidates=len(plan.runs))
    return SweepResult(
        comparison=comparison, page=page, best=best, success=success[best.name], promotion=promotion
    )


def run_all(
    plan: SweepPlan,
    *,
    temporary: str,
    on_change: Callable[[SweepRun, RunState], object],
    command: Sequence[str] = PROGRAM,
) -> None:
    """Run the unfinished runs of `plan`, `plan.at_once` at a time; `on_change` is called in this thread.

    `command`: the program that gets the arguments of `wingspan`. If some fail, raises `WingspanError` when
    the others have ended.
    """
    runs = plan.unfinished
    changes: SimpleQueue[tuple[SweepRun, RunState]] = SimpleQueue()
    processes = _Processes(command=command, temporary=temporary)
    start_errors: dict[str, OSError] = {}  # by the run's name

    def work(run: SweepRun) -> None:
        changes.put((run, RunState.RUNNING))
        state = RunState.FAILED
        try:
            if processes.run(run.arguments(plan.name), log=run.workspace / LOG) == 0:
                state = RunState.FINISHED
        except OSError as error:  # of its folder, its log or its process
            start_errors[run.name] = error
        finally:
            changes.put((run, state))

    failed_runs = []
    with ThreadPoolExecutor(plan.at_once, thread_name_prefix="sweep") as threads:
        try:
            for run in runs:
                threads.submit(work, run)
            for _ in range(2 * len(runs)):
                run, state = changes.get()
                on_change(run, state)
                if state is RunState.FAILED:
                    failed_runs.append(run)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise
    if failed_runs:
        logs = [str(run.workspace / LOG) for run in failed_runs if run.name not in start_errors]
        reasons = [f"{', '.join(logs)} says why"] if logs else []
        reasons += [f"{name} could not be started ({to_line(error)})" for name, error in start_errors.items()]
        raise WingspanError(
            f"{len(failed_runs)} of {len(plan.runs)} runs failed; {'; '.join(reasons)}; "
            "the same command runs them again"
        )


@dataclass(slots=True)
class _Processes:
    """The `wingspan run`s at work, in threads of this process."""

    command: Sequence[str]
    temporary: str
    _processes: set[subprocess.Popen[bytes]] = field(default_factory=set)
    _is_stopping: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, arguments: Sequence[str], *, log: Path) -> int:
        """Run to the end, with output to `log`; returns the status."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            with self._lock:
                if self._is_stopping:
                    return 1
                process = subprocess.Popen(
                    [*self.command, *arguments],
                    # Not our TMPDIR: Ray's sockets would have too long a path below it.
                    env={**os.environ, "TMPDIR": self.temporary},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,  # Ctrl-C is for us, and we end it
                )
                self._processes.add(process)
            status = process.wait()
            with self._lock:
                self._processes.discard(process)
        return status

    def stop(self) -> None:
        """End them with SIGTERM, so that they mark their records; our guardian ends the rest."""
        with self._lock:
            self._is_stopping = True
            for process in self._processes:
                process.terminate()


def describe(run: SweepRun, state: RunState) -> str:
    """What a line says of a run besides its state."""
    log = run.workspace / LOG
    if state is RunState.FAILED and not log.exists():
        return ""  # it could not be started; the error at the end says why
    if state is not RunState.FINISHED:
        return f", output in {log}"
    try:
        summary = read_run(run.workspace)
    except ConfigError as error:  # the other runs go on, and the comparison at the end is refused
        return f": {error}"
    return f": success {summary.before:.3f} before training, {summary.after:.3f} after"


class _Table:
    """The states of the runs, as lines of output and as a table in Prefect."""

    def __init__(self, plan: SweepPlan) -> None:
        self._plan = plan
        self._states = {
            run.name: RunState.FINISHED if run.is_finished else RunState.WAITING for run in plan.runs
        }
        self._write()

    def show(self, run: SweepRun, state: RunState) -> None:
        """Say that `run` is in `state` now."""
        self._states[run.name] = state
        number = [planned_run.name for planned_run in self._plan.runs].index(run.name) + 1
        typer.echo(f"run {number} of {len(self._plan.runs)}, {run.name}, {state}{describe(run, state)}")
        self._write()

    def _write(self) -> None:
        """Write the table of runs as an artifact of the flow run; a server that has died does not stop the
        sweep."""
        from prefect.artifacts import create_table_artifact

        rows = [
            {"run": run.name, "state": str(self._states[run.name]), "workspace": str(run.workspace)}
            for run in self._plan.runs
        ]
        with suppress(Exception):
            create_table_artifact(rows, key=artifact_key(self._plan.folder, "sweep"))
