"""The plan of a run, checked before anything expensive starts."""

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agents.huggingface import hub
from agents.huggingface.files import find_file
from agents.prompting.images import has_vision
from agents.samplers.vllm import find_python
from envs.cores import count_cores
from envs.errors import ConfigError
from envs.files import check_writable, read_path
from envs.redaction import redact
from envs.registry import Split
from flows.lineage.stages import (
    LOCK_FILE,
    IfChanged,
    Stage,
    check_inputs,
    check_resume,
    declared_stages,
    default_workspace,
    has_inputs,
    workspace_of,
)
from flows.lineage.versioning import check_lock, check_yaml
from flows.orchestrator.runs import check_server
from tasks.cluster.address import check_ray_address, cluster_address
from tasks.cluster.memory import check_memory
from tasks.config.capacity import checkpoint_bytes, disk_bytes, read_config, read_model_size
from tasks.config.environments import check_environments
from tasks.config.episodes import check_agent, check_reward, check_vision
from tasks.config.offline import OfflineSettings, check_offline
from tasks.config.parameters import parameters_of, read_pipeline_name
from tasks.config.pipelines import PIPELINES_FILE, Pipeline, load_pipeline
from tasks.config.prompts import check_prompts
from tasks.config.variables import trainer_variables
from tasks.data.files import check_data
from tasks.data.items import split
from tasks.data.training_files import check_episodes, read_training_files
from tasks.reporting.pages import format_count
from tasks.rollout.teacher import check_teacher
from tasks.runs.folders import is_workspace
from tasks.tracking.connection import check_tracking
from tasks.verl.config import check_pipeline
from tasks.verl.rewinds import most_checkpoints

if TYPE_CHECKING:
    from tasks.rollout.served_policy import ServedAt

SPARE_BYTES = 500_000_000
"""Disk that a run needs besides its policies: logs, trajectories, and the files of Ray and MLflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A pipeline with all its parameters, in a workspace."""

    name: str
    pipeline: Pipeline
    workspace: Path
    stages: Mapping[str, Stage]
    is_tracked: bool
    """Whether the workspace is the one that DVC tracks, with the parameters of `pipelines.yaml`."""
    overrides: Mapping[str, object] = field(default_factory=dict)
    """Overridden parameters, by dotted key."""
    if_changed: IfChanged = "refuse"
    served_at: "ServedAt | None" = None
    """Where the policy is served during training."""
    is_candidate: bool = True
    """Whether the policy may become the champion of its registered model."""


def make_plan(
    name: str,
    *,
    overrides: Mapping[str, object],
    workspace: Path | None,
    serve_policy: str | None = None,
    if_changed: IfChanged = "refuse",
    is_candidate: bool = True,
) -> Plan:
    """Load pipeline `name` with `overrides` by dotted key; what a run of it needs is not checked yet.

    `serve_policy`: `PORT` or `HOST:PORT`. Raises `ConfigError` for a pipeline, a parameter, a workspace or an
    address that cannot be.
    """
    pipeline = load_pipeline(name, overrides=dict(overrides))
    home = default_workspace(name)
    folder = read_path(workspace_of(name, overrides=overrides, workspace=workspace))
    is_home = folder.resolve() == home.resolve()
    folder = home if is_home else folder  # as dvc.lock names it
    if is_home and overrides:
        settings = ", ".join(f"{key}={value}" for key, value in overrides.items())
        raise ConfigError(
            f"{home} belongs to the parameters of pipelines.yaml, but {settings} was set; omit --workspace, "
            "or choose another folder"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"workspace {folder} is a file; give a folder or a new name")
    if not (is_home or not folder.exists() or is_workspace(folder) or not any(folder.iterdir())):
        raise ConfigError(
            f"--workspace {folder} holds files of something else; give an empty folder or a new name"
        )
    owner = read_pipeline_name(folder)
    if owner not in (None, name):
        raise ConfigError(
            f"workspace {folder} is of pipeline {owner}; give --workspace another folder, or move that one"
        )
    check_writable(folder, remedy="choose another --workspace, or make it writable")
    served_at = None
    if serve_policy is not None:
        from tasks.rollout.served_policy import ServedAt

        served_at = ServedAt.read(serve_policy)
    return Plan(
        name=name,
        pipeline=pipeline,
        workspace=folder,
        stages=declared_stages(name, pipeline=pipeline, workspace=folder),
        is_tracked=is_home,
        overrides=overrides,
        if_changed=if_changed,
        served_at=served_at,
        is_candidate=is_candidate,
    )


def check_run(plan: Plan) -> None:
    """Check the servers and the port that the run needs, then as `check_plan`, which says what is raised."""
    check_server()
    check_tracking()
    if plan.served_at is not None:
        if isinstance(plan.pipeline.train, OfflineSettings):
            raise ConfigError(
                f"--serve-policy: {plan.pipeline.train.algorithm.name} trains offline, and serves no policy; "
                "leave it out"
            )
        plan.served_at.check()
    check_plan(plan)


def check_plan(plan: Plan) -> None:
    """Raise `ConfigError` for anything that would stop the run's stages and can be checked now, and
    `MissingDependency` for requirements that are not installed."""
    pipeline, train = plan.pipeline, plan.stages["train"]
    check_pipeline(pipeline)
    check_offline(pipeline)
    check_workers(pipeline)
    check_engine(pipeline)
    if pipeline.backend.rollout == "vllm-cpu":
        find_python()
    items = check_preparation(plan, plan.stages.values())
    check_teacher(pipeline)
    check_disk(plan.workspace, pipeline)
    check_memory(pipeline)
    if has_inputs(train):  # else they are made first, and the stage checks them
        check_resume(train, if_changed=plan.if_changed, items=items, warmup=plan.stages.get("warmup"))


def check_preparation(plan: Plan, stages: Iterable[Stage]) -> Split:
    """The items of `plan`. Raises as `check_plan`, but not for what training alone needs; of `stages`, the
    files that they read must be there."""
    pipeline = plan.pipeline
    if plan.is_tracked:
        check_secrets(plan)
    check_environments(pipeline)
    check_data(pipeline.data)
    check_agent(pipeline)
    check_model(pipeline)
    check_ray_address(trainer_variables(pipeline))
    items = check_items(pipeline)
    if plan.is_tracked:
        check_lock()
        if Path(".dvc").is_dir():
            check_yaml()
    check_inputs(stages)
    return items


def check_secrets(plan: Plan) -> None:
    """Raise `ConfigError` for a parameter that holds a secret, which DVC would write into `dvc.lock`."""
    for key, value in parameters_of(plan.pipeline).items():
        if redact(text := str(value)) != text:
            raise ConfigError(
                f"{PIPELINES_FILE}: pipelines.{plan.name}.{key} holds a password or another secret, which "
                f"DVC would write into {LOCK_FILE}; put it into an environment variable and name that "
                "variable (token_from of servers, key_from of a judge or teacher), or give the parameter by "
                "--set"
            )


def check_model(pipeline: Pipeline) -> None:
    """Raise `ConfigError` unless the model is a folder with a saved model, or the name of one on the hub, and
    reads `rollout.context_length`."""
    folder = Path(pipeline.model)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise ConfigError(f"model {pipeline.model!r} is a folder without config.json; give a saved model")
        _check_context(pipeline, folder)
        return
    if not hub.is_name(pipeline.model):
        raise ConfigError(
            f"model {pipeline.model!r}: there is no such folder; give a folder in Hugging Face format, "
            "or, on backend.device cuda, a name on a model hub"
        )
    if pipeline.backend.device == "cpu":
        raise ConfigError(
            f"model {pipeline.model!r}: there is no such folder, and backend.device cpu does not use a "
            f"model hub; download it: hf download {pipeline.model} --local-dir models/{folder.name}, and set "
            f"model: models/{folder.name}"
        )
    config = find_file(pipeline.model, "config.json")
    if config is None:
        hub.check_model(pipeline.model)
        config = hub.download_config(pipeline.model)
    if config is not None:
        _check_context(pipeline, config.parent)


def _check_context(pipeline: Pipeline, folder: Path) -> None:
    text = read_config(folder)
    longest, context_length = text.get("max_position_embeddings"), pipeline.rollout.context_length
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    is_scaled = rope.get("rope_type", rope.get("type", "default")) != "default"
    reads_more = is_scaled and pipeline.backend.rollout != "vllm"  # there, verl goes by the number alone
    if isinstance(longest, int) and not reads_more and context_length > longest:
        raise ConfigError(
            f"rollout.context_length {context_length}: model {pipeline.model!r} reads {longest} tokens "
            f"(max_position_embeddings in its config.json); set it to {longest} or less"
        )


def check_workers(pipeline: Pipeline) -> None:
    """Raise `ConfigError` for more training processes than cores, unless training runs on a cluster."""
    backend, cores = pipeline.backend, count_cores()
    if backend.device == "cpu" and backend.workers > cores and not cluster_address():
        raise ConfigError(
            f"backend.workers {backend.workers}: this process may use {format_count(cores, 'core')}, and "
            "a training process keeps one busy; lower it, or name a cluster in RAY_ADDRESS"
        )


def check_engine(pipeline: Pipeline) -> None:
    """Raise `ConfigError` if vLLM cannot spread the model over the GPUs of an engine."""
    gpus = pipeline.backend.tensor_parallel
    size = read_model_size(pipeline.model) if gpus > 1 else None
    if size is not None and not size.fits_engine(gpus):
        *fewer, most = (str(count) for count in range(1, size.heads + 1) if size.fits_engine(count))
        raise ConfigError(
            f"backend.tensor_parallel {gpus}: model {pipeline.model!r} has {size.heads} attention heads and "
            f"{size.kv_heads} of keys, which vLLM spreads evenly over the GPUs of an engine; set it to "
            f"{', '.join(fewer)}{' or ' if fewer else ''}{most}"
        )


def check_items(pipeline: Pipeline) -> Split:
    """The items of `pipeline`. Raises `ConfigError` for those that cannot be loaded, rewarded or shown to the
    model, and for files of trajectories that cannot be trained on."""
    items = split(pipeline.data)
    all_items = [*items.train, *items.test]
    check_reward(pipeline.agent, all_items)
    check_vision(all_items, has_vision=has_vision(pipeline.model) is not False)
    check_prompts(pipeline, all_items)
    if isinstance(pipeline.train, OfflineSettings):
        trajectories = read_training_files(
            pipeline.train.algorithm.data,
            test_items=items.test,
            micro_batch_tokens=pipeline.train.micro_batch_tokens,
        )
        check_episodes(trajectories, pipeline.train.algorithm)
    return items


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskNeed:
    """The most disk space that a run may take, in addition to what its workspace already holds."""

    folder: Path
    """A folder on the disk in question."""
    needed_bytes: int
    free_bytes: int
    checkpoints: str
    """The largest part; empty if the size of the model is unknown."""


def find_disk_need(workspace: Path, pipeline: Pipeline) -> DiskNeed:
    """What a whole run in `workspace` needs."""
    folder = next(parent for parent in (workspace, *workspace.absolute().parents) if parent.exists())
    needed_bytes = SPARE_BYTES
    checkpoints = ""
    # On a CPU the model is a folder: do not ask the hub for a missing one.
    is_known = pipeline.backend.device == "cuda" or Path(pipeline.model).is_dir()
    size = read_model_size(pipeline.model) if is_known else None
    if size is not None:
        present = sum(file.stat().st_size for file in workspace.rglob("*") if file.is_file())
        count = most_checkpoints(pipeline.train)
        needed_bytes += max(0, disk_bytes(pipeline, size, checkpoints=count) - present)
        checkpoint = checkpoint_bytes(size, pipeline.train)
        checkpoints = f"{count} checkpoints of {checkpoint / 1e6:.0f} MB, and policies"
    free = shutil.disk_usage(folder).free
    return DiskNeed(folder=folder, needed_bytes=needed_bytes, free_bytes=free, checkpoints=checkpoints)


def check_disk(workspace: Path, pipeline: Pipeline) -> None:
    """Raise `ConfigError` if the disk of `workspace` is too full for a whole run."""
    need = find_disk_need(workspace, pipeline)
    if need.free_bytes < need.needed_bytes:
        parts = f" ({need.checkpoints})" if need.checkpoints else ""
        raise ConfigError(
            f"{need.free_bytes / 1e6:.0f} MB are free at {need.folder}, and this run may need "
            f"{need.needed_bytes / 1e6:.0f} MB{parts}; free some space"
        )
