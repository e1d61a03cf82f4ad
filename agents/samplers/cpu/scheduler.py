"""Which sequences hold the slots of the CPU cache, which prompts are stored, and what is evicted.

A sequence is admitted with its episode's first request and stays, so that the next turn finds its keys
and values. Nothing announces the end of an episode, so the sequence that was idle for longest makes room.

A sequence's cache has two parts. Its *prefix* (the first prompt) is stored once and shared by every
episode that begins with it; the rest belongs to the episode and lies in a *slot* of one fixed array.
Decoding is bound by memory bandwidth: a group of 8 reads its prompt once per step, not 8 times.
`forward.py` describes the blocks.

Owns the tokens that are cached; knows nothing of requests, sampling or time (a clock of steps is passed in).
"""

from dataclasses import dataclass

import numpy as np

from agents.samplers.cpu.forward import block_size
from agents.samplers.cpu.llama import ModelShape, Place
from agents.samplers.tiles import BYTES, LANES, round_up
from envs.errors import ConfigError

GRACE_STEPS = 2
"""A sequence that was idle for fewer steps keeps its slot while others are active."""
PREFIX_SHARE = 0.5
"""The share of the cache's memory for prompts that episodes share; the rest is for the episodes."""
REMEMBERED = 65_536
"""Episodes whose openings are remembered, whether or not they are cached."""
_CACHE_LINE = 64  # bytes


def bytes_per_token(shape: ModelShape) -> int:
    """Memory of one token's keys and values in all layers."""
    return BYTES * block_size(shape.sizes, LANES) // LANES


class Prefix:
    """The keys and values of a prompt's tokens."""

    def __init__(self, tokens: tuple[int, ...], *, shape: ModelShape) -> None:
        self.tokens = tokens
        self.is_filled = not tokens
        """Whether a forward has written them."""
        self.users = 0
        self.last_used = 0
        self.salt = hash(tokens) & (1 << 64) - 1
        """Tells its sequences' drafts from those of others."""
        columns = round_up(len(tokens), LANES)
        self._block = _aligned(block_size(shape.sizes, columns))
        self.place = Place(self._block.ctypes.data, columns)

    def __len__(self) -> int:
        return len(self.tokens)


class Slots:
    """The episodes' blocks: one array of fixed size. A page takes memory once it is written."""

    def __init__(self, shape: ModelShape, *, count: int, columns: int) -> None:
        self.count = count
        self.columns = round_up(columns, LANES)
        """Of each slot."""
        size = block_size(shape.sizes, self.columns)
        self._blocks = _aligned(count * size)
        self._size = BYTES * size
        self._start = self._blocks.ctypes.data

    def place(self, slot: int, prefix: Prefix) -> Place:
        """Where the keys and values of a sequence in `slot` lie that begins with `prefix`."""
        address = self._start + slot * self._size
        return Place(address, self.columns, *prefix.place[:2], len(prefix))


@dataclass(slots=True, eq=False)
class CachedSequence:
    """The tokens of one episode, in a slot of the cache."""

    episode_id: str
    slot: int
    place: Place
    prefix: Prefix
    tokens: list[int]
    num_cached: int
    """The first `num_cached` of `tokens` have keys and values; the rest is still to be computed."""
    is_active: bool = True
    """Whether a completion is in progress; if not, it waits for its next turn."""
    last_used: int = 0

    @property
    def num_unread(self) -> int:
        """Tokens without keys and values."""
        return len(self.tokens) - self.num_cached

    @property
    def own_length(self) -> int:
        """Tokens that no other sequence shares."""
        return len(self.tokens) - len(self.prefix)


class Scheduler:
    """All sequences in the cache, by slot and by episode, and the prompts that they share."""

    def __init__(
        self, shape: ModelShape, *, context_length: int, max_sequences: int, cache_gb: float
    ) -> None:
        """The limits are those of `CpuEngine`. Raises `ConfigError` if not one sequence fits."""
        for_prefixes = cache_gb * 1e9 * PREFIX_SHARE
        per_slot = bytes_per_token(shape) * round_up(context_length, LANES)
        count = min(max_sequences, int((cache_gb * 1e9 - for_prefixes) / per_slot))
        if count < 1:
            raise ConfigError(
                f"cache_gb {cache_gb} and max_sequences {max_sequences} leave no room for an episode: one of "
                f"{context_length} tokens takes {per_slot / (1 - PREFIX_SHARE) / 1e9:.3g} GB; raise one, "
                "or lower rollout.context_length"
            )
        self._shape = shape
        self.slots = Slots(shape, count=count, columns=context_length)
        self.evictions = 0
        self._max_prefix_tokens = int(for_prefixes / bytes_per_token(shape))
        self._by_slot: list[CachedSequence | None] = [None] * count
        self._by_episode: dict[str, CachedSequence] = {}
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._openings: dict[str, tuple[int, int]] = {}  # length and hash by episode, oldest first

    def clear(self) -> None:
        """Drop every sequence and prompt."""
        self._by_slot = [None] * len(self._by_slot)
        self._by_episode.clear()
        self._prefixes.clear()

    def pause(self, episode_id: str) -> None:
        """Stop advancing the episode until it is resumed or admitted again."""
        if sequence := self._by_episode.get(episode_id):
            sequence.is_active = False

    def resume(self, episode_id: str, prompt: list[int]) -> CachedSequence | None:
        """Continue an episode from the part of `prompt` that is cached; None if no useful part is."""
        sequence = self._by_episode.get(episode_id)
        if sequence is None:
            return None
        cached_tokens = sequence.tokens[: sequence.num_cached]
        num_shared = len(cached_tokens)
        if prompt[:num_shared] != cached_tokens:
            num_shared = next(
                i for i, token in enumerate(cached_tokens) if i == len(prompt) or prompt[i] != token
            )
        num_shared = min(num_shared, len(prompt) - 1)  # the last token is computed, to have its logits
        if num_shared < len(sequence.prefix):
            self._drop(sequence)
            return None
        sequence.tokens, sequence.num_cached, sequence.is_active = list(prompt), num_shared, True
        return sequence

    def admit(self, episode_id: str, prompt: list[int], *, clock: int) -> CachedSequence | None:
        """Give a new episode a slot and its prefix, which may be empty as yet; None if no slot is free."""
        slot = self._take_slot(clock)
        if slot is None:
            return None
        prefix = self._prefix_of(episode_id, prompt)
        prefix.users += 1
        place = self.slots.place(slot, prefix)
        sequence = CachedSequence(episode_id, slot, place, prefix, list(prompt), len(prefix))
        self._by_episode[episode_id] = self._by_slot[slot] = sequence
        return sequence

    def evict_unused_prefixes(self) -> None:
        """Drop prompts without a sequence, oldest first, until prompts are within their share of memory."""
        excess = sum(map(len, self._prefixes)) - self._max_prefix_tokens
        for prefix in sorted(self._prefixes.values(), key=lambda prefix: prefix.last_used):
            if excess <= 0:
                return
            if not prefix.users:
                del self._prefixes[prefix.tokens]
                excess -= len(prefix)

    def sequence_of(self, episode_id: str) -> CachedSequence:
        """The episode's sequence, which must be cached."""
        return self._by_episode[episode_id]

    def _prefix_of(self, episode_id: str, prompt: list[int]) -> Prefix:
        """The episode's opening: its first prompt, for as long as its prompts begin with that.

        So an episode that was evicted shares it again with the others of its group. The prompt's last token
        is left out: each sequence computes it, to have its logits.
        """
        length, key = self._openings.pop(episode_id, (0, 0))
        opening = tuple(prompt[:length])
        if not length < len(prompt) or hash(opening) != key:
            opening = tuple(prompt[:-1])
        self._openings[episode_id] = len(opening), hash(opening)
        if len(self._openings) > REMEMBERED:
            del self._openings[next(iter(self._openings))]
        if opening not in self._prefixes:
            self._prefixes[opening] = Prefix(opening, shape=self._shape)
        return self._prefixes[opening]

    def _take_slot(self, clock: int) -> int | None:
        if len(self._by_episode) < len(self._by_slot):
            return self._by_slot.index(None)
        idle = [sequence for sequence in self._by_slot if sequence and not sequence.is_active]
        if not idle:
            return None
        oldest = min(idle, key=lambda sequence: sequence.last_used)
        # an episode whose environment is at work will be back: waiting is cheaper than computing it again
        if len(idle) < len(self._by_slot) and clock - oldest.last_used < GRACE_STEPS:
            return None
        self._drop(oldest)
        self.evictions += 1
        return oldest.slot

    def _drop(self, sequence: CachedSequence) -> None:
        sequence.prefix.users -= 1
        del self._by_episode[sequence.episode_id]
        self._by_slot[sequence.slot] = None


def _aligned(size: int) -> np.ndarray:
    """`size` float32 numbers, 0, that begin with a cache line."""
    numbers = np.zeros(size + _CACHE_LINE // BYTES, dtype=np.float32)  # lazy pages
    start = -numbers.ctypes.data % _CACHE_LINE // BYTES
    return numbers[start : start + size]
