"""Calls of an algorithm or a loss, which may be a user's."""

from contextlib import AbstractContextManager, nullcontext

import torch

from envs.errors import ConfigError, boundary


def users_boundary(owner: object, subject: str) -> "AbstractContextManager[None] | boundary":
    """Turn what a method of `owner` raises into a `ConfigError` about `subject`, unless the memory was too
    small; nothing of our own algorithms and losses, whose errors are not a user's."""
    if type(owner).__module__.startswith("tasks.algorithms."):
        return nullcontext()
    return boundary(ConfigError, subject, passes=(MemoryError, torch.OutOfMemoryError))
