"""Errors of training that a caller tells apart; the tree is in `envs/errors.py`."""

from envs.errors import WingspanError


class SamplerDied(WingspanError):
    """The generation server is gone; training goes on from the last checkpoint with a new one."""


class NoEpisodes(WingspanError):
    """Every episode of a step failed: something is wrong that trying again will not mend."""


class Diverged(WingspanError):
    """A step's loss, gradient or log-probs are not numbers: its weights go nowhere, and the run ends."""
