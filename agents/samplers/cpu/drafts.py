"""Draft tokens of the CPU engine's speculative decoding: what followed the last three tokens before.

There is no draft model: an episode repeats what it has read and written, and the episodes of a group resemble
each other. So the tokens of all sequences are kept, with a table of what followed each run of three tokens
last, among the sequences of one prompt (prompt lookup decoding, as vLLM's method `ngram`, but over a group
instead of a sequence). A draft is a guess: `forward.py` draws each token as it would without drafts, and goes
on with a draft for as long as it equals what was drawn.
"""

from typing import NamedTuple

import numpy as np
from numba import int64, njit, types, uint64

RUN = 3
"""Tokens that must be the same for what followed them to be a draft."""
_TABLE = 1 << 16
"""Entries of the table. Runs that fall on one entry overwrite each other, which costs a draft."""
_MIX = 0x9E3779B97F4A7C15


class Drafts(NamedTuple):
    """The tokens of all slots of the cache, and where drafts are found in them."""

    history: np.ndarray
    """int64 [slots, C], each token plus 1; 0 after a sequence's last one."""
    table: np.ndarray
    """int64 [entries], indices of the flat `history`; 0 for none."""


def make_drafts(slots: int, context: int) -> Drafts:
    """Return those of an engine without sequences; memory is taken as they grow."""
    return Drafts(np.zeros((slots, context), dtype=np.int64), np.zeros(_TABLE, dtype=np.int64))


DRAFTS = types.NamedTuple([int64[:, ::1], int64[::1]], Drafts)


@njit(nogil=True)
def _entry(drafts, slot, position, salt):  # type: ignore[no-untyped-def]
    """The entry for the tokens before `position`, which must be `RUN` or more."""
    key, row = salt, drafts.history[slot]
    for p in range(position - RUN, position):
        key = (key ^ uint64(row[p])) * uint64(_MIX)
        key ^= key >> uint64(29)
    return int64(key & uint64(_TABLE - 1))


@njit(nogil=True)
def add_token(drafts, slot, position, token, salt):  # type: ignore[no-untyped-def]
    """Write `token` at `position` of the sequence in `slot`: sequences with the same salt draft from it."""
    drafts.history[slot, position] = token + 1
    if position >= RUN:
        drafts.table[_entry(drafts, slot, position, salt)] = slot * drafts.history.shape[1] + position


@njit(nogil=True)
def draft(drafts, slot, position, salt, tokens):  # type: ignore[no-untyped-def]
    """Write a draft of what comes at `position` and after it to `tokens` [any]; returns its length."""
    if position < RUN:
        return 0
    history = drafts.history.ravel()
    start = drafts.table[_entry(drafts, slot, position, salt)]
    if start == 0:
        return 0
    count = min(tokens.shape[0], history.shape[0] - start)
    for i in range(count):
        if history[start + i] == 0:
            return i
        tokens[i] = history[start + i] - 1
    return count


@njit((DRAFTS, int64, int64[::1], int64, uint64), nogil=True, cache=True)
def write_sequence(drafts, slot, tokens, known, salt):  # type: ignore[no-untyped-def]
    """Make `tokens` [T] the sequence in `slot`, the first `known` of which have been added before."""
    row = drafts.history[slot]
    for position in range(known):
        row[position] = tokens[position] + 1
    row[tokens.shape[0] :] = 0
    for position in range(known, tokens.shape[0]):
        add_token(drafts, slot, position, tokens[position], salt)
