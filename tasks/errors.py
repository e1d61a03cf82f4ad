"""Errors of training that a caller tells apart; the tree is in `envs/errors.py`."""

from envs.errors import WingspanError


class SamplerDied(WingspanError):
    """The generation server is gone; training goes on from the last checkpoint with a new one."""


class RayDied(WingspanError):
    """Ray's control service (GCS) is gone, and all that ran by it; training goes on with a new session."""


class NoEpisodes(WingspanError):
    """Every episode of a step failed: something is wrong that trying again will not mend."""
