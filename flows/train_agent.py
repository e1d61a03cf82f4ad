"""The flow: prepare → provision → warm-up → rounds of training → evaluate → report → record.

A stage is a Prefect task run, cached on the hash of its inputs (`flows/lineage/stages.py`). What it returns,
a `Receipt` of the files it wrote, is handed to the stages that read them, so Prefect draws the graph with its
edges. A round of training is two task runs. What a stage does is in `tasks/stages/`, what a run shares
between its stages in `flows/run.py`.
"""

from functools import partial
from pathlib import Path
from uuid import UUID

from prefect import flow
from prefect.runtime import flow_run

from envs.errors import ConfigError, suggest
from flows.endings.cancelling import end_when_cancelled
from flows.endings.guardian import guard
from flows.endings.stopping import claim_signals, on_stop
from flows.lineage.stages import IfChanged, Receipt, claim_checkpoints, mark_finished
from flows.lineage.versioning import write_no_warmup
from flows.lock import lock
from flows.orchestrator.limits import hold_slots, needed_slots
from flows.orchestrator.runs import orchestrate
from flows.orchestrator.unfinished_runs import cancel, take_over
from flows.plan import Plan, check_plan, check_run, make_plan
from flows.run import STAGES, Run, open_run
from tasks.evaluation.outcomes import Evaluation


@flow(name="train-agent", flow_run_name="{pipeline}")
def train_agent(
    pipeline: str,
    overrides: dict[str, object] | None = None,
    workspace: str | None = None,
    serve_policy: str | None = None,
    if_changed: IfChanged = "refuse",
    promote: bool = True,
) -> Evaluation:
    """Run `pipeline` of `pipelines.yaml`, or what is left of it, in its workspace.

    `overrides`: parameters by dotted key, e.g. `{"train.lr": 1e-3}`; such a run gets its own workspace unless
    `workspace` names one. `serve_policy`: `PORT` or `HOST:PORT` on which the policy is served with OpenAI's
    protocol during training. `if_changed`: what to do about an interrupted training in the workspace whose
    inputs have changed since. `promote`: make the policy the champion if it is better. Returns the content of
    `evaluation.json`. Raises `WingspanError` for anything that a user can fix; the same call then resumes
    where this one stopped.
    """
    guard()
    with end_when_cancelled("finished stages and checkpoints are kept, and this resumes"):
        plan = make_plan(
            pipeline,
            overrides=overrides or {},
            workspace=Path(workspace) if workspace else None,
            serve_policy=serve_policy,
            if_changed=if_changed,
            is_candidate=promote,
        )
        check_run(plan)
        with lock(plan.workspace):
            return run_plan(plan)


def run_with_prefect(plan: Plan) -> tuple[Evaluation, Exception | None]:
    """Run `plan` as `train_agent`; the caller holds the lock of its workspace. Returns and raises as
    `orchestrate` does."""

    def work(pipeline: str, overrides: dict[str, object], workspace: str) -> Evaluation:
        return run_plan(plan)

    parameters = {"pipeline": plan.name, "overrides": plan.overrides, "workspace": str(plan.workspace)}
    run_name = plan.workspace.resolve().name
    return orchestrate(work, name=train_agent.name, run_name=run_name, parameters=parameters)


def run_plan(plan: Plan) -> Evaluation:
    """Run all stages of `plan`, within a flow; the caller holds the lock of its workspace."""
    with claim_signals():
        take_over(plan.workspace, flow_run_id=flow_run.id)
        on_stop(partial(cancel, UUID(str(flow_run.id))))
        with hold_slots(needed_slots(plan.pipeline)), open_run(plan, flow_run_id=str(flow_run.id)) as run:
            items = run.stage("prepare")
            environments = run.stage("provision", items)
            start = environments
            if plan.pipeline.warmup is not None:
                start = run.stage(
                    "warmup", items, environments, meanwhile=lambda: run.training_session().prestart()
                )
            policy = train(run, items, start)
            evaluation = run.stage("evaluate", items, start, policy)
            page = run.stage("report", items, environments, policy, evaluation)
            return run.task("record", run.record, page)


def train(run: Run, *inputs: Receipt) -> Receipt:
    """Train all rounds on one trainer that stays up, then write the policy; nothing if it is up to date."""
    stage = run.plan.stages["train"]
    if run.is_finished(stage):
        return run.finish(stage, lambda: None, *inputs)
    key = run.key(stage)
    with run.working(stage, is_resumed=claim_checkpoints(stage, if_changed=run.plan.if_changed)):
        session = run.training_session()
        run.record_rounds()  # of a training that begins anew there are none, unlike in its earlier record
        after: tuple[object, ...] = inputs
        for index in range(session.num_rounds):
            name = f"round {index + 1}"
            steps = run.task(f"{name}: rollout and train", partial(session.train_round, index), after=after)
            result = run.task(f"{name}: quick evaluation", session.evaluate_round, steps)
            run.record_rounds()
            after = (result,)

        def export() -> None:
            session.export()
            session.close()
            mark_finished(stage, key)

        return run.finish(stage, export, *after)


@flow(name="stage", flow_run_name="{stage} of {pipeline}")
def run_stage(stage: str, pipeline: str) -> None:
    """Run one stage of `pipeline` in its workspace, on the files of the stages before it.

    Raises `WingspanError` for anything that a user can fix.
    """
    guard()
    if stage not in STAGES:
        raise ConfigError(f"unknown stage {stage!r}; {suggest(stage, STAGES)}there are: {', '.join(STAGES)}")
    plan = make_plan(pipeline, overrides={}, workspace=None, if_changed="restart")  # as DVC does
    check_plan(plan)
    if stage not in plan.stages:  # the warm-up of a pipeline that has none
        write_no_warmup(plan.workspace, model=plan.pipeline.model)
        return
    with lock(plan.workspace), claim_signals(), open_run(plan, stages=[stage]) as run:
        train(run) if stage == "train" else run.stage(stage)
