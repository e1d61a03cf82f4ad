"""Limits of a gateway, in a module without heavy imports: the command line shows them."""

from dataclasses import dataclass

MAX_MESSAGES = 4096
"""The most messages of one request, or items of the Responses API: reading and rendering one takes about
0.1 ms, in which no other request is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Limits of a gateway."""

    max_sessions: int = 1024
    """Live sessions."""
    idle_s: float = 1800.0
    """The time without a request after which a session that was opened over HTTP is forgotten."""
    max_turns: int = 1000
    """Completions of one session that asks for no other number: it keeps them in memory."""
    max_body_bytes: int = 8 << 20
    """The most bytes of one request: every turn sends the whole conversation."""
