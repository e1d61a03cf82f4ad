"""`wingspan evaluate`: any policy on any environment, with a record and a table of rates."""

from rich.console import Console

from envs.errors import WingspanError, describe
from flows.display.display import Display
from flows.display.state import StageState
from flows.display.tables import print_plain, print_table
from flows.lock import lock
from tasks.evaluation.evaluate import default_folder, evaluate_policy, plan_evaluation
from tasks.evaluation.models import find_policy
from tasks.evaluation.record import EvaluationRecord
from tasks.evaluation.request import PolicyEvaluation
from tasks.reporting.pages import DASH
from tasks.tracking.connection import check_tracking
from tasks.tracking.evaluations import record_evaluation

STAGE = "evaluate"
_COUNTS = ("items", "episodes", "failed")


def evaluate(evaluation: PolicyEvaluation, *, console: Console) -> bool:
    """Evaluate, write and show; returns whether any episode ended without an error.

    Raises as `tasks.evaluation.evaluate.plan_evaluation`, `ConfigError` if another process works in the
    folder, and `WingspanError` if MLflow cannot record it.
    """
    policy = find_policy(evaluation)
    if evaluation.track:
        check_tracking()
    folder = evaluation.out or default_folder(policy, evaluation)
    plan = plan_evaluation(evaluation, policy, out=folder)
    with lock(folder, option="--out"):
        title = f"{evaluation.policy} on {' and '.join(evaluation.envs)}"
        with Display(title, stages=[STAGE], steps={}, steps_per_round=1, console=console) as display:
            display.stage(STAGE, StageState.RUNNING)
            record = evaluate_policy(
                plan, policy, out=folder, is_tracked=evaluation.track, progress=display.progress(STAGE)
            )
            display.stage(STAGE, StageState.DONE)
        source = (
            f"pipeline {record.pipeline}"
            if record.pipeline
            else "the defaults (--pipeline NAME takes others)"
        )
        print_plain(f"agent and rollout settings: {source}", console=console)
        columns, rows = table(record)
        print_table(columns, rows, console=console, has_header=True)
        print_plain(f"record: {folder}", console=console)
        if evaluation.track:
            try:
                page = record_evaluation(record, folder)
            except Exception as error:  # whatever MLflow's client raises, the evaluation is there
                raise WingspanError(
                    f"MLflow has no record of {folder} ({describe(error)[:200]}); fix the cause and run the "
                    "command again, which only records it"
                ) from error
            print_plain(f"MLflow: {page}", console=console)
    return record.overall.episodes > 0


def table(record: EvaluationRecord) -> tuple[list[str], list[list[str]]]:
    """Header and cells: a row for all items, and one for each environment and metadata value."""
    names = list(record.overall.rates)
    rows = []
    for key, groups in record.results.items():
        if key == "env" and len(groups) == 1:
            continue
        for value, result in groups.items():
            cells = [str(getattr(result, name)) for name in _COUNTS]
            for name in names:
                rate = result.rates.get(name)
                is_share = name not in ("reward", "turns")
                cells.append(DASH if rate is None else rate.format(is_share=is_share))
            rows.append(["all" if key == "all" else f"{key} {value}", *cells])
    return ["items of", *_COUNTS, *map(_title, names)], rows


def _title(name: str) -> str:
    return name.replace("_at_", "@").replace("_hat_", "^")
