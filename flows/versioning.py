"""Tells DVC what a run of the flow has made, as if `dvc repro` had run the stages."""

import logging
from collections.abc import Sequence

from envs.errors import WingspanError


def commit_to_dvc(stages: Sequence[str], *, pipeline: str) -> None:
    """Record the outputs of `stages` of `pipeline` in `dvc.lock` and DVC's cache.

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
        targets = [address for stage in stages if (address := f"{stage}@{pipeline}") in known]
        try:
            for target in targets:
                repo.commit(target, force=True)
        except DvcException as error:
            raise WingspanError(
                f"DVC did not record this run ({' '.join(str(error).split())}); mend that, then `dvc commit`"
            ) from error
