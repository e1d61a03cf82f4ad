"""The flow `prepare-data`: the stages of a pipeline before any training, as a Prefect deployment."""

from functools import partial
from pathlib import Path
from uuid import UUID

from prefect import flow
from prefect.runtime import flow_run

from flows.endings.cancelling import end_when_cancelled
from flows.endings.guardian import guard
from flows.endings.stopping import claim_signals, on_stop
from flows.lock import lock
from flows.orchestrator.limits import hold_slots, needed_slots
from flows.orchestrator.unfinished_runs import cancel, take_over
from flows.plan import check_preparation, make_plan
from flows.run import open_run

STAGES = ("prepare", "provision")
"""The stages of `flows.run.STAGES` that need no trainer and no policy."""


@flow(name="prepare-data", flow_run_name="{pipeline}")
def prepare_data(
    pipeline: str, overrides: dict[str, object] | None = None, workspace: str | None = None
) -> dict[str, object]:
    """Write the items of `pipeline`, and prove that its environments work: what a run of `train-agent` in the
    same workspace, with the same data, then does not repeat.

    The parameters are those of `train-agent`; what training alone needs, such as GPUs, need not be there.
    Returns the workspace and how many items there are. Raises `WingspanError` for anything that a user can
    fix; the same call then resumes where this one stopped.
    """
    guard()
    with end_when_cancelled("finished stages are kept, and this resumes"):
        plan = make_plan(
            pipeline, overrides=overrides or {}, workspace=Path(workspace) if workspace else None
        )
        items = check_preparation(plan, [plan.stages[name] for name in STAGES])
        with lock(plan.workspace), claim_signals():
            take_over(plan.workspace, flow_run_id=flow_run.id)
            on_stop(partial(cancel, UUID(str(flow_run.id))))
            slots = needed_slots(plan.pipeline, has_trainer=False)
            with hold_slots(slots), open_run(plan, stages=STAGES) as run:
                run.stage("provision", run.stage("prepare"))
        return {"workspace": str(plan.workspace), "train": len(items.train), "test": len(items.test)}
