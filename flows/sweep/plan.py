"""Plans a sweep: its runs by name, which of them are finished, and the checks before any starts.

A sweep trains one pipeline once for each variant and each seed. A variant is a name with parameters by dotted
key. Every run is a `wingspan run` in a workspace of its own, which is named after them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from envs.cores import count_cores
from envs.errors import ConfigError
from envs.files import check_writable, read_path
from flows.lineage.stages import IfChanged
from flows.plan import Plan, check_run, find_disk_need, make_plan
from flows.program import to_options
from tasks.cluster.address import cluster_address
from tasks.cluster.memory import Need, find_memory_needs
from tasks.config.parameters import differing_values, parameters_of
from tasks.config.pipelines import Pipeline, find_replaced, load_pipeline
from tasks.data.hashes import text_md5
from tasks.data.items import evaluation_way, split
from tasks.evaluation.outcomes import EVALUATION
from tasks.reporting.comparison.sides import check_same_items, same_data_remedy
from tasks.reporting.pages import format_count
from tasks.runs.folders import RUNS
from tasks.runs.parameters import read_parameters
from tasks.tracking.record import is_recorded, read_record

SWEEPS = RUNS / "sweeps"
MAX_VALUE = 32
"""Characters of a value in a name; the hash of a longer one is used instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    """`VARIANT-seedN`, also that of its workspace."""
    overrides: Mapping[str, object]
    """Parameters by dotted key, the seed among them."""
    pipeline: Pipeline
    workspace: Path
    is_finished: bool
    """The run has finished with these parameters, and is recorded in MLflow."""
    if_changed: IfChanged

    def arguments(self, pipeline_name: str) -> list[str]:
        """The arguments of `wingspan`. The sweep decides about the champion, when all are there."""
        options = (*to_options(self.overrides), "--if-changed", self.if_changed)
        return ["run", pipeline_name, *options, "--workspace", str(self.workspace), "--no-promote"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """A sweep that has passed all checks."""

    name: str
    """The name of the pipeline."""
    runs: Sequence[SweepRun]
    at_once: int
    folder: Path

    @property
    def unfinished(self) -> list[SweepRun]:
        """The runs that have not finished."""
        return [run for run in self.runs if not run.is_finished]


def plan_sweep(
    name: str,
    *,
    seeds: Sequence[int] | None,
    axes: Mapping[str, Sequence[object]],
    settings: Mapping[str, object],
    at_once: int = 1,
    folder: Path | None = None,
    if_changed: IfChanged = "refuse",
) -> SweepPlan:
    """Plan a run of pipeline `name` for each seed and each combination of values of `axes`, by dotted key.

    `settings`: parameters of all runs; without `seeds`, the pipeline's own; `if_changed`: that of each run.
    Raises as `plan_variants` does.
    """
    for key, values in axes.items():
        if key == "seed":
            raise ConfigError("a sweep varies seeds by --seeds, not by --vary seed; e.g. --seeds 0,1,2")
        if not values:
            raise ConfigError(f"--vary {key} has no values; e.g. --vary train.lr=1e-3,1e-4")
    if not axes and seeds is None:
        raise ConfigError("nothing varies; give --seeds, or --vary KEY=A,B, or both")
    return plan_variants(
        name,
        variants=_variants(name, axes),
        seeds=seeds,
        settings=settings,
        at_once=at_once,
        folder=folder,
        if_changed=if_changed,
    )


def plan_variants(
    name: str,
    *,
    variants: Mapping[str, Mapping[str, object]],
    seeds: Sequence[int] | None,
    settings: Mapping[str, object],
    at_once: int = 1,
    folder: Path | None = None,
    if_changed: IfChanged = "refuse",
) -> SweepPlan:
    """Plan a run of pipeline `name` for each seed and each of the named `variants`.

    Raises `ConfigError` for combinations that are the same, for runs that could not be compared, for more
    `at_once` than fit this machine, for a workspace that holds another run, and for what refuses one of the
    runs by itself; `MissingDependency` as a run does.
    """
    if "seed" in settings:
        raise ConfigError("--set seed: a sweep has its seeds from --seeds, e.g. --seeds 0,1,2")
    for variant in variants.values():
        if repeated_keys := settings.keys() & variant.keys():
            raise ConfigError(f"--set {min(repeated_keys)}: the sweep varies it; leave it out")
        if replaced := find_replaced([*settings, *variant]):
            key, block = replaced
            raise ConfigError(
                f"{key}: the sweep then sets the whole block {block}, which replaces it; give it within the "
                f"values of {block}, or --vary {key} after --vary {block}"
            )
    if seeds is not None and not seeds:
        raise ConfigError("--seeds is empty; e.g. --seeds 0,1,2")
    folder = read_path(folder or SWEEPS / name)
    own_seed = load_pipeline(name).seed
    runs = [
        _make_run(
            name,
            run_name=f"{variant}-seed{seed}",
            overrides={**settings, **overrides, "seed": seed},
            folder=folder,
            if_changed=if_changed,
        )
        for seed, (variant, overrides) in product([own_seed] if seeds is None else seeds, variants.items())
    ]
    _check_distinct(runs)
    if len(runs) < 2:
        raise ConfigError(f"a sweep of one run: wingspan run {name} does that; give more seeds or values")
    _check_comparable(runs)
    check_writable(folder, remedy="give the sweep another --folder, or make it writable")
    plan = SweepPlan(name=name, runs=runs, at_once=at_once, folder=folder)
    _check_at_once(plan)
    for run in plan.unfinished:
        check_run(plan_run(plan, run))
    _check_disk(plan)
    return plan


def plan_run(plan: SweepPlan, run: SweepRun) -> Plan:
    """The plan of one run of the sweep."""
    return make_plan(
        plan.name,
        overrides=run.overrides,
        workspace=run.workspace,
        if_changed=run.if_changed,
        is_candidate=False,
    )


def largest_memory_need(plan: SweepPlan) -> Need | None:
    """The most that one run needs on a device; None if the sizes of all models are unknown."""
    needs = [need for run in plan.runs for need in find_memory_needs(run.pipeline)]
    return max(needs, key=lambda need: need.total, default=None)


def _variants(name: str, axes: Mapping[str, Sequence[object]]) -> dict[str, dict[str, object]]:
    """The overrides of all combinations, named by key and value; a key is shortened to its last part if that
    is enough."""
    if not axes:
        return {name: {}}
    short_names = [key.rpartition(".")[2] for key in axes]
    labels = [
        short_name if short_names.count(short_name) == 1 else key
        for key, short_name in zip(axes, short_names, strict=True)
    ]
    variants: dict[str, dict[str, object]] = {}
    for values in product(*axes.values()):
        parts = [f"{label}={_format_value(value)}" for label, value in zip(labels, values, strict=True)]
        variant = ",".join(parts)
        if variant in variants:
            raise ConfigError(f"the sweep has {variant} twice; name each value once")
        variants[variant] = dict(zip(axes, values, strict=True))
    return variants


def _format_value(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    if re.fullmatch(rf"[\w.+-]{{1,{MAX_VALUE}}}", text):
        return text
    return text_md5(text)[:8]


def _make_run(
    name: str, *, run_name: str, overrides: Mapping[str, object], folder: Path, if_changed: IfChanged
) -> SweepRun:
    """Raises `ConfigError` for a workspace in which a run of other parameters has finished."""
    workspace = read_path(folder / run_name)
    pipeline = load_pipeline(name, overrides=dict(overrides))
    has_evaluation = (workspace / EVALUATION).exists()
    is_finished = is_recorded(workspace, pipeline=pipeline) and has_evaluation
    if not is_finished and read_record(workspace).get("finished"):
        keys = list(differing_values(parameters_of(pipeline), read_parameters(workspace)))
        if keys or not has_evaluation:  # else it is recorded elsewhere, and this sweep records it here
            raise ConfigError(
                f"{workspace} holds a finished run with another {', '.join(keys[:4]) or 'evaluation'}; "
                "give another --folder, or remove it"
            )
    return SweepRun(
        name=run_name,
        overrides=overrides,
        pipeline=pipeline,
        workspace=workspace,
        is_finished=is_finished,
        if_changed=if_changed,
    )


def _check_distinct(runs: Sequence[SweepRun]) -> None:
    first_runs: dict[str, SweepRun] = {}
    for run in runs:
        first = first_runs.setdefault(run.pipeline.model_dump_json(), run)
        if first is not run:
            names = run.name if first.name == run.name else f"{first.name} and {run.name}"
            raise ConfigError(f"the sweep has the same parameters twice: {names}; name each combination once")


def _check_comparable(runs: Sequence[SweepRun]) -> None:
    """Raise `ConfigError` for what `wingspan compare` would refuse when all is trained."""
    first = runs[0]
    first_items = None
    for run in runs[1:]:
        ours, theirs = evaluation_way(first.pipeline), evaluation_way(run.pipeline)
        for key in ours:
            if ours[key] != theirs[key]:
                raise ConfigError(
                    f"{first.name} and {run.name} could not be compared: their {key} is {ours[key]} and "
                    f"{theirs[key]}; set it for all (--set {key}=…)"
                )
        if run.pipeline.data != first.pipeline.data:
            first_items = first_items or _test_items(first)
            remedy = same_data_remedy(parameters_of(first.pipeline), parameters_of(run.pipeline))
            check_same_items(first_items, _test_items(run), names=(first.name, run.name), remedy=remedy)


def _test_items(run: SweepRun) -> dict[str, object]:
    return {item.item_id: item for item in split(run.pipeline.data).test}


def _check_at_once(plan: SweepPlan) -> None:
    """Raise `ConfigError` if this machine lacks the cores or the memory for that many runs, or if they use
    GPUs. The largest needs count, so it does not matter which runs work at the same time."""
    count = min(plan.at_once, len(plan.runs))
    if count == 1:
        return
    if any(run.pipeline.backend.device != "cpu" for run in plan.runs) or cluster_address():
        raise ConfigError(
            f"--at-once {plan.at_once}: runs on GPUs or on a cluster take all that they find; leave it out"
        )
    workers, cores = max(run.pipeline.backend.workers for run in plan.runs), count_cores()
    if count * workers > cores:
        raise ConfigError(
            f"--at-once {plan.at_once}: {count} runs have {count * workers} training processes, each of "
            f"which keeps a core busy, and this process may use {format_count(cores, 'core')}; at most "
            f"{max(1, cores // workers)}"
        )
    largest = largest_memory_need(plan)
    if largest is not None and count * largest.total > largest.room:
        raise ConfigError(
            f"--at-once {plan.at_once}: {count} runs need {count * largest.total / 1e9:.1f} GB, and this "
            f"machine has {largest.room / 1e9:.1f}; at most {max(1, largest.room // largest.total)}"
        )


def _check_disk(plan: SweepPlan) -> None:
    """Raise `ConfigError` if the disk has no room for all unfinished runs."""
    needs = [find_disk_need(run.workspace, run.pipeline) for run in plan.unfinished]
    needed_bytes = sum(need.needed_bytes for need in needs)
    if needs and needed_bytes > needs[0].free_bytes:
        raise ConfigError(
            f"{needs[0].free_bytes / 1e9:.1f} GB are free at {needs[0].folder}, and "
            f"{format_count(len(needs), 'run')} may need {needed_bytes / 1e9:.1f}; free some space, or "
            "give a --folder elsewhere"
        )
