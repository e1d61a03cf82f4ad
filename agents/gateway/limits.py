"""What a gateway allows. Apart from the rest: the command line shows it, and starts fast."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """What a gateway allows."""

    max_sessions: int = 1024
    """Live sessions."""
    idle_s: float = 1800.0
    """Without a request for so long a session that was opened over HTTP is forgotten."""
    max_turns: int = 1000
    """Completions of one session that asks for no other number: it keeps them in memory."""
    max_body_bytes: int = 8 << 20
    """Of one request: every turn sends the whole conversation."""
