"""Errors of training that a caller tells apart; the tree is in `envs/errors.py`."""

import re

from envs.errors import WingspanError, to_line

_ENGINE_DEAD = re.compile(r"^\s*([\w.]+\.)?EngineDeadError\b", re.MULTILINE)


class SamplerDied(WingspanError):
    """The generation server is gone; training goes on from the last checkpoint with a new one."""


class RayDied(WingspanError):
    """Ray's control service (GCS) is gone with all that it ran; training goes on with a new session."""


class NoEpisodes(WingspanError):
    """Every episode of a step failed: a retry will not fix the cause."""


class TeacherFailed(WingspanError):
    """A teacher has no usable scores for a step's episodes: the step is not trained, and the run ends."""


class Diverged(WingspanError):
    """A step's loss, gradient or log-probs are not numbers: its weights are not saved, and the run ends."""


class Collapsed(WingspanError):
    """Training shows signs of a collapse and `train.watch.on_collapse` is `stop`: its weights are saved."""


def actor_deaths() -> tuple[type[Exception], ...]:
    """What Ray raises for a call of an actor that has died; of one that it killed for memory, an exception of
    another kind."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    return (RayActorError, OutOfMemoryError)


def names_dead_engine(error: BaseException) -> bool:
    """Whether vLLM's `EngineDeadError` is `error` or among its causes.

    The engine's process is gone then, although the Ray actor that talks to it lives on. The check reads the
    lines that name exceptions in Ray's traceback: vLLM need not be installed here, and the causes of an
    exception are lost between processes.
    """
    return _ENGINE_DEAD.search(f"{type(error).__name__}: {error}") is not None


def describe_remote(error: BaseException) -> str:
    """The error on one line, without colours: the last line of a remote traceback, the first of Ray's account
    of a process that it ended for memory."""
    from ray.exceptions import OutOfMemoryError

    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if isinstance(error, OutOfMemoryError):
        text = text.splitlines()[0]
    elif "ray::" in text or "Traceback (most recent call last)" in text:
        text = text.splitlines()[-1]
    return to_line(f"{type(error).__name__}: {text}", limit=300)
