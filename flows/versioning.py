"""Tells DVC what a run of the flow has made, as if `dvc repro` had run the stages."""

import logging
from collections.abc import Sequence
from pathlib import Path

from envs.errors import WingspanError
from envs.files import write_atomically
from tasks.settings import Pipeline

WARMUP = "warmup"
"""Every pipeline has this stage in `dvc.yaml`, which knows no conditions; in the flow, not every one has."""


def write_no_warmup(workspace: Path, *, model: str) -> None:
    """Write the output that DVC expects of the stage `warmup`, for a pipeline that has none."""
    write_atomically(workspace / WARMUP / "none.txt", f"no warm-up: training starts from {model}\n")


def commit_to_dvc(stages: Sequence[str], *, name: str, pipeline: Pipeline, workspace: Path) -> None:
    """Record the outputs of `stages` of `pipeline`, called `name`, in `dvc.lock` and DVC's cache.

    A pipeline that `dvc.yaml` does not list, or a folder that is no DVC repository, has nothing to
    record. Raises `WingspanError` if DVC cannot do it; the outputs themselves are not touched.
    """
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    logging.getLogger("dvc").setLevel(logging.ERROR)  # after its import, which sets it
    try:
        repo = Repo(".")
    except NotDvcRepoError:
        return
    with repo:
        known = {stage.addressing for stage in repo.index.stages}
        if pipeline.warmup is None and f"{WARMUP}@{name}" in known:
            write_no_warmup(workspace, model=pipeline.model)
            stages = [WARMUP, *stages]
        targets = [address for stage in stages if (address := f"{stage}@{name}") in known]
        try:
            for target in targets:
                repo.commit(target, force=True)
        except DvcException as error:
            raise WingspanError(
                f"DVC did not record this run ({' '.join(str(error).split())}); mend that, then `dvc commit`"
            ) from error
