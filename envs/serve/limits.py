"""Limits of an environment server, in a module without heavy imports: the command line shows them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """Limits of a server."""

    max_sessions: int = 1024
    """Live instances, those that are being closed included."""
    idle_s: float = 1800.0
    """The time without a request after which a session is closed."""
    step_timeout_s: float = 300.0
    """The time for one step or reset; a session that takes longer is closed."""
    max_body_bytes: int = 1 << 20
    """The most bytes of a request or a WebSocket message."""
