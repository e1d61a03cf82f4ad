"""Which episode holds which slot of the CPU cache, which prompts are stored, and who loses them.

An episode enters when its first request is placed and stays, so that its next turn finds its keys
and values; nobody says when it has ended, so the one silent for longest makes room. Owns the tokens
that are cached; knows nothing of requests, sampling or time (a clock of steps is passed in).
"""

from dataclasses import dataclass

from agents.samplers.cpu.kv_cache import RUN_COLUMNS, Prefix, Slots, bytes_per_token, runs
from agents.samplers.cpu.llama import ModelShape
from envs.errors import ConfigError

GRACE_STEPS = 32
"""An episode that has been silent for fewer steps keeps its slot while others are active."""
BRIEF_STEPS = 8
"""An episode that has been silent for fewer steps is about to go on: it keeps its place in the order."""
WASTE = 1.5
"""Slots are put in order again when attention reads more than so many times what it needs."""


@dataclass(slots=True, eq=False)
class Resident:
    """An episode that holds a slot."""

    episode_id: str
    slot: int
    prefix: Prefix
    tokens: list[int]
    cached: int
    """The first `cached` of `tokens` have keys and values; the rest is to be fed."""
    active: bool = True
    """Whether it is to be advanced; else it waits for its next turn."""
    last_used: int = 0

    @property
    def columns(self) -> int:
        """Columns of its slot that are in use once `tokens` are fed."""
        return len(self.tokens) - len(self.prefix) + 1


class Residents:
    """All episodes in the cache."""

    def __init__(
        self, shape: ModelShape, *, context_length: int, max_sequences: int, cache_gb: float
    ) -> None:
        """See `CpuEngine`. Raises `ConfigError` if not one episode fits."""
        half = cache_gb * 1e9 / 2
        per_slot = bytes_per_token(shape) * context_length
        count = min(max_sequences, int(half / per_slot))
        if count < 1:
            raise ConfigError(
                f"cache_gb {cache_gb} and max_sequences {max_sequences} leave room for no episode: one of "
                f"{context_length} tokens takes {2 * per_slot / 1e9:.3g} GB; raise one, "
                "or lower rollout.context_length"
            )
        self.slots = Slots(shape, count=count, columns=context_length + 1)
        self.evicted = 0
        self._prefix_tokens = int(half / bytes_per_token(shape))
        self._at: list[Resident | None] = [None] * count
        self._by_episode: dict[str, Resident] = {}
        self._prefixes: dict[tuple[int, ...], Prefix] = {}
        self._created = 0  # prefixes

    def clear(self) -> None:
        """Forget every episode and prompt."""
        self._at = [None] * len(self._at)
        self._by_episode.clear()
        self._prefixes.clear()

    def at(self, slot: int) -> Resident:
        """Who holds `slot`."""
        resident = self._at[slot]
        assert resident is not None
        return resident

    def rest(self, episode_id: str) -> None:
        """Do not advance the episode any further, until it is placed again."""
        if resident := self._by_episode.get(episode_id):
            resident.active = False

    def resume(self, episode_id: str, prompt: list[int]) -> Resident | None:
        """Go on with an episode from what is cached of `prompt`; None if nothing of use is."""
        resident = self._by_episode.get(episode_id)
        if resident is None:
            return None
        known = resident.tokens[: resident.cached]
        same = len(known)
        if prompt[:same] != known:
            same = next(i for i, token in enumerate(known) if i == len(prompt) or prompt[i] != token)
        same = min(same, len(prompt) - 1)  # the last token is fed, to have its logits
        if same < len(resident.prefix):
            self._drop(resident)
            return None
        resident.tokens, resident.cached, resident.active = list(prompt), same, True
        return resident

    def enter(self, episode_id: str, prompt: list[int], *, clock: int) -> Resident | None:
        """Give a new episode a slot and its prefix, which may have to be filled; None if all are held."""
        slot = self._free_slot(clock)
        if slot is None:
            return None
        prefix = self._prefix_of(prompt)
        prefix.users += 1
        resident = Resident(episode_id, slot, prefix, list(prompt), len(prefix))
        self._by_episode[episode_id] = self._at[slot] = resident
        return resident

    def forget_unused_prefixes(self) -> None:
        """Drop prompts without an episode, oldest first, until they are within their share of memory."""
        excess = sum(map(len, self._prefixes)) - self._prefix_tokens
        for prefix in sorted(self._prefixes.values(), key=lambda prefix: prefix.last_used):
            if excess <= 0:
                return
            if not prefix.users:
                del self._prefixes[prefix.tokens]
                excess -= len(prefix)

    def active(self, *, clock: int) -> list[Resident]:
        """Those to be advanced, in slots that are in order as far as that pays (see `kv_cpu.runs`)."""
        active = [resident for resident in self._at if resident and resident.active]
        if not active:
            return []
        columns = [r.columns if r and r.active else 0 for r in self._at[: active[-1].slot + 1]]
        read = sum((end - first) * width for first, end, width in runs(columns))
        if read > WASTE * sum(columns) + RUN_COLUMNS:
            self._put_in_order([r for r in self._at if r and (r.active or clock - r.last_used < BRIEF_STEPS)])
        return active

    def _put_in_order(self, residents: list[Resident]) -> None:
        """Give `residents` the first slots, the longest first; as few as possible move, by `RUN_COLUMNS`."""
        by_length: dict[int, list[Resident]] = {}
        for resident in residents:
            by_length.setdefault(resident.columns // RUN_COLUMNS, []).append(resident)
        movers: list[Resident] = []
        targets: list[int] = []
        first = 0
        for length in sorted(by_length, reverse=True):
            group = by_length[length]
            slots = range(first, first + len(group))
            kept = {resident.slot for resident in group if resident.slot in slots}
            movers += [resident for resident in group if resident.slot not in kept]
            targets += [slot for slot in slots if slot not in kept]
            first = slots.stop
        if not movers:
            return
        sources = [resident.slot for resident in movers]
        # who is in the way takes what became free
        left, right = set(sources) - set(targets), set(targets) - set(sources)
        moves = list(zip(sources, targets, strict=True)) + list(zip(sorted(right), sorted(left), strict=True))
        moved = [self._at[source] for source, _ in moves]
        self.slots.move(
            [source for source, _ in moves],
            [target for _, target in moves],
            columns=max(r.columns for r in moved if r),
        )
        for who, (_, target) in zip(moved, moves, strict=True):
            self._at[target] = who
            if who:
                who.slot = target

    def _prefix_of(self, prompt: list[int]) -> Prefix:
        """The longest stored prefix with at least half of `prompt`, or a new one.

        The prompt's last token is left out: each episode feeds it, to have its logits.
        """
        for length in sorted({len(prefix) for prefix in self._prefixes}, reverse=True):
            if len(prompt) / 2 <= length < len(prompt) and tuple(prompt[:length]) in self._prefixes:
                return self._prefixes[tuple(prompt[:length])]
        prefix = Prefix(tuple(prompt[:-1]), number=self._created)
        self._created += 1
        self._prefixes[prefix.tokens] = prefix
        return prefix

    def _free_slot(self, clock: int) -> int | None:
        if len(self._by_episode) < len(self._at):
            return self._at.index(None)
        idle = [resident for resident in self._at if resident and not resident.active]
        if not idle:
            return None
        oldest = min(idle, key=lambda resident: resident.last_used)
        # an episode whose environment is at work will be back: rather wait than compute it again
        if len(idle) < len(self._at) and clock - oldest.last_used < GRACE_STEPS:
            return None
        self._drop(oldest)
        self.evicted += 1
        return oldest.slot

    def _drop(self, resident: Resident) -> None:
        resident.prefix.users -= 1
        del self._by_episode[resident.episode_id]
        self._at[resident.slot] = None
