"""`wingspan plan`: the checks that a run makes before it starts, and which of its stages would run, and why.

Reads the receipts of finished stages from Prefect's local folder, and `dvc.lock`; starts no server, and
changes nothing but that the folder PREFECT_HOME is made. If Prefect stores results elsewhere, stages that
`dvc.lock` does not have are shown as not run.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError, list_names
from envs.redaction import redact_values
from flows.lineage.lock_file import find_locked_changes, locked_receipt
from flows.lineage.stages import (
    LOCK_FILE,
    Stage,
    cache_key,
    find_difference,
    hash_deps,
    lookup,
    stage_key,
    would_resume,
)
from flows.orchestrator.runs import open_local_results, read_receipt
from flows.plan import Plan, check_run, make_plan
from tasks.cluster.memory import find_memory_needs
from tasks.config.offline import OfflineSettings
from tasks.config.parameters import differing_values, flat, group_leaves
from tasks.reporting.pages import format_count
from tasks.runs.folders import relative_within
from tasks.tracking.lineage_record import LINEAGE, LineageRecord, read_lineage
from tasks.verl import checkpoints

COLUMNS = ("stage", "would", "why")
OPTION_COLUMNS = ("stage", "block", "options")
MEMORY_COLUMNS = ("memory", "about", "of it")
_MAX_CHANGES = 3
"""Changed files and parameters that a line names."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a run would do with a stage."""

    stage: str
    runs: bool
    reason: str

    @property
    def row(self) -> Sequence[str]:
        """The row's cells, by `COLUMNS`."""
        return (self.stage, "run" if self.runs else "skip", self.reason)


def preview(
    name: str, *, overrides: Mapping[str, object], workspace: Path | None
) -> tuple[Plan, list[Forecast]]:
    """The plan of a run, checked, and what would happen to its stages. Raises as `make_plan` and
    `check_plan` do."""
    plan = make_plan(name, overrides=overrides, workspace=workspace)
    check_run(plan)
    return plan, forecast_stages(plan)


def forecast_stages(plan: Plan) -> list[Forecast]:
    """What would happen to each stage of `plan`."""
    forecasts: list[Forecast] = []
    for stage in plan.stages.values():
        forecasts.append(_forecast(plan, stage, earlier=forecasts))
    return forecasts


def list_options(plan: Plan, forecasts: Sequence[Forecast]) -> list[tuple[str, str, str]]:
    """The parameters of the stages that would run: (stage, block, `key: value, …`), by `OPTION_COLUMNS`.

    Each block stands with the first stage that depends on it; parameters without a value are left out.
    """
    rows: list[tuple[str, str, str]] = []
    for forecast in forecasts:
        if not forecast.runs:
            continue
        params = plan.pipeline.model_dump(mode="json", include=set(plan.stages[forecast.stage].params))
        for block, values in group_leaves(redact_values(params)).items():
            options = ", ".join(f"{key}: {value}" for key, value in values.items() if value is not None)
            if options and block not in [name for _, name, _ in rows]:
                rows.append((forecast.stage, block, options))
    return rows


def list_memory(plan: Plan) -> list[tuple[str, str, str]]:
    """What each device needs while the policy is trained, by `MEMORY_COLUMNS`; empty if the size of the model
    is unknown."""
    return [
        (
            f"{need.phase}, {need.room_name}",
            f"{need.total / 1e9:.1f} GB" + (f" of {need.room / 1e9:.1f}" if need.room else ""),
            ", ".join(f"{name} {count / 1e9:.1f}" for name, count in need.largest_parts),
        )
        for need in find_memory_needs(plan.pipeline)
    ]


def list_notes(plan: Plan) -> list[str]:
    """What the settings of the training ask for and its number of steps does not reach, one line each."""
    pipeline, train = plan.pipeline, plan.pipeline.train
    last = train.steps
    if isinstance(train, OfflineSettings):  # a round samples at its first step
        last += 1 - train.steps_per_round
    named_horizons = {"horizon": pipeline.horizon} | {
        f"data.parts.{name}.horizon": part.horizon
        for name, part in pipeline.data.parts.items()
        if part.horizon is not None
    }
    notes = [
        f"{key}: training ends at {format_count(turns, 'turn')} of {horizon.max_turns[-1]}; train.steps is "
        f"{train.steps}"
        for key, horizon in named_horizons.items()
        if (turns := horizon.highest_within(last)) < horizon.max_turns[-1]
    ]
    window = train.watch.window
    if window > train.steps and not isinstance(train, OfflineSettings):
        notes.append(f"train.watch.window {window}: train.steps is {train.steps}, so that nothing is watched")
    return notes


def _forecast(plan: Plan, stage: Stage, *, earlier: Sequence[Forecast]) -> Forecast:
    first = next((forecast.stage for forecast in earlier if forecast.runs), None)
    if first is not None:
        return Forecast(stage.name, True, f"it comes after {first}, which would run")
    receipt = read_receipt(open_local_results(), cache_key(stage, stage_key(stage)))
    reason = find_difference(stage, receipt) if receipt is not None else None
    if receipt is not None and reason is None:
        return Forecast(stage.name, False, "finished on the same code, parameters and inputs")
    locked = locked_receipt(stage, name=plan.name) if plan.is_tracked else None
    locked_difference = find_difference(stage, locked) if locked is not None else None
    if locked is not None and locked_difference is None:
        return Forecast(stage.name, False, f"up to date, as recorded in {LOCK_FILE}")
    reason = reason or _resumption(plan, stage)
    if reason is None and not any(out.exists() for out in stage.outs):
        reason = "it has not run in this workspace"
    return Forecast(stage.name, True, reason or locked_difference or _explain_no_receipt(plan, stage))


def _explain_no_receipt(plan: Plan, stage: Stage) -> str:
    """Why nothing says that `stage` has run on its present inputs, though outputs of it are there."""
    try:
        lineage = read_lineage(plan.workspace / LINEAGE)
    except ConfigError:  # no record, or one of another version
        lineage = None
    if lineage is not None and stage.name in lineage.stages:
        has_changed = lineage.stages[stage.name].key != stage_key(stage)
        changes = _find_changes(stage, lineage)
    else:
        changes = list(find_locked_changes(stage, name=plan.name)) if plan.is_tracked else []
        has_changed = bool(changes)
    if not has_changed:
        return "its outputs are not of a finished run here: PREFECT_HOME has no receipt of one"
    return f"changed since it ran: {list_names(changes, limit=_MAX_CHANGES) if changes else 'its inputs'}"


def _find_changes(stage: Stage, lineage: LineageRecord) -> list[str]:
    """How `stage` differs from its record in `lineage`: parameters by dotted key, files, folders.

    Parameters are those of the last run in the workspace, which may have stopped before this stage.
    """
    record = lineage.stages[stage.name]
    params = {}
    for key in record.params:
        with suppress(KeyError, TypeError):  # the last run may be of another version
            params[key] = lookup(lineage.parameters, key)
    differing_params = differing_values(dict(flat(params, sep=".")), dict(flat(stage.params, sep=".")))
    differing_reads = differing_values(
        _relative_to(Path(lineage.workspace), record.reads), _relative_to(stage.workspace, hash_deps(stage))
    )
    return [*(key.removeprefix(".") for key in differing_params), *differing_reads]


def _relative_to(workspace: Path, hashes: Mapping[str, str]) -> dict[str, str]:
    return {str(relative_within(Path(path), workspace)): md5 for path, md5 in hashes.items()}


def _resumption(plan: Plan, stage: Stage) -> str | None:
    """Where interrupted training would resume; None if it would start over, and for other stages."""
    if not would_resume(stage, if_changed=plan.if_changed):
        return None
    steps = checkpoints.complete_steps(stage.workspace / "train" / "checkpoints")
    return f"it resumes after step {steps[-1]}" if steps else "it was stopped before its first checkpoint"
