"""Finds the run that a reference means, and its files: in its workspace, or else in MLflow.

A reference is a folder (a workspace, or anything in one: a policy, a checkpoint), the id or the name of an
MLflow run, or a model of MLflow's registry, `models:/NAME/VERSION` or `models:/NAME@ALIAS`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError, describe
from tasks.data.hashes import path_md5
from tasks.evaluation.outcomes import EVALUATION, Evaluation, read_evaluation
from tasks.runs.folders import STEPS, relative_within
from tasks.runs.steps import read_steps
from tasks.tracking.connection import EXPERIMENT, check_tracking, connect, tracking_uri
from tasks.tracking.lineage_record import LINEAGE, PATCH, LineageRecord, read_lineage
from tasks.tracking.record import find_recorded_id, read_record
from tasks.tracking.recorded_runs import WORKSPACE, state_of

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

_MODEL = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>[^/@]+)|@(?P<alias>[^/@]+))")
_REMEDY = (
    "give a run's folder, the id or the name of an MLflow run (`wingspan runs` lists them), "
    "models:/NAME/VERSION or models:/NAME@ALIAS"
)
_RUN_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What MLflow knows of a run."""

    state: str
    """The state as `tasks.tracking.recorded_runs.state_of` gives it."""
    versions: "Sequence[ModelVersion]"
    """The versions of registered models that were made from the run. `test_of` has the evaluation that
    decided on the alias of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRun:
    """A run and its files."""

    reference: str
    lineage: LineageRecord
    folder: Path
    """The folder with the run's files: its workspace, or what was downloaded from MLflow."""
    is_workspace: bool
    run_id: str | None
    """The run's id in MLflow; None if it is not recorded there."""

    @property
    def patch(self) -> Path | None:
        """The changes that were not committed; None if there is no record of them, or another."""
        file = self.folder / PATCH
        return file if file.exists() and path_md5(file) == self.lineage.patch_md5 else None

    @property
    def evaluation(self) -> Evaluation:
        """The run's `evaluation.json`. Raises `ConfigError` if it is missing or damaged."""
        file = self.folder / EVALUATION
        if not file.exists():
            raise ConfigError(
                f"{self.reference}: there is no {file}, so the run is not finished; finish it first"
            )
        return read_evaluation(self.folder)

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The run's metrics of training steps. Raises `DamagedFile`."""
        return read_steps(self.folder)


def find_run(reference: str, *, downloads: Path) -> FoundRun:
    """The run that `reference` means; files that are only in MLflow are downloaded to `downloads`.

    Raises `ConfigError` if there is none, if several runs have that name, or if its lineage is not recorded.
    """
    if reference.startswith("models:"):
        return _find_version(reference, downloads=downloads)
    path = Path(reference)
    if path.exists():
        return _find_workspace(path)
    if "/" in reference:
        raise ConfigError(f"there is no folder {reference}; {_REMEDY}")
    client = _connect()
    run = client.get_run(reference) if _is_run(client, reference) else _find_named(client, reference)
    return _of_mlflow(client, run, reference=reference, downloads=downloads)


def read_registration(run: FoundRun) -> Registration | None:
    """What MLflow knows of `run`; None if it does not have it, not any more, or with other outputs."""
    if run.run_id is None:
        return None
    from mlflow.exceptions import MlflowException

    client = _connect()
    try:
        recorded_run = client.get_run(run.run_id)
    except MlflowException:
        return None
    if not _was_written_by(recorded_run, run.lineage):
        return None
    found_versions = client.search_model_versions(f"run_id = '{run.run_id}'")
    # A search does not return aliases.
    versions = [client.get_model_version(match.name, match.version) for match in found_versions]
    return Registration(state=state_of(recorded_run), versions=versions)


def test_of(version: "ModelVersion") -> dict[str, str]:
    """The evaluation that decided on its alias: its tags `test.…`, without that prefix."""
    tags = version.tags.items()
    return {key.removeprefix("test."): value for key, value in tags if key.startswith("test.")}


def _find_workspace(path: Path) -> FoundRun:
    """The run in whose workspace `path` is."""
    start = path.resolve()
    folder = next((parent for parent in (start, *start.parents) if (parent / LINEAGE).exists()), None)
    if folder is None:
        raise ConfigError(
            f"{path}: neither it nor a folder above it has {LINEAGE}, as runs' folders have; {_REMEDY}"
        )
    workspace = relative_within(folder, Path.cwd())
    lineage = read_lineage(workspace / LINEAGE)
    return FoundRun(
        reference=str(path),
        lineage=lineage,
        folder=workspace,
        is_workspace=True,
        run_id=find_recorded_id(workspace),
    )


def _find_version(reference: str, *, downloads: Path) -> FoundRun:
    match = _MODEL.fullmatch(reference)
    if match is None:
        raise ConfigError(f"{reference!r} is not models:/NAME/VERSION or models:/NAME@ALIAS")
    from mlflow.exceptions import MlflowException

    client = _connect()
    try:
        if match["alias"]:
            version = client.get_model_version_by_alias(match["name"], match["alias"])
        else:
            version = client.get_model_version(match["name"], match["version"])
        run = client.get_run(str(version.run_id))
    except MlflowException as error:
        raise ConfigError(
            f"{reference} is not in MLflow at {tracking_uri()} ({describe(error)[:200]}); "
            f"it has: {_describe_models(client) or 'no registered model'}"
        ) from None
    return _of_mlflow(client, run, reference=reference, downloads=downloads)


def _describe_models(client: "MlflowClient") -> str:
    versions = client.search_model_versions(max_results=50)
    return ", ".join(f"models:/{version.name}/{version.version}" for version in versions)


def _is_run(client: "MlflowClient", reference: str) -> bool:
    from mlflow.exceptions import MlflowException

    if not _RUN_ID.fullmatch(reference):
        return False
    try:
        return bool(client.get_run(reference))
    except MlflowException:
        raise ConfigError(f"MLflow at {tracking_uri()} has no run {reference}; {_REMEDY}") from None


def _find_named(client: "MlflowClient", name: str) -> "Run":
    experiment = client.get_experiment_by_name(EXPERIMENT)
    quoted_name = name.replace("'", "")  # no name of a run has one that MLflow could search for
    named_runs = (
        client.search_runs(
            [experiment.experiment_id],
            filter_string=f"attributes.run_name = '{quoted_name}'",
            max_results=100,
        )
        if experiment is not None
        else []
    )
    runs = [run for run in named_runs if "mlflow.parentRunId" not in run.data.tags]
    if not runs:
        raise ConfigError(
            f"{name!r} is no folder, and MLflow at {tracking_uri()} has no run of that name; {_REMEDY}"
        )
    if len(runs) > 1:
        ids = ", ".join(f"{run.info.run_id} ({state_of(run)})" for run in runs)
        raise ConfigError(f"{len(runs)} runs are called {name!r}; give the id of one: {ids}")
    return runs[0]


def _of_mlflow(client: "MlflowClient", run: "Run", *, reference: str, downloads: Path) -> FoundRun:
    """`run`, by its workspace if that still holds it, else by its artifacts."""
    parent = run.data.tags.get("mlflow.parentRunId")
    if parent is not None:  # of a round
        run = client.get_run(parent)
    run_id = run.info.run_id
    workspace = Path(run.data.tags.get(WORKSPACE, ""))
    is_workspace = read_record(workspace).get("run_id") == run_id and _has_lineage_of(run, workspace)
    folder = workspace if is_workspace else downloads
    if not is_workspace:
        artifacts = {file.path for file in client.list_artifacts(run_id)}
        artifacts |= {file.path for file in client.list_artifacts(run_id, "train")}
        if LINEAGE not in artifacts:
            raise ConfigError(
                f"{reference}: run {run_id} has no {LINEAGE} among its artifacts, and its workspace "
                f"{workspace} does not hold it any more; its lineage was never recorded, or it did not finish"
            )
        for file in (LINEAGE, EVALUATION, STEPS):
            if file in artifacts:
                _download(client, run_id, file, target=downloads / file)
    return FoundRun(
        reference=reference,
        lineage=read_lineage(folder / LINEAGE),
        folder=folder,
        is_workspace=is_workspace,
        run_id=run_id,
    )


def _has_lineage_of(run: "Run", workspace: Path) -> bool:
    """Whether the lineage in `workspace` is still that of `run`: stages that ran there since without a
    record, as DVC runs them, have written others."""
    file = workspace / LINEAGE
    if not file.exists():
        return False
    return _was_written_by(run, read_lineage(file))


def _was_written_by(run: "Run", lineage: LineageRecord) -> bool:
    """Whether `run` wrote the outputs of `lineage`, by the hashes that it has recorded of them."""
    writes = {out: md5 for stage in lineage.stages.values() for out, md5 in stage.writes.items()}
    return all(run.data.tags.get(f"md5.{out}", md5) == md5 for out, md5 in writes.items())


def _download(client: "MlflowClient", run_id: str, file: str, *, target: Path) -> None:
    """Stores differ in whether they keep the folder of an artifact."""
    target.parent.mkdir(parents=True, exist_ok=True)
    Path(client.download_artifacts(run_id, file, str(target.parent))).replace(target)


def _connect() -> "MlflowClient":
    check_tracking()
    return connect()
