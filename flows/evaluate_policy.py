"""The flow `evaluate-policy`: `wingspan evaluate` as a Prefect deployment."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from prefect import flow
from prefect.runtime import flow_run

from agents.settings import Settings
from flows.endings.cancelling import end_when_cancelled
from flows.endings.guardian import guard
from flows.lock import lock
from flows.orchestrator.limits import hold_slots, needed_slots
from flows.orchestrator.unfinished_runs import take_over
from tasks.evaluation.evaluate import default_folder, plan_evaluation
from tasks.evaluation.evaluate import evaluate_policy as evaluate
from tasks.evaluation.models import find_policy
from tasks.evaluation.request import PolicyEvaluation
from tasks.tracking.connection import check_tracking
from tasks.tracking.evaluations import record_evaluation

F = TypeVar("F", bound=Callable[..., object])


def _takes(settings: type[Settings]) -> Callable[[F], F]:
    """Give a function the fields of `settings` as its parameters, those that are required first."""
    fields = inspect.signature(settings).parameters.values()
    signature = inspect.Signature(sorted(fields, key=lambda field: field.default is not field.empty))

    def decorate(function: F) -> F:
        vars(function)["__signature__"] = signature
        return function

    return decorate


def _name_run() -> str:
    values = flow_run.parameters
    return f"{values['policy']} on {' and '.join(values['envs'])}"


@flow(name="evaluate-policy", flow_run_name=_name_run)
@_takes(PolicyEvaluation)
def evaluate_policy(**values: Any) -> dict[str, object]:
    """Evaluate `policy` on `envs`, as `wingspan evaluate --help` explains; returns the rates of all items.

    The record is in the folder `out`, by default one below `runs/evaluations`. Raises `WingspanError` for
    anything that a user can fix.
    """
    guard()
    with end_when_cancelled("finished episodes are kept, and this resumes"):
        evaluation = PolicyEvaluation(**values)
        if evaluation.track:
            check_tracking()
        policy = find_policy(evaluation)
        folder = evaluation.out or default_folder(policy, evaluation)
        plan = plan_evaluation(evaluation, policy, out=folder)
        with lock(folder, option="out"):
            take_over(folder, flow_run_id=flow_run.id)
            with hold_slots(needed_slots(plan.pipeline, has_trainer=False)):
                record = evaluate(plan, policy, out=folder, is_tracked=evaluation.track)
            if evaluation.track:
                record_evaluation(record, folder)
    return record.overall.model_dump() | {"record": str(folder)}
