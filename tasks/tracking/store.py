"""Check that MLflow can write to a tracking URI, without importing MLflow, which takes seconds."""

import os
import socket
import sqlite3
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from envs.errors import ConfigError
from envs.files import check_writable

SCHEMES = frozenset({"http", "https", "databricks", "databricks-uc", "uc", "mysql", "postgresql", "mssql"})
"""Schemes that MLflow supports besides SQLite and folders."""
ALLOW_FOLDERS = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow's environment variable without which it refuses folders."""


def check_store(uri: str, *, default: str) -> None:
    """Raise `ConfigError` for an unknown scheme, a server that does not answer, or a file or folder that is
    not writable. `default`: the URI, of SQLite, that holds without MLFLOW_TRACKING_URI."""
    parts = urlsplit(uri)
    setting = f"MLFLOW_TRACKING_URI={uri}"
    remedy = f"unset the variable to record in {default.removeprefix('sqlite:///')}"
    if uri == default:
        _check_sqlite(uri, remedy="make it writable, or set MLFLOW_TRACKING_URI to another store")
    elif parts.scheme == "sqlite":
        _check_sqlite(uri, remedy=f"correct {setting}, or {remedy}")
    elif parts.scheme in ("", "file"):
        if os.environ.get(ALLOW_FOLDERS, "").lower() not in ("true", "1"):
            raise ConfigError(
                f"{setting}: MLflow 3 refuses to record in a folder unless {ALLOW_FOLDERS} is true; give a "
                f"database, e.g. sqlite:///mlflow.db (`mlflow migrate-filestore` makes one), or {remedy}"
            )
        check_writable(Path(parts.path), remedy=f"correct {setting}, or {remedy}")
    elif parts.scheme.partition("+")[0] not in SCHEMES | entry_points(group="mlflow.tracking_store").names:
        raise ConfigError(
            f"{setting}: MLflow has no store {parts.scheme!r}; give e.g. http://127.0.0.1:5000 or "
            f"sqlite:///mlflow.db, or {remedy}"
        )
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=5).close()
        except OSError as error:
            raise ConfigError(
                f"{setting} does not answer ({error}); start that server, or {remedy}"
            ) from None


def _check_sqlite(uri: str, *, remedy: str) -> None:
    file = Path(urlsplit(uri).path.removeprefix("/"))
    check_writable(file.parent, remedy=remedy)
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=1)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except sqlite3.Error as error:
        if "locked" not in str(error):  # another run is writing
            raise ConfigError(f"{file} cannot be written ({error}); {remedy}") from None
