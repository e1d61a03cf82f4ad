"""The cost of a run in time and disk space, for `wingspan plan`; memory is in `preview.py`. The time is that
of finished runs of the same pipeline, on any machine: those whose parameters differ least, apart from the
seed and the number of steps. Training is scaled by its steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from envs.errors import ConfigError, list_names
from flows.lineage.stages import would_resume
from flows.plan import Plan, find_disk_need
from tasks.config.parameters import differing_values, parameters_of, read_pipeline_name
from tasks.evaluation.outcomes import EVALUATION
from tasks.reporting.pages import duration, format_count
from tasks.reporting.results import read_stage_seconds
from tasks.runs.folders import RUNS, find_runs
from tasks.runs.parameters import read_parameters
from tasks.runs.steps import read_steps
from tasks.verl import checkpoints

COST_COLUMNS = ("cost", "about", "of it")
SCALED = ("seed", "description", "train.steps", "train.steps_per_round")
"""Parameters in which an earlier run may differ: training is scaled by its steps."""
_MAX_NAMES = 4
"""Runs and parameters that a line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRun:
    """A finished run of the same pipeline."""

    folder: Path
    seconds: Mapping[str, float]
    """The seconds by stage."""
    step_s: float
    """The seconds of one training step, evaluations and start-up not included."""
    steps: int
    differing: Sequence[str]
    """Parameters that differ from the planned run's, but for `SCALED`."""

    def stage_seconds(self, stage: str, *, steps: int) -> float:
        """Seconds that the stage would take; training, for `steps` steps."""
        seconds = self.seconds.get(stage, 0.0)
        if stage != "train":
            return seconds
        return max(0.0, seconds - self.step_s * self.steps) + self.step_s * steps


def list_costs(plan: Plan, stages: Sequence[str]) -> list[tuple[str, str, str]]:
    """Time and disk of a run of `stages`, at least one, by `COST_COLUMNS`."""
    need = find_disk_need(plan.workspace, plan.pipeline)
    disk = f"{need.needed_bytes / 1e9:.1f} GB of {need.free_bytes / 1e9:.1f} free"
    return [_time(plan, stages), ("disk", disk, need.checkpoints or "the size of the model is unknown")]


def find_earlier_runs(plan: Plan) -> list[EarlierRun]:
    """The finished runs of the pipeline in `runs/` and in the plan's workspace whose parameters differ least
    from those of `plan`."""
    parameters = parameters_of(plan.pipeline)
    folders = {
        run.folder.resolve(): run.folder
        for run in find_runs([path for path in (RUNS, plan.workspace) if path.is_dir()])
        if run.file is None
    }
    runs = [
        run for folder in folders.values() if (run := _read_run(folder, plan.name, parameters)) is not None
    ]
    num_differing = min((len(run.differing) for run in runs), default=0)
    return [run for run in runs if len(run.differing) == num_differing]


def _read_run(folder: Path, pipeline: str, parameters: Mapping[str, object]) -> EarlierRun | None:
    """None for a run of another pipeline, one that is not finished, or one whose files are damaged."""
    try:
        if read_pipeline_name(folder) != pipeline:
            return None
        earlier_parameters = read_parameters(folder)
        seconds = read_stage_seconds(folder)
        steps = read_steps(folder)
    except ConfigError:
        return None
    if not earlier_parameters or not steps or not (folder / EVALUATION).exists() or "train" not in seconds:
        return None
    return EarlierRun(
        folder=folder,
        seconds=seconds,
        step_s=sum(step.get("seconds", 0.0) for step in steps) / len(steps),
        steps=len(steps),
        differing=[key for key in differing_values(parameters, earlier_parameters) if key not in SCALED],
    )


def estimate_seconds(
    plan: Plan, stages: Sequence[str], *, earlier_runs: Sequence[EarlierRun]
) -> dict[str, float]:
    """Seconds by stage of a run of `stages`, at least one: the medians of `earlier_runs`, at least one."""
    steps = _steps_to_come(plan, stages)
    return {stage: median(run.stage_seconds(stage, steps=steps) for run in earlier_runs) for stage in stages}


def name_sources(earlier_runs: Sequence[EarlierRun]) -> str:
    """`as in runs/a, runs/b, with another train.lr`: what an estimate is made from."""
    folders = dict.fromkeys(str(run.folder) for run in earlier_runs)
    source = f"as in {list_names([*folders], limit=_MAX_NAMES)}"
    if differing := dict.fromkeys(key for run in earlier_runs for key in run.differing):
        source += f", with another {list_names([*differing], limit=_MAX_NAMES)}"
    return source


def unknown_time(pipeline_name: str) -> tuple[str, str, str]:
    """The row of `COST_COLUMNS` without an earlier run."""
    return "time", "unknown", f"no finished run of {pipeline_name} in {RUNS}"


def _time(plan: Plan, stages: Sequence[str]) -> tuple[str, str, str]:
    runs = find_earlier_runs(plan)
    if not runs:
        return unknown_time(plan.name)
    seconds = estimate_seconds(plan, stages, earlier_runs=runs)
    largest = sorted(seconds.items(), key=lambda pair: -pair[1])
    steps = format_count(_steps_to_come(plan, stages), "step")
    training = f" ({steps} of {median(run.step_s for run in runs):.1f} s)"
    parts = [
        f"{stage} {duration(value)}" + (training if stage == "train" else "")
        for stage, value in largest
        if value >= 1
    ]
    return "time", duration(sum(seconds.values())), f"{', '.join(parts)}; {name_sources(runs)}"


def _steps_to_come(plan: Plan, stages: Sequence[str]) -> int:
    """Training steps after the last checkpoint, if training would resume there."""
    complete_steps: list[int] = []
    if stages[0] == "train" and would_resume(plan.stages["train"], if_changed=plan.if_changed):
        complete_steps = checkpoints.complete_steps(plan.workspace / "train" / "checkpoints")
    return plan.pipeline.train.steps - (complete_steps[-1] if complete_steps else 0)
