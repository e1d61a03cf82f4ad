"""Records a run of the flow in DVC, as if `dvc repro` had run the stages, and restores data that DVC has.

DVC prints nothing: the terminal belongs to the display (`flows/display/`).
"""

import atexit
import logging
from collections.abc import Sequence
from pathlib import Path

from envs.errors import ConfigError, WingspanError, to_line
from envs.files import write_atomically
from flows.lineage.stages import LOCK_FILE, STAGES_FILE
from tasks.config.pipelines import PIPELINES_FILE, Pipeline, read_yaml

WARMUP = "warmup"
"""In `dvc.yaml`, which knows no conditions, every pipeline has this stage; in the flow, not all have it."""


def check_lock() -> None:
    """Raise `ConfigError` for a `dvc.lock` that DVC cannot read."""
    if not LOCK_FILE.exists():
        return
    remedy = f"restore it: git checkout {LOCK_FILE}, or delete it"
    try:
        document = read_yaml(LOCK_FILE)
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from None
    if not isinstance(document, dict) or not isinstance(document.get("stages", {}), dict):
        raise ConfigError(f"{LOCK_FILE} is no list of stages with their hashes; {remedy}")


def check_yaml() -> None:
    """Raise `ConfigError` for declarations that DVC's YAML parser, stricter than others, rejects."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    for file in (PIPELINES_FILE, STAGES_FILE):
        try:
            YAML(typ="safe").load(file.read_text(encoding="utf-8"))
        except MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
            raise ConfigError(
                f"{file}{line}: DVC cannot read this ({error.problem}); write a value with a colon or a "
                "question mark on its own line, not within [] or {}"
            ) from None


def write_no_warmup(workspace: Path, *, model: str) -> None:
    """Write the output that DVC expects of the stage `warmup`, for a pipeline without one."""
    write_atomically(workspace / WARMUP / "none.txt", f"no warm-up: training starts from {model}\n")


def commit_to_dvc(stages: Sequence[str], *, name: str, pipeline: Pipeline, workspace: Path) -> None:
    """Record the outputs of `stages` of `pipeline`, called `name`, in `dvc.lock` and DVC's cache.

    Does nothing for a pipeline that `dvc.yaml` does not list, or outside of a DVC repository. Raises
    `WingspanError` if DVC fails; the outputs themselves are not touched.
    """
    _import_silently()
    from dvc.exceptions import DvcException, NotDvcRepoError
    from dvc.repo import Repo, lock_repo

    try:
        with Repo(".") as repo:
            declared = {stage.addressing: stage for stage in repo.index.stages}
            if pipeline.warmup is None and f"{WARMUP}@{name}" in declared:
                write_no_warmup(workspace, model=pipeline.model)
                stages = [WARMUP, *stages]
            to_commit = [declared[f"{stage}@{name}"] for stage in stages if f"{stage}@{name}" in declared]
            if not to_commit:
                return
            # As `Repo.commit` does for each; that would read and write dvc.lock as many times, for seconds.
            with lock_repo(repo):
                for stage in to_commit:
                    stage.save()
                    stage.commit()
                to_commit[0].dvcfile.dump_stages(to_commit, update_pipeline=False)
    except NotDvcRepoError:
        return
    except (DvcException, OSError) as error:  # of its configuration, any of its files, or its cache
        raise WingspanError(
            f"DVC did not record this run ({to_line(error)}); fix that, then run `dvc commit`"
        ) from error


def restore_from_dvc(pointers: Sequence[str], *, target: Path) -> None:
    """Check out the data of `pointers` (`….dvc`) in the copy `target` of this project.

    Takes it from this project's cache, or else from its remote; the settings of both, which may hold
    passwords, are not written to `target`. Raises `WingspanError` if neither has it.
    """
    _import_silently()
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo(".") as project_repo:  # whose settings have absolute paths, once they are read
            settings = {key: dict(project_repo.config[key]) for key in ("core", "cache", "remote")}
            settings["cache"]["dir"] = project_repo.cache.local_cache_dir
        paths = [str(target / pointer) for pointer in pointers]
        with Repo(str(target), config=settings) as target_repo:
            try:
                target_repo.checkout(paths, force=True)
            except DvcException:
                target_repo.pull(paths)
    except DvcException as error:
        raise WingspanError(
            f"DVC has the data of {', '.join(pointers)} neither in its cache nor in a remote; "
            "bring it back by dvc pull, where it was pushed to a remote"
        ) from error


def _import_silently() -> None:
    """Import DVC, which changes the terminal and prints, without both."""
    import colorama
    import dvc.repo  # noqa: F401

    # DVC's import wraps the standard streams, which the display uses, and resets their colours at exit.
    colorama.deinit()
    atexit.unregister(colorama.initialise.reset_all)
    # After the import, which sets the levels. Above ERROR, both packages draw no progress bars either
    # (`dvc.progress.Tqdm`); failures are raised.
    for package in ("dvc", "dvc_data"):
        logging.getLogger(package).setLevel(logging.CRITICAL)
