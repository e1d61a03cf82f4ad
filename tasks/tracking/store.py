"""Whether MLflow can write to where a tracking URI points, found out without MLflow, whose import takes
seconds."""

import socket
import sqlite3
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

from envs.errors import ConfigError
from envs.files import check_writable

SCHEMES = frozenset({"http", "https", "databricks", "databricks-uc", "uc", "mysql", "postgresql", "mssql"})
"""MLflow's own, besides SQLite and folders."""


def check_store(uri: str, *, remedy: str) -> None:
    """Raise `ConfigError`, ending with `remedy`, for a URI of no kind that MLflow knows, a server that does
    not answer, and a file or folder that cannot be written to."""
    parts = urlsplit(uri)
    place = f"MLFLOW_TRACKING_URI={uri}"
    if parts.scheme == "sqlite":
        _check_sqlite(Path(parts.path.removeprefix("/")), place=place, remedy=remedy)
    elif parts.scheme in ("", "file"):
        check_writable(Path(parts.path), remedy=f"correct {place}, or {remedy}")
    elif parts.scheme.partition("+")[0] not in SCHEMES | _plugins():
        raise ConfigError(
            f"{place}: MLflow has no store {parts.scheme!r}; give e.g. http://127.0.0.1:5000 or "
            f"sqlite:///mlflow.db, or {remedy}"
        )
    if parts.scheme in ("http", "https") and parts.hostname:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=5).close()
        except OSError as error:
            raise ConfigError(f"{place} does not answer ({error}); start that server, or {remedy}") from None


def _plugins() -> set[str]:
    return {entry.name for entry in entry_points(group="mlflow.tracking_store")}


def _check_sqlite(file: Path, *, place: str, remedy: str) -> None:
    check_writable(file.parent, remedy=f"correct {place}, or {remedy}")
    if not file.exists():
        return
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=1)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.rollback()
    except sqlite3.Error as error:
        if "locked" not in str(error):  # as it is while another run writes
            raise ConfigError(f"{place}: {file} cannot be written ({error}); {remedy}") from None
