"""Keys of states, for `HasState.state_key` (`envs/base.py`)."""

from hashlib import blake2b


def hash_state(*parts: object) -> str:
    """16 hexadecimal digits, the same in every process for parts with the same `repr`.

    Give texts, numbers, and tuples or lists of them; what has no order of its own must be sorted.
    """
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
