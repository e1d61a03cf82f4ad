"""Session ids: numbers, as AgentGym's protocol has them, unguessable and never repeated.

A counter goes through a keyed permutation of the numbers below 2**52 (a Feistel network): distinct counts
give distinct ids, neighbours look unrelated, and a JavaScript client reads them exactly. The way back tells
an id that was once given from one that never was, without a list of the dead.
"""

import secrets
from collections.abc import Iterable
from hashlib import blake2b

_HALF_BITS = 26
_HALF = (1 << _HALF_BITS) - 1
_ROUNDS = range(4)

MAX_ID = (1 << 2 * _HALF_BITS) - 1


class Ids:
    """The ids of one server."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(16)
        self._count = 0

    def new(self) -> int:
        """A new id."""
        number, self._count = self._count, self._count + 1
        return self._permute(number, _ROUNDS)

    def was_given(self, session_id: int) -> bool:
        """Whether `new` has returned it."""
        return 0 <= session_id <= MAX_ID and self._permute(session_id, reversed(_ROUNDS)) < self._count

    def _permute(self, number: int, rounds: Iterable[int]) -> int:
        # The halves leave swapped, so that the same rounds in reverse order undo it.
        left, right = number >> _HALF_BITS, number & _HALF
        for turn in rounds:
            block = right.to_bytes(4, "big") + bytes([turn])
            digest = blake2b(block, digest_size=4, key=self._key).digest()
            left, right = right, left ^ (int.from_bytes(digest, "big") & _HALF)
        return right << _HALF_BITS | left
