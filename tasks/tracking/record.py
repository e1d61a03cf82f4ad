"""Which MLflow run records a workspace: its file `mlflow.json`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.files import check_keys, read_json, write_json
from envs.redaction import without_password
from tasks.config.pipelines import Pipeline
from tasks.data.hashes import text_md5
from tasks.tracking.connection import UI, tracking_uri, ui_command
from tasks.tracking.names import absolute_store, run_page

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORD = "mlflow.json"
_KEYS = ("uri", "run_id", "experiment_id")


def read_record(workspace: Path) -> dict[str, Any]:
    """`uri`, without user and password, `run_id`, `experiment_id`, `identity`, `finished` and `candidate`, as
    `write_record` has them; empty if it is not recorded. Raises `DamagedFile`."""
    record = read_json(workspace / RECORD)
    if record:
        check_keys(record, _KEYS, file=workspace / RECORD)
    return record


def write_record(
    workspace: Path, *, pipeline: Pipeline, run: "Run", is_finished: bool, was_candidate: bool = False
) -> None:
    """Write `mlflow.json`: `run`, of these parameters, records `workspace`. `was_candidate`: its policy could
    become the champion."""
    record = {
        "uri": without_password(tracking_uri()),
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "identity": _identity(pipeline),
        "finished": is_finished,
        "candidate": was_candidate,
    }
    write_json(workspace / RECORD, record)


def record_candidate(workspace: Path) -> None:
    """Note in `mlflow.json` that the policy of `workspace` could become the champion."""
    write_json(workspace / RECORD, read_record(workspace) | {"candidate": True})


def was_candidate(workspace: Path) -> bool:
    """Whether the policy of the recorded run could become the champion."""
    return bool(read_record(workspace).get("candidate"))


def find_recorded_id(workspace: Path) -> str | None:
    """The id of the run that records `workspace` in the store that MLflow uses now; None if there is none, or
    if it is in another store. Raises `DamagedFile`."""
    record = read_record(workspace)
    return str(record["run_id"]) if record and _store_of(record["uri"]) == _store_of(tracking_uri()) else None


def is_recorded(workspace: Path, *, pipeline: Pipeline) -> bool:
    """Whether MLflow, where it records now, has a finished run of this workspace with these parameters."""
    record = read_record(workspace)
    is_finished = record.get("identity") == _identity(pipeline) and bool(record.get("finished"))
    return is_finished and find_recorded_id(workspace) is not None


def unfinished_run(workspace: Path, *, pipeline: Pipeline) -> str | None:
    """The MLflow run that this workspace began with these parameters and has not finished."""
    record = read_record(workspace)
    is_open = record.get("identity") == _identity(pipeline) and not record.get("finished")
    return find_recorded_id(workspace) if is_open else None


def recorded_page(workspace: Path, *, tab: str = "") -> str:
    """The address of the run of `workspace` in a browser, that of MLflow if it is not recorded there; `tab`:
    of its page, as in `run_page`."""
    server = UI if ui_command() else without_password(tracking_uri()).rstrip("/")
    run_id = find_recorded_id(workspace)
    if run_id is None:
        return server
    return server + run_page(read_record(workspace)["experiment_id"], run_id, tab=tab)


def _store_of(uri: str) -> str:
    """What names the same store: with the whole path of a file, without user and password."""
    return absolute_store(without_password(uri)).rstrip("/")


def _identity(pipeline: Pipeline) -> str:
    return text_md5(pipeline.model_dump_json())
