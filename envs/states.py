"""Keys of states (`envs/base.py`, `HasState`): how they are made, and how they are asked for."""

from collections.abc import Callable
from hashlib import blake2b

from envs.base import Environment


def hash_state(*parts: object) -> str:
    """16 hexadecimal digits, the same in every process for parts with the same `repr`.

    Give texts, numbers, and tuples or lists of them; what has no order of its own must be sorted.
    """
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def read_state_key(env: Environment) -> str | None:
    """The key of the state that `env` is in; None if it has no states, or no episode."""
    state_key: Callable[[], str | None] | None = getattr(
        env, "state_key", None
    )  # a tenth of isinstance's time
    return None if state_key is None else state_key()
