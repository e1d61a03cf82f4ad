"""The connection to MLflow: where it records, in which experiment, and where its pages are."""

import logging
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from envs.files import lock_file
from envs.redaction import register_url
from tasks.tracking.store import check_store
from tasks.tracking.traces import MAX_SPANS

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

DEFAULT_URI = "sqlite:///mlflow.db"
UI = "http://127.0.0.1:5000"
"""Where `mlflow ui` answers."""
EXPERIMENT = "wingspan"
MISSING = "RESOURCE_DOES_NOT_EXIST"
"""MLflow's code of an error about something that its store does not have."""
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",  # else MLflow's pages open as for GenAI applications
    "mlflow.note.content": "Policies trained by Wingspan: a run per workspace, a nested run per round.",
}


def ui_command() -> str | None:
    """The command that shows the records in a browser, at `UI`; None if a tracking server does that."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and urlsplit(uri).scheme in ("http", "https"):
        return None
    # The variable's name, as its value may contain a password; MLflow sets the variable too.
    store = DEFAULT_URI if uri in (None, "", DEFAULT_URI) else '"$MLFLOW_TRACKING_URI"'
    return f"mlflow ui --workers 1 --backend-store-uri {store}"


def tracking_uri() -> str:
    """Where MLflow records: `MLFLOW_TRACKING_URI`, or a SQLite file in the project."""
    uri = os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI
    register_url(uri)
    return uri


def check_tracking() -> None:
    """Raise `ConfigError` if MLflow cannot write to the tracking URI."""
    check_store(tracking_uri(), default=DEFAULT_URI)


def connect() -> "MlflowClient":
    """Connect to the tracking URI; the first time, MLflow creates its database."""
    # By default MLflow writes every span in its own transaction or request.
    os.environ.setdefault("MLFLOW_ASYNC_TRACE_LOGGING_MAX_SPAN_BATCH_SIZE", str(MAX_SPANS))
    if not tracking_uri().startswith("http"):  # a database file has one writer
        os.environ.setdefault("MLFLOW_ASYNC_TRACE_LOGGING_MAX_WORKERS", "1")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # MLflow tries a request for four minutes, and a run that is over would wait for each; what failed is
    # written again by the next call.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    import mlflow

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    mlflow.set_tracking_uri(tracking_uri())
    with _exclusive():
        client = mlflow.MlflowClient()
        client.search_experiments(max_results=1)
    return client


def _exclusive() -> AbstractContextManager[None]:
    """Serialize first connections: two at once would both create the tables of a database file."""
    file = tracking_uri().removeprefix("sqlite:///")
    return nullcontext() if file == tracking_uri() else lock_file(Path(f"{file}.lock"))


def experiment_of(client: "MlflowClient", *, name: str = EXPERIMENT) -> str:
    """The id of the experiment `name`, by default that of all runs; created if missing."""
    experiment: Experiment | None = client.get_experiment_by_name(name)
    if experiment is not None:
        for key, value in EXPERIMENT_TAGS.items():
            if key not in experiment.tags:  # created by an earlier version; a user's own value stays
                client.set_experiment_tag(experiment.experiment_id, key, value)
        return str(experiment.experiment_id)
    # A tracking server decides where artifacts go; with a SQLite file they go to a folder.
    artifact_folder = Path("mlartifacts").resolve().as_uri() if tracking_uri().startswith("sqlite") else None
    return str(client.create_experiment(name, artifact_location=artifact_folder, tags=dict(EXPERIMENT_TAGS)))


def has_run(client: "MlflowClient", run_id: str) -> bool:
    """Whether the store has the run and nobody has deleted it.

    Raises `MlflowException` if the store does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        return bool(client.get_run(run_id).info.lifecycle_stage == "active")
    except MlflowException as error:
        if error.error_code != MISSING:
            raise
        return False
