"""The CPU rollout engine: continuous batching over live episodes, synchronous and without Ray.

In every `step` some active sequences advance: by up to `TOKENS_PER_STEP` sampled tokens, or by `CHUNK` tokens
of an observation that is read. New requests join at any step. Owns requests and the order of work within a
step. `scheduler.py` owns the slots of the cache, `llama.py` and `forward.py` the arithmetic and the choice
of tokens, `agents/samplers/sampling.py` the choice by parameters that few requests have, `sampler.py` threads
and futures.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from agents.samplers.cpu.drafts import make_drafts, write_sequence
from agents.samplers.cpu.llama import Batch, Draws, Llama, ModelShape, Segment, make_batch
from agents.samplers.cpu.scheduler import CachedSequence, Prefix, Scheduler, bytes_per_token
from agents.samplers.sampling import check_params, random_key, sample_tokens, uniforms
from agents.samplers.tiles import BYTES
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError

if TYPE_CHECKING:
    import torch

_Result = TypeVar("_Result")

CHUNK = 256
"""The most tokens of one observation that one step reads."""
HOT_BYTES = 2e6
"""Keys and values of the sequences that are advanced together. More of them than the processor's cache holds
would be read from memory at every step, which takes longer than to read the weights more often."""
PATIENCE = 250
"""Steps after which the sequence that has waited for longest goes first."""
SMALL_MODEL_BYTES = 8e6
"""Weights beyond this are read from memory at every step anyway: then all sequences advance together."""
MIN_HOT = 8
"""The fewest sequences that are advanced together, if there are so many."""
TOKENS_PER_STEP = 16
"""Tokens that are sampled for a sequence before other requests can join."""
MAX_DRAFT = 4
"""The most tokens that are drafted for a sequence; each costs a row of a forward, accepted or not."""
NO_ROWS = np.zeros(0, dtype=np.int64)
PROMPT_TOKENS = 768
"""Tokens of new prompts in one forward (unless one prompt is longer); more is not faster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRequest:
    """One completion to sample."""

    request_id: int
    episode_id: str
    prompt_ids: list[int]  # [P], the whole conversation so far
    params: SamplingParams
    is_complete: Callable[[list[int]], bool] | None = None
    """Called after each token with all sampled tokens: whether the completion ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made."""

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    """Tokens of prompts and observations that had to be computed."""
    reused_tokens: int = 0
    """Tokens of prompts that the cache had."""
    forwards: int = 0
    """Passes through the model, of however many sequences."""
    drafted_tokens: int = 0
    """Tokens that were drafted, and so computed before it was known whether they would be sampled."""
    accepted_tokens: int = 0
    """Drafted tokens that were sampled."""
    evictions: int = 0
    """Episodes whose slot was given to another."""


@dataclass(slots=True, eq=False)
class _Job:
    """A completion in progress."""

    request: SamplingRequest
    key: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_plain(self) -> bool:
        """Whether only temperature, stop tokens and lengths decide on its tokens."""
        params = self.request.params
        return self.request.is_complete is None and not params.top_k and params.top_p == 1


class CpuEngine:
    """Samples completions of a small Llama or Qwen2, keeping keys and values across an episode's turns.

    The same seed, weights, episode id and prompts give the same tokens and log-probs to the last bit,
    whatever else is in the batch (docs/decisions/0013-same-bits.md).
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: "Mapping[str, torch.Tensor]",
        *,
        context_length: int,
        max_sequences: int = 256,
        cache_gb: float = 4.0,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """`context_length`: tokens of a whole episode; `max_sequences`: episodes in the cache;
        `cache_gb`: the memory limit of keys and values, half for episodes and half for shared prompts;
        memory is taken as they grow. If the limit is too low, fewer episodes are cached. `threads`: the
        number of threads that share the sequences of each step.

        Raises `ConfigError` if the model, its context or the cache does not fit.
        """
        if context_length > shape.max_context:
            raise ConfigError(
                f"context_length {context_length} is more than the model's {shape.max_context} "
                "(max_position_embeddings in config.json); lower rollout.context_length"
            )
        self.shape = shape
        self.policy_version = 0
        self._context = context_length
        self._seed = seed
        self._model = Llama(shape, weights, max_context=context_length)
        weights_bytes = BYTES * sum(weight.numel() for weight in weights.values())
        is_small = weights_bytes < SMALL_MODEL_BYTES
        self._hot_tokens = HOT_BYTES / bytes_per_token(shape) if is_small else math.inf
        self._scheduler = Scheduler(
            shape, context_length=context_length, max_sequences=max_sequences, cache_gb=cache_gb
        )
        self._drafts = make_drafts(self._scheduler.slots.count, context_length)
        self._waiting: dict[str, SamplingRequest] = {}  # by episode, first come first
        self._jobs: dict[str, _Job] = {}  # by episode
        self._counts: Counter[str] = Counter()
        self._clock = 0
        self._hot: list[CachedSequence] = []
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="cpu-engine") if threads > 1 else None

    @property
    def is_busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._jobs)

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was made."""
        counts = {name: int(count) for name, count in self._counts.items()}
        return EngineStats(**counts, evictions=self._scheduler.evictions)

    def submit(self, request: SamplingRequest) -> None:
        """Add a request; `step` will return its completion. Raises `ConfigError` for an invalid one."""
        check_params(request.params, vocab_size=self.shape.vocab_size)
        prompt, episode = request.prompt_ids, request.episode_id
        if not 0 < len(prompt) < self._context:
            raise ConfigError(
                f"prompt of {len(prompt)} tokens (episode {episode}) must have 1 to {self._context - 1}, to "
                "leave room within the context; raise rollout.context_length"
            )
        if min(prompt) < 0 or max(prompt) >= self.shape.vocab_size:
            invalid = next(token for token in prompt if not 0 <= token < self.shape.vocab_size)
            raise ConfigError(
                f"prompt token {invalid} (episode {episode}) is outside the model's vocabulary of "
                f"{self.shape.vocab_size}; use the tokenizer in the model's folder"
            )
        if episode in self._waiting or episode in self._jobs:
            raise ConfigError(
                f"episode {episode} already waits for a completion; give each episode its own id"
            )
        self._waiting[episode] = request

    def cancel(self, episode_id: str) -> None:
        """Drop the episode's request, if it has one; what is cached stays until it is evicted."""
        self._waiting.pop(episode_id, None)
        self._jobs.pop(episode_id, None)
        self._scheduler.pause(episode_id)

    def load_weights(self, weights: "Mapping[str, torch.Tensor]", *, policy_version: int) -> None:
        """Sample with `weights` (Hugging Face names) from the next step on.

        The cache is dropped. Completions in progress start again, so that each is sampled by one
        policy. Raises `ConfigError`, with nothing changed, if the weights do not fit.
        """
        self._model = Llama(self.shape, weights, max_context=self._context)
        self.policy_version = policy_version
        requests = {episode: job.request for episode, job in self._jobs.items()} | self._waiting
        self.reset()
        self._waiting = requests

    def reset(self) -> None:
        """Drop every request, episode and prompt."""
        self._waiting, self._jobs, self._hot = {}, {}, []
        self._scheduler.clear()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()

    def step(self) -> list[tuple[int, Completion]]:
        """Advance the hot sequences; returns (request id, completion) of those that finished.

        If it raises, the cache is no longer consistent: call `reset` before another step.
        """
        self._clock += 1
        self._admit()
        self._choose_hot()
        return self._advance(self._hot) if self._hot else []

    def _count(self, **increments: int) -> None:
        """Add to fields of `EngineStats`."""
        self._counts.update(increments)

    def _admit(self) -> None:
        """Give waiting requests their slots, as far as there are any, and compute new prompts."""
        for episode, request in list(self._waiting.items()):
            if sequence := self._scheduler.resume(episode, request.prompt_ids):
                self._start(request, sequence, num_drafted=sequence.num_cached)
                self._count(reused_tokens=sequence.num_cached)
        new_prefixes: list[Prefix] = []
        for episode, request in list(self._waiting.items()):
            sequence = self._scheduler.admit(episode, request.prompt_ids, clock=self._clock)
            if sequence is None:
                break
            self._start(request, sequence, num_drafted=0)
            prefix = sequence.prefix
            if prefix.is_filled or prefix in new_prefixes:
                self._count(reused_tokens=len(prefix))
            else:
                new_prefixes.append(prefix)
                self._count(prefilled_tokens=len(prefix))
        if new_prefixes:
            self._fill(new_prefixes)
            self._scheduler.evict_unused_prefixes()

    def _start(self, request: SamplingRequest, sequence: CachedSequence, *, num_drafted: int) -> None:
        """Begin sampling. The first `num_drafted` tokens of the sequence are in the table of drafts."""
        del self._waiting[request.episode_id]
        # The length, too: a conversation that was shortened comes by the same positions again.
        key = random_key(self._seed, self.policy_version, request.episode_id, len(request.prompt_ids))
        self._jobs[request.episode_id] = _Job(request, key)
        sequence.last_used = self._clock
        tokens = np.array(sequence.tokens, dtype=np.int64)
        write_sequence(self._drafts, sequence.slot, tokens, num_drafted, sequence.prefix.salt)
        self._count(prefilled_tokens=len(sequence.tokens) - sequence.num_cached)

    def _fill(self, prefixes: list[Prefix]) -> None:
        """Compute `prefixes`, several to a forward."""
        while prefixes:
            batch = [prefixes.pop()]
            while prefixes and sum(map(len, batch)) + len(prefixes[-1]) <= PROMPT_TOKENS:
                batch.append(prefixes.pop())
            self._read(Segment(prefix.tokens, 0, prefix.place) for prefix in batch)
            for prefix in batch:
                prefix.is_filled = True

    def _choose_hot(self) -> None:
        """Which sequences the next step advances: the same until their turns end, then those that share a
        prompt with them, then those that came first; as many as the processor's cache has room for."""
        hot = [sequence for sequence in self._hot if sequence.is_active]
        if len(hot) < len(self._jobs):
            prefixes = {sequence.prefix for sequence in hot}
            room = self._hot_tokens - sum(map(len, prefixes)) - sum(s.own_length for s in hot)
            episodes = {sequence.episode_id for sequence in hot}
            waiting = [self._scheduler.sequence_of(e) for e in self._jobs if e not in episodes]
            # the first has waited for longest
            overdue = self._clock - waiting[0].last_used > PATIENCE
            while waiting and (room > 0 or len(hot) < MIN_HOT):
                shares = next((i for i, s in enumerate(waiting) if s.prefix in prefixes), 0)
                sequence = waiting.pop(0 if overdue else shares)
                room -= sequence.own_length + (0 if sequence.prefix in prefixes else len(sequence.prefix))
                prefixes.add(sequence.prefix)
                hot.append(sequence)
        self._hot = hot

    def _advance(self, hot: Sequence[CachedSequence]) -> list[tuple[int, Completion]]:
        """Compute what `hot` have not read, but for their last tokens, and sample for those that have."""
        by_prefix: dict[Prefix, list[CachedSequence]] = {}
        for sequence in hot:
            by_prefix.setdefault(sequence.prefix, []).append(sequence)
            sequence.last_used = sequence.prefix.last_used = self._clock
        sequences = [sequence for group in by_prefix.values() for sequence in group]
        if reading := [s for s in sequences if s.num_unread > 1]:
            self._read(map(_unread, reading))
            for sequence in reading:
                sequence.num_cached = min(sequence.num_cached + CHUNK, len(sequence.tokens) - 1)
        ready = [(s, self._jobs[s.episode_id]) for s in sequences if s.num_unread == 1]
        plain = [(s, job) for s, job in ready if job.is_plain]
        completions = self._generate(plain) if plain else []
        for _ in range(TOKENS_PER_STEP):
            if others := [(s, job) for s, job in ready if s.is_active and not job.is_plain]:
                completions += self._sample(others)
        return completions

    def _read(self, segments: Iterable[Segment]) -> None:
        """Compute the keys and values of `segments`."""
        batch = make_batch(segments)
        self._count(forwards=1)
        self._share_out(batch, lambda part: self._model.compute(part, logits_of=NO_ROWS))

    def _generate(self, pairs: Sequence[tuple[CachedSequence, _Job]]) -> list[tuple[int, Completion]]:
        """Up to `TOKENS_PER_STEP` tokens for each sequence, by temperature and stop tokens alone."""
        params = [job.request.params for _, job in pairs]
        stops = [p.stop_token_ids for p in params]
        width = max(map(len, stops))
        draws = Draws(
            slots=np.array([s.slot for s, _ in pairs], dtype=np.int64),
            salts=np.array([s.prefix.salt for s, _ in pairs], dtype=np.uint64),
            keys=np.array([job.key for _, job in pairs], dtype=np.uint64),
            temperatures=np.array([p.temperature for p in params], dtype=np.float32),
            stops=np.array([[*ids, *[-1] * (width - len(ids))] for ids in stops], dtype=np.int64),
            limits=np.array([self._room(*pair) for pair in pairs], dtype=np.int64),
        )
        parts = self._share_out(
            make_batch(map(_last_token, pairs), draws),
            lambda part: self._model.generate(part, self._drafts, count=TOKENS_PER_STEP, max_draft=MAX_DRAFT),
        )
        tokens, logprobs = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        forwards, num_drafted, num_accepted = np.array([part[2] for part in parts]).T.tolist()
        self._count(
            forwards=max(forwards), drafted_tokens=sum(num_drafted), accepted_tokens=sum(num_accepted)
        )
        completions = []
        for pair, count, row, row_logprobs in zip(
            pairs, (tokens >= 0).sum(axis=1).tolist(), tokens.tolist(), logprobs.tolist(), strict=True
        ):
            completions += self._append(*pair, row[:count], row_logprobs[:count])
        return completions

    def _sample(self, pairs: Sequence[tuple[CachedSequence, _Job]]) -> list[tuple[int, Completion]]:
        """A token for each sequence, by all of its parameters."""
        parts = self._share_out(
            make_batch(map(_last_token, pairs)),
            lambda part: self._model.compute(part, logits_of=np.arange(len(part.tokens))),
        )
        self._count(forwards=1)
        numbers = uniforms([job.key for _, job in pairs], [len(s.tokens) for s, _ in pairs])
        params = [job.request.params for _, job in pairs]
        tokens, logprobs = sample_tokens(np.concatenate(parts), params=params, uniform=numbers)
        completions = []
        for pair, token, logprob in zip(pairs, tokens, logprobs, strict=True):
            completions += self._append(*pair, [token], [logprob])
        return completions

    def _share_out(self, batch: Batch, work: Callable[[Batch], _Result]) -> list[_Result]:
        """The results of `work` for parts of `batch`, one for each thread; none runs when this returns."""
        if self._pool is None:
            return [work(batch)]
        futures = [self._pool.submit(work, part) for part in batch.split(self._threads)]
        wait(futures)
        return [future.result() for future in futures]

    def _append(
        self, sequence: CachedSequence, job: _Job, tokens: list[int], logprobs: list[float]
    ) -> list[tuple[int, Completion]]:
        """Add sampled tokens to a completion; returns it if it is finished."""
        sequence.num_cached += len(tokens)  # all but the last of them, and the one before
        sequence.tokens += tokens
        job.token_ids += tokens
        job.logprobs += logprobs
        self._count(sampled_tokens=len(tokens))
        reason = self._finish_reason(sequence, job)
        if reason is None:
            return []
        del self._jobs[sequence.episode_id]
        sequence.is_active = False
        completion = Completion(
            token_ids=tuple(job.token_ids),
            logprobs=tuple(job.logprobs),
            finish_reason=reason,
            policy_version=self.policy_version,
        )
        return [(job.request.request_id, completion)]

    def _finish_reason(self, sequence: CachedSequence, job: _Job) -> FinishReason | None:
        is_complete = job.request.is_complete
        if job.token_ids[-1] in job.request.params.stop_token_ids:
            return FinishReason.STOP
        if is_complete is not None and is_complete(job.token_ids):
            return FinishReason.CUT
        return FinishReason.LENGTH if self._room(sequence, job) <= 0 else None

    def _room(self, sequence: CachedSequence, job: _Job) -> int:
        """How many more tokens may be sampled."""
        left = job.request.params.max_tokens - len(job.token_ids)
        return min(left, self._context - len(sequence.tokens))


def _unread(sequence: CachedSequence) -> Segment:
    """What one step reads of a sequence; its last token is left to the step that samples."""
    end = min(sequence.num_cached + CHUNK, len(sequence.tokens) - 1)
    return Segment(sequence.tokens[sequence.num_cached : end], sequence.num_cached, sequence.place)


def _last_token(pair: tuple[CachedSequence, _Job]) -> Segment:
    sequence, _ = pair
    return Segment(sequence.tokens[-1:], sequence.num_cached, sequence.place)
