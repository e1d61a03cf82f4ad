"""The format of times in a run's files."""

from datetime import UTC, datetime


def now() -> str:
    """ISO 8601, in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
