"""How far an episode may go."""

from dataclasses import dataclass

MIN_COMPLETION = 8
"""Tokens; an episode ends where fewer are left, for they hold no action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Of one episode."""

    max_turns: int
    """The horizon."""
    max_tokens_per_turn: int
    context_length: int
    """Tokens that the model sees at most, prompt included."""
    episode_timeout_s: float
    step_timeout_s: float
    """For one `step` of the environment; `reset` has the episode's time."""
