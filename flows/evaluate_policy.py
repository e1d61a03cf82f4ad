"""The flow `evaluate-policy`: `wingspan evaluate` as a Prefect deployment."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.endings.guardian import guard
from tasks.evaluation.evaluate import default_folder
from tasks.evaluation.evaluate import evaluate_policy as evaluate
from tasks.evaluation.models import find_policy
from tasks.evaluation.request import EvaluationRequest
from tasks.tracking.evaluations import record_evaluation


@flow(name="evaluate-policy", flow_run_name="{policy} on {envs}")
def evaluate_policy(
    policy: str,
    envs: list[str],
    step: int | None = None,
    where: dict[str, list[str | int | float]] | None = None,
    split: str = "test",
    items: int | None = None,
    samples: int = 1,
    ks: list[int] | None = None,
    temperature: float | None = None,
    max_turns: int | None = None,
    seed: int | None = None,
    format: str | None = None,
    pipeline: str | None = None,
    overrides: dict[str, Any] | None = None,
    model: str | None = None,
    api_key_from: str | None = None,
    out: str | None = None,
    track: bool = False,
) -> dict[str, Any]:
    """Evaluate `policy` on `envs`, as `wingspan evaluate --help` explains; returns the rates of all items.

    The record is in the folder `out`, by default one below `runs/evaluations`. Raises `WingspanError` for
    anything that a user can fix.
    """
    guard()
    request = EvaluationRequest(
        envs=tuple(envs),
        where=where or {},
        split=split,
        items=items,
        samples=samples,
        ks=None if ks is None else tuple(ks),
        temperature=temperature,
        max_turns=max_turns,
        seed=seed,
        format=format,
        pipeline=pipeline,
        overrides=overrides or {},
    )
    evaluated_policy = find_policy(policy, step=step, model=model, api_key_from=api_key_from)
    folder = Path(out) if out else default_folder(evaluated_policy, request)
    record = evaluate(request, evaluated_policy, out=folder)
    if track:
        record_evaluation(record, folder)
    return record.overall.model_dump() | {"record": str(folder)}
