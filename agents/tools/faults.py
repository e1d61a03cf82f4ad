"""What an exception of a tool means: the infrastructure's failure, or words for the agent."""

from envs.errors import WingspanError


def infrastructure_fault(error: BaseException) -> WingspanError | None:
    """The first `WingspanError` in an exception or group of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return next((fault for inner in error.exceptions if (fault := infrastructure_fault(inner))), None)
    return error if isinstance(error, WingspanError) else None


def error_text(error: Exception) -> str:
    """`str(error)`, even where that raises."""
    try:
        return str(error)
    except Exception:  # its own fault, too, is the tool's
        return "(it has no text)"
