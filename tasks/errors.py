"""Errors of training that a caller tells apart; the tree is in `envs/errors.py`."""

from envs.errors import WingspanError

_ENGINE_DEAD = "EngineDeadError"


class SamplerDied(WingspanError):
    """The generation server is gone; training goes on from the last checkpoint with a new one."""


class NoEpisodes(WingspanError):
    """Every episode of a step failed: something is wrong that trying again will not mend."""


def names_dead_engine(error: BaseException) -> bool:
    """Whether vLLM's `EngineDeadError` is among the causes of `error`.

    The process of the engine is gone then, and the Ray actor that talks to it lives on. Told by its name,
    along the chain of causes and through Ray's wrappers: vLLM need not be installed here, and Ray hands an
    exception that it cannot read over as text.
    """
    pending: list[BaseException | None] = [error]
    visited: set[int] = set()
    while pending:
        current = pending.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        if any(kind.__name__ == _ENGINE_DEAD for kind in type(current).__mro__):
            return True
        if type(current).__name__ == "UnserializableException" and _ENGINE_DEAD in str(current):
            return True
        wrapped = getattr(current, "cause", None)  # a RayTaskError's
        pending += [wrapped if isinstance(wrapped, BaseException) else None]
        pending += [current.__cause__, current.__context__]
    return False
