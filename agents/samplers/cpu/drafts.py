"""Draft tokens for the CPU engine's speculative decoding: those that followed the same three tokens earlier.

There is no draft model: an episode repeats what it has read and written, and the episodes of a group resemble
each other. So the tokens of all sequences are kept, with a table of what followed each run of three tokens
last, among the sequences of one prompt (prompt lookup decoding, as vLLM's method `ngram`, but over a group
instead of a sequence). A draft is a guess: `forward.py` draws each token as it would without drafts, and goes
on with a draft for as long as it equals what was drawn.
"""

from typing import NamedTuple

import numpy as np
from numba import int32, int64, njit, types, uint64

RUN = 3
"""How many preceding tokens must be the same before what followed them is drafted."""
_MAX_ENTRIES = 1 << 20
_MIX = 0x9E3779B97F4A7C15


class Drafts(NamedTuple):
    """The tokens of all slots of the cache, and where drafts are found in them."""

    history: np.ndarray
    """int32 [slots, C], each token plus 1; 0 after a sequence's last one."""
    table: np.ndarray
    """int64 [entries, a power of 2], indices of the flat `history`; 0 for none. Runs that fall on one entry
    overwrite each other, which costs a draft."""


def make_drafts(slots: int, context: int) -> Drafts:
    """Return the drafts of an engine without sequences; memory is taken as sequences grow."""
    entries = min(_MAX_ENTRIES, 1 << (slots * context).bit_length())
    return Drafts(np.zeros((slots, context), dtype=np.int32), np.zeros(entries, dtype=np.int64))


DRAFTS = types.NamedTuple([int32[:, ::1], int64[::1]], Drafts)


@njit(nogil=True)
def _find_entry(drafts, slot, position, salt):  # type: ignore[no-untyped-def]
    """The entry for the tokens before `position`, which must be `RUN` or more."""
    key, row = salt, drafts.history[slot]
    for p in range(position - RUN, position):
        key = (key ^ uint64(row[p])) * uint64(_MIX)
        key ^= key >> uint64(29)
    return int64(key & uint64(drafts.table.shape[0] - 1))


@njit(nogil=True)
def add_token(drafts, slot, position, token, salt):  # type: ignore[no-untyped-def]
    """Write `token` at `position` of the sequence in `slot`: sequences with the same salt draft from it."""
    drafts.history[slot, position] = token + 1
    if position >= RUN:
        entry = _find_entry(drafts, slot, position, salt)
        drafts.table[entry] = slot * drafts.history.shape[1] + position


@njit(nogil=True)
def draft(drafts, slot, position, salt, tokens):  # type: ignore[no-untyped-def]
    """Write a draft of what comes at `position` and after it to `tokens` [any]; returns its length."""
    if position < RUN:
        return 0
    history, here = drafts.history.ravel(), slot * drafts.history.shape[1] + position
    start = drafts.table[_find_entry(drafts, slot, position, salt)]
    for i in range(1, RUN + 1):
        if start < RUN or history[start - i] != history[here - i]:
            return 0
    count = min(tokens.shape[0], history.shape[0] - start)
    for i in range(count):
        if history[start + i] == 0:
            return i
        tokens[i] = history[start + i] - 1
    return count


@njit((DRAFTS, int64, int64[::1], int64, uint64), nogil=True, cache=True)
def write_sequence(drafts, slot, tokens, num_known, salt):  # type: ignore[no-untyped-def]
    """Make `tokens` [T] the sequence in `slot`, of which the first `num_known` are in the table already."""
    row = drafts.history[slot]
    for position in range(num_known):
        row[position] = tokens[position] + 1
    for position in range(num_known, tokens.shape[0]):
        add_token(drafts, slot, position, tokens[position], salt)
    for position in range(tokens.shape[0], row.shape[0]):
        if row[position] == 0:
            break  # so is all that comes after it
        row[position] = 0
