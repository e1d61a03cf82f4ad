"""Descriptions, tags and parameters of an MLflow run and of its rounds."""

import getpass
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from envs.redaction import redact_values
from tasks.config.offline import OfflineSettings
from tasks.config.parameters import read_changes
from tasks.config.pipelines import Pipeline
from tasks.data.items import evaluation_way
from tasks.evaluation.outcomes import POLICIES, Evaluation
from tasks.runs.rounds import explain_unchanged
from tasks.runs.steps import read_steps

SCORES = {
    "success": ("after", "sampled"),
    "success_greedy": ("after", "greedy"),
    "success_before": ("before", "sampled"),
}
"""Tag of a registered version → policy and mode in `evaluation.json`."""
RUN_TAGS = ("git.commit", "git.dirty", "md5.data/test.jsonl")
"""Tags of the run that its registered version gets, too."""
UNCHANGED = "unchanged"
"""Tag of a registered version whose training did not change the policy: why."""


def source_tags(name: str) -> dict[str, str]:
    """Tags of a run of pipeline `name`, those of MLflow's columns "Source" and "Created by" among them."""
    return {
        "pipeline": name,
        "mlflow.user": _user(),
        "mlflow.source.name": f"wingspan run {name}",
        "mlflow.source.type": "LOCAL",
    }


def description(pipeline: Pipeline, *, name: str, workspace: Path) -> str:
    """Markdown: model, environments and algorithm, and the parameters that differ from `pipelines.yaml`."""
    train, rollout = pipeline.train, pipeline.rollout
    batch = f"{rollout.items_per_step} items, {rollout.group_size} samples each"
    if isinstance(train, OfflineSettings):
        batch = f"{train.algorithm.batch_size} {'pairs' if train.algorithm.needs_groups else 'conversations'}"
    lines = [
        f"`{pipeline.model}` trained on {' and '.join(pipeline.data.envs)} by {train.algorithm.name}: "
        f"{train.steps} steps of {batch}. Workspace: `{workspace}`."
    ]
    changes = redact_values(read_changes(workspace))
    if changes:
        lines.append(f"\nParameters that differ from `{name}` in `pipelines.yaml`:\n")
        lines += [f"- `{key}`: {before} → {after}" for key, (before, after) in changes.items()]
    return "\n".join(lines)


def origins(tags: Mapping[str, str]) -> str:
    """Markdown: code and data of a run, by its tags; the code with a link where the repository has one."""
    parts = []
    if "git.commit" in tags:
        code = f"`{tags['git.commit'][:10]}`"
        code = f"[{code}]({tags['git.url']})" if "git.url" in tags else code
        changes = {
            "true": " and uncommitted changes",
            "unknown": " (Git did not say whether there were uncommitted changes)",
        }
        parts.append(f"Code: commit {code}{changes.get(tags.get('git.dirty', ''), '')}.")
    parts += [
        f"`{name}`: MD5 `{tags[f'md5.{name}']}`."
        for name in ("data/train.jsonl", "data/test.jsonl")
        if f"md5.{name}" in tags
    ]
    return " ".join(parts)


def result(evaluation: Evaluation) -> str:
    """A sentence: success on the test split, before and after."""
    rates = [evaluation[policy]["sampled"].get("success") for policy in POLICIES]
    before, after = ("unknown" if rate is None else f"{rate:.1%}" for rate in rates)
    return f"Success on the test split: {before} before, {after} after training."


def version_tags(
    pipeline: Pipeline, *, workspace: Path, evaluation: Evaluation, run_tags: Mapping[str, str]
) -> dict[str, str]:
    """Tags of the registered version: what it scored, how that was measured, and what it came from."""
    tags = {
        "base_model": pipeline.model,
        "env": " + ".join(pipeline.data.envs),
        "workspace": str(workspace),
        "seed": str(pipeline.seed),
        **{key: str(value) for key, value in evaluation_way(pipeline).items()},
    }
    steps = read_steps(workspace)
    if reason := explain_unchanged(steps):
        tags[UNCHANGED] = reason
    for key, (policy, mode) in SCORES.items():
        summary = evaluation[policy][mode]
        if "success" in summary:  # no episode counted
            tags[key] = f"{summary['success']:.4f}"
    return tags | {key: run_tags[key] for key in RUN_TAGS if key in run_tags}


def round_params(steps: Sequence[Mapping[str, object]], *, first: int, last: int) -> dict[str, str]:
    """The parameters of a round: its steps, and the schedules at its first and last step."""
    params = {"first_step": str(first), "last_step": str(last)}
    for key in ("horizon", "temperature"):
        values = [f"{step[key]:.4g}" for step in steps if key in step]
        if values:
            params[key] = " → ".join(dict.fromkeys((values[0], values[-1])))
    reasons = [f"step {step['step']}: {step['horizon_reason']}" for step in steps if "horizon_reason" in step]
    return params | ({"horizon_reason": "; ".join(reasons)} if reasons else {})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # an id without a name, as in some containers
        return str(os.getuid())
