"""Which MLflow run records a workspace: its file `mlflow.json`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.files import check_keys, read_json, write_json
from envs.redaction import without_password
from tasks.config.pipelines import Pipeline
from tasks.data.hashes import text_md5
from tasks.tracking.connection import UI, tracking_uri, ui_command
from tasks.tracking.names import run_page

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORD = "mlflow.json"
_KEYS = ("uri", "run_id", "experiment_id")


def read_record(workspace: Path) -> dict[str, Any]:
    """`uri`, `run_id`, `experiment_id`, `identity` and `finished`; empty if it is not recorded. Raises
    `DamagedFile`."""
    record = read_json(workspace / RECORD)
    if record:
        check_keys(record, _KEYS, file=workspace / RECORD)
    return record


def write_record(workspace: Path, *, pipeline: Pipeline, run: "Run", is_finished: bool) -> None:
    """Write `mlflow.json`: `run`, of these parameters, records `workspace`."""
    record = {
        "uri": tracking_uri(),
        "run_id": run.info.run_id,
        "experiment_id": run.info.experiment_id,
        "identity": _identity(pipeline),
        "finished": is_finished,
    }
    write_json(workspace / RECORD, record)


def is_recorded(workspace: Path, *, pipeline: Pipeline) -> bool:
    """Whether MLflow has a finished run of this workspace with these parameters."""
    record = read_record(workspace)
    return record.get("identity") == _identity(pipeline) and bool(record.get("finished"))


def unfinished_run(workspace: Path, *, pipeline: Pipeline) -> str | None:
    """The MLflow run that this workspace began with these parameters and has not finished."""
    record = read_record(workspace)
    ours = record.get("uri") == tracking_uri() and record.get("identity") == _identity(pipeline)
    return str(record["run_id"]) if ours and not record.get("finished") else None


def recorded_page(workspace: Path, *, tab: str = "") -> str:
    """The address of the run of `workspace` in a browser; `tab`: of its page, as in `run_page`."""
    server = UI if ui_command() else without_password(tracking_uri()).rstrip("/")
    record = read_record(workspace)
    if not record:
        return server
    return server + run_page(record["experiment_id"], record["run_id"], tab=tab)


def _identity(pipeline: Pipeline) -> str:
    return text_md5(pipeline.model_dump_json())
