"""The kept policies of a run as MLflow's logged models, with their scores on named data sets.

The tab "Models" of the experiment is then a table of the policies of all runs, which MLflow sorts by a metric
on a data set. A policy is the start of training, the best of the rounds, or the final one; only the final one
is uploaded, the others are where their tag `path` says.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.pipelines import Pipeline
from tasks.evaluation.outcomes import EVALUATION, Summary, read_evaluation
from tasks.runs.rounds import BEST, final_step, find_best, read_rounds, round_file, start_policy
from tasks.tracking.batches import ItemFile, log_metrics, metrics_of
from tasks.tracking.names import summary_metric

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

FINAL = "final"
_RATES = re.compile(r"success.*|reward|turns|pass_.*")
"""Keys of a summary that policies are compared by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointScore:
    """Metrics of a policy on test items, as the run has them."""

    group: str
    """Prefix of the metrics, e.g. `eval/sampled`."""
    summary: Summary
    items: int
    """How many of the test split; fewer than all in a quick evaluation."""
    step: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPolicy:
    """A policy that a finished run has kept."""

    name: str
    """`start`, `best` or `final`."""
    step: int
    """Training steps that it has had."""
    path: str
    """The model's folder, or its name on a hub."""
    scores: Sequence[CheckpointScore]


def find_kept_policies(pipeline: Pipeline, workspace: Path, *, items: int) -> list[KeptPolicy]:
    """The policies of the run in `workspace`, whose test split has `items`, in the order of their steps."""
    train = workspace / "train"
    best = find_best(train)
    step_of_final = final_step(train, pipeline.train.final_policy, last=pipeline.train.steps)
    start = str(start_policy(pipeline, workspace))
    evaluation, at_ms = read_evaluation(workspace), written_ms(workspace / EVALUATION)

    def full_scores(policy: str, *, step: int) -> list[CheckpointScore]:
        return [
            CheckpointScore(group=f"eval/{mode}", summary=summary, items=items, step=step, at_ms=at_ms)
            for mode, summary in evaluation[policy].items()
        ]

    policies = [
        KeptPolicy(name="start", step=0, path=start, scores=full_scores("before", step=0)),
        KeptPolicy(
            name=FINAL,
            step=step_of_final,
            path=str(workspace / "policy"),
            scores=[*full_scores("after", step=step_of_final), *_quick_scores(train, step=step_of_final)],
        ),
    ]
    if best is not None and best.last_step != step_of_final:
        step, path = best.last_step, str(train / BEST)
        policies.append(KeptPolicy(name=BEST, step=step, path=path, scores=_quick_scores(train, step=step)))
    return sorted(policies, key=lambda policy: policy.step)


def log_policies(
    client: "MlflowClient",
    run_id: str,
    policies: Sequence[KeptPolicy],
    *,
    test: ItemFile,
    tags: Mapping[str, str],
) -> str:
    """Record the `policies` that are not recorded yet, with scores on `test` and on parts of it.

    Returns the id of the logged model of the final one.
    """
    run = client.get_run(run_id)
    models = client.search_logged_models(
        [run.info.experiment_id], filter_string=f"source_run_id = '{run_id}'"
    )
    existing_models = {model.tags.get("policy"): model for model in models}
    model_ids = {}
    for policy in policies:
        model = existing_models.get(policy.name)
        if model is not None and model.status != "READY":  # an earlier process was killed before its end
            client.delete_logged_model(model.model_id)
            model = None
        model_ids[policy.name] = (
            _log(client, run, policy, test=test, tags=tags) if model is None else model.model_id
        )
    return model_ids[FINAL]


def written_ms(file: Path) -> int:
    """When `file` was written, in milliseconds since the epoch."""
    return file.stat().st_mtime_ns // 1_000_000


def _quick_scores(train: Path, *, step: int) -> list[CheckpointScore]:
    """The quick evaluation of the round that ended with `step`, in the folder `train`."""
    for result in read_rounds(train):
        if result.last_step == step:
            items = int(sum(result.evaluation.get(key, 0) for key in ("episodes", "dropped")))
            score = CheckpointScore(
                group="eval/quick",
                summary=result.evaluation,
                items=items,
                step=step,
                at_ms=written_ms(round_file(train, result.index)),
            )
            return [score]
    return []


def _log(
    client: "MlflowClient", run: "Run", policy: KeptPolicy, *, test: ItemFile, tags: Mapping[str, str]
) -> str:
    """Returns the id of the new logged model."""
    from mlflow.entities import LoggedModelOutput, Metric

    name = re.sub(r"""[/:.%"']""", "-", run.info.run_name)  # characters that MLflow refuses
    model_id: str = client.create_logged_model(
        run.info.experiment_id,
        name=f"{name}-step-{policy.step}",
        source_run_id=run.info.run_id,
        tags={**tags, "policy": policy.name, "path": policy.path},
        params={"step": str(policy.step)},
    ).model_id
    if policy.name == FINAL:
        client.log_model_artifacts(model_id, policy.path)
    for score in policy.scores:
        is_whole = score.items == test.items
        series = metrics_of(
            {key: value for key, value in score.summary.items() if _RATES.fullmatch(key)},
            step=score.step,
            at_ms=score.at_ms,
            name=partial(summary_metric, group=score.group),
        )
        of_model = {
            "model_id": model_id,
            "dataset_name": test.name if is_whole else f"{test.name}, {score.items} items",
            "dataset_digest": test.digest,
            "run_id": run.info.run_id,
        }
        log_metrics(
            client, run.info.run_id, [Metric(m.key, m.value, m.timestamp, m.step, **of_model) for m in series]
        )
    client.log_outputs(run.info.run_id, [LoggedModelOutput(model_id, step=policy.step)])
    client.finalize_logged_model(model_id, "READY")
    return model_id
