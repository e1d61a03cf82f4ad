"""`wingspan reproduce`: runs a pipeline again on the code and data of an earlier run, and compares.

The reproduction is a `wingspan run` of the commit's own code, in a worktree, whose MLflow store and Prefect
database are in the worktree, too: the run and its records are only read.
"""

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError, WingspanError, list_names
from envs.redaction import REDACTION
from envs.requirements.data_sets import RECEIPT, ROOT_VARIABLE, data_root
from flows.lineage.worktree import NAME, check_commit, check_data, make_worktree, remove_worktree
from flows.program import PROGRAM, REPRODUCTION, to_options
from flows.recorder import describe_environment
from tasks.cluster.python_path import python_path
from tasks.data.hashes import has_md5, path_md5
from tasks.reporting.reproduction import Reproduction, compare_reproduction
from tasks.runs.folders import RUNS
from tasks.runs.provenance import describe_machine, installed_packages
from tasks.tracking.lineage_record import LINEAGE, LineageRecord
from tasks.tracking.references import FoundRun, find_run

APPLICATION = "wingspan"
_INSTALLED = {"site-packages", "dist-packages"}
"""The folders of installed packages; Debian's Python has the second."""
_RECORDS = ("MLFLOW_", "PREFECT_")
"""Prefixes of the variables that name this process's stores, registries, servers and databases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproductionRequest:
    """A reproduction that has passed all checks."""

    run: FoundRun
    commit: str
    patch: Path | None
    warnings: tuple[str, ...]
    """Why its results may differ, in sentences."""

    @property
    def workspace(self) -> Path:
        """The workspace of the reproduction, in its project; not the folder that DVC tracks."""
        return RUNS / f"{self.run.lineage.pipeline}-reproduced"

    @property
    def arguments(self) -> list[str]:
        """The arguments of `wingspan`."""
        lineage = self.run.lineage
        return ["run", lineage.pipeline, *to_options(lineage.overrides), "--workspace", str(self.workspace)]


def prepare_request(reference: str, *, with_patch: bool, downloads: Path) -> ReproductionRequest:
    """Find the run that `reference` means, and check that it can be reproduced here.

    Raises `ConfigError` before anything is made.
    """
    run = find_run(reference, downloads=downloads)
    lineage = run.lineage
    _ = run.evaluation  # refuses a run that has not been evaluated
    commit = check_commit(run)
    if lineage.has_secrets:
        keys = [key for key, value in lineage.overrides.items() if REDACTION in json.dumps(value)]
        raise ConfigError(
            f"{reference}: {', '.join(keys)} held a secret, which is not recorded; run it by hand"
        )
    _check_patch(run, with_patch=with_patch)
    check_data(lineage, commit=commit)
    _check_data_sets(lineage)
    _check_outside_code(lineage)
    return ReproductionRequest(
        run=run, commit=commit, patch=run.patch if with_patch else None, warnings=tuple(_warnings(lineage))
    )


def reproduce(request: ReproductionRequest, *, folder: Path, temporary: str) -> Reproduction:
    """Run `request` in the worktree `folder` and compare; `temporary`: folder of the run's temporary files.

    Raises `WingspanError` if the run fails.
    """
    project = make_worktree(request.run, commit=request.commit, folder=folder, patch=request.patch)
    (project / RUNS).mkdir(exist_ok=True)  # Git does not have it, and Prefect makes its home without parents
    status = _run(request.arguments, project=project, temporary=temporary)
    if status != 0:
        raise WingspanError(f"the reproduction failed with status {status}; its messages are above")
    workspace = project / request.workspace
    reproduction = FoundRun(
        reference=str(workspace),
        lineage=LineageRecord.model_validate_json((workspace / LINEAGE).read_text()),
        folder=workspace,
        is_workspace=True,
        run_id=None,
    )
    return compare_reproduction(request.run, reproduction)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A path for a worktree that is removed at the end; `parent` is the command's temporary folder."""
    folder = parent / NAME
    try:
        yield folder
    finally:
        remove_worktree(folder)


def _run(arguments: list[str], *, project: Path, temporary: str) -> int:
    """Call `wingspan` with the code of `project`; returns its status."""
    process = subprocess.Popen(
        [*PROGRAM, *arguments],
        cwd=project,
        env=_environment(project, temporary=temporary),
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C is for us: its own last line would say how to resume a run that is removed
    )
    try:
        return process.wait()
    except BaseException:
        process.kill()  # its guardian ends what it has started
        process.wait()
        raise


def _environment(project: Path, *, temporary: str) -> Mapping[str, str]:
    """The environment of this process, with the code of `project`, and without anything that records outside
    of it."""
    return {
        **{key: value for key, value in os.environ.items() if not key.startswith(_RECORDS)},
        "PYTHONPATH": python_path(project),
        REPRODUCTION: "true",
        ROOT_VARIABLE: str(data_root().absolute()),
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
        "PREFECT_HOME": str(project / RUNS / ".prefect"),
        # Not ours: Ray's sockets would have too long a path below it, and the run has a guardian of its own.
        "TMPDIR": temporary,
    }


def _check_patch(run: FoundRun, *, with_patch: bool) -> None:
    files = run.lineage.code.uncommitted
    if files is None:
        raise ConfigError(
            f"{run.reference}: whether all code was committed when it ran is unknown, because Git failed; "
            "run it again where git status works"
        )
    if not files:
        if with_patch:
            raise ConfigError(
                f"--with-patch: {run.reference} was made from its commit alone; leave the option out"
            )
        return
    names = list_names(files)
    if run.patch is None:
        raise ConfigError(
            f"{run.reference} was made from changes that were not committed ({names}), and there is no patch "
            "of them; commit them and run it again"
        )
    if not with_patch:
        raise ConfigError(
            f"{run.reference} was made from changes that were not committed ({names}); --with-patch applies "
            f"them from {run.patch}"
        )


def _check_data_sets(lineage: LineageRecord) -> None:
    for env, record in lineage.environments.items():
        local_data_sets = describe_environment(env).data_sets
        for name, md5 in record.data_sets.items():
            if name in local_data_sets and local_data_sets[name] != md5:
                raise ConfigError(
                    f"data set {name} of environment {env} has other files than the run used; restore them, "
                    f"or name their folder in {ROOT_VARIABLE}"
                )


def _check_outside_code(lineage: LineageRecord) -> None:
    """Raise `ConfigError` for code outside of the project that is not here as a stage of the run read it.

    Leaves out installed packages, whose versions `_warnings` compares: a clone may have another environment.
    """
    others = {*lineage.data, *lineage.prompts}
    for name, stage in lineage.stages.items():
        for path, md5 in stage.reads.items():
            file = Path(path)
            is_of_run = file.is_relative_to(lineage.workspace) or file.name == RECEIPT
            is_installed = not _INSTALLED.isdisjoint(file.parts)
            is_left_out = path in others or is_of_run or is_installed or not file.is_absolute()
            if is_left_out or has_md5(file, md5):
                continue
            here = f"has other content (MD5 {path_md5(file)})" if file.exists() else "is not here"
            raise ConfigError(
                f"{path} {here}; stage {name} of the run read it with MD5 {md5}, and no commit of this "
                "project has it; bring that content back"
            )


def _warnings(lineage: LineageRecord) -> Iterator[str]:
    if (python := platform.python_version()) != lineage.python:
        yield f"the run was made with Python {lineage.python}, and this is {python}"
    packages = installed_packages()
    differing = [
        f"{name} {version} → {packages.get(name, 'missing')}"
        for name, version in lineage.packages.items()
        if packages.get(name) != version and name != APPLICATION
    ]
    if differing:
        yield f"{len(differing)} packages have other versions than in the run: {list_names(differing)}"
    if (machine := describe_machine()) != lineage.machine:
        yield f"the run was made on {lineage.machine}, and this is {machine}: the last bits may differ"
    if lineage.parameters["backend"]["device"] != "cpu":
        yield "on GPUs, two runs of one seed are not equal to the last bit"
    for name, record in lineage.stages.items():
        for code in record.resumed:
            files = ("unknown files",) if code.uncommitted is None else code.uncommitted
            changes = f" and changes to {list_names(files)}" if files else ""
            commit = (code.commit or "none")[:10]
            yield f"stage {name} was resumed with other code: it began with commit {commit}{changes}"
