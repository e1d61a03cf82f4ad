"""Tells DVC what a run of the flow has made, as if `dvc repro` had run the stages.

The terminal is the display's (`flows/progress.py`): nothing of DVC's is written to it.
"""

import atexit
import logging
from collections.abc import Sequence

from envs.errors import WingspanError


def commit_to_dvc(stages: Sequence[str], *, pipeline: str) -> None:
    """Record the outputs of `stages` of `pipeline` in `dvc.lock` and DVC's cache.

    A pipeline that `dvc.yaml` does not list, or a folder that is no DVC repository, has nothing to
    record. Raises `WingspanError` if DVC cannot do it; the outputs themselves are not touched.
    """
    import colorama
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo

    # DVC's import wraps the standard streams, which are the display's now, and resets their colours at exit.
    colorama.deinit()
    atexit.unregister(colorama.initialise.reset_all)
    # After its import, which sets them. Above ERROR, both packages draw no progress bars on a terminal
    # either (`dvc.progress.Tqdm`); what goes wrong is raised, and said below.
    for package in ("dvc", "dvc_data"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
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
                f"DVC did not record this run ({' '.join(str(error).split())}); fix that, then run "
                "`dvc commit`"
            ) from error
