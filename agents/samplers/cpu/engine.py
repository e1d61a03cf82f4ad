"""The CPU rollout engine: continuous batching over live episodes, synchronous and without Ray.

Every `step` is one forward in which each active episode advances: by one token while it samples, by
up to `CHUNK` tokens while it reads an observation. New requests join at any step. Owns requests and
the order of things; who is in the cache is in `residents_cpu.py`, the arithmetic in `llama_cpu.py`,
`kv_cpu.py` and `draw.py`, threads and futures in `sampler_cpu.py`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from agents.samplers.cpu.kv_cache import Prefix, PromptAttention, Segment, SlotAttention
from agents.samplers.cpu.llama import Llama, ModelShape
from agents.samplers.cpu.scheduler import Resident, Residents
from agents.samplers.sampling import check_params, draw, random_key, uniforms
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError

CHUNK = 64
"""Most tokens of one observation that are read in one step."""
PROMPT_TOKENS = 768
"""Tokens of new prompts in one forward (unless one is longer); more does not pay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One completion to sample."""

    request_id: int
    episode_id: str
    prompt_ids: list[int]  # [P], the whole conversation so far
    params: SamplingParams
    is_enough: Callable[[list[int]], bool] | None = None
    """Asked after each token, of all that were sampled, whether the completion ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counts since the engine was made."""

    sampled: int = 0
    """Tokens drawn."""
    prefilled: int = 0
    """Tokens of prompts and observations that had to be computed."""
    reused: int = 0
    """Tokens of prompts that were found in the cache."""
    batches: int = 0
    """Forwards."""
    evicted: int = 0
    """Episodes whose slot was given to another."""
    seconds: float = 0.0
    """Wall time inside `step`."""


@dataclass(slots=True, eq=False)
class _Job:
    """A completion under way."""

    request: Request
    key: int
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class CpuEngine:
    """Samples completions of a small Llama or Qwen2, keeping keys and values across an episode's turns.

    The same seed, weights version, episode id and prompt give the same tokens, whatever else is in
    the batch (up to the last bits of floating-point sums).
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Mapping[str, torch.Tensor],
        *,
        context_length: int,
        max_sequences: int = 256,
        cache_gb: float = 4.0,
        seed: int = 0,
        policy_version: int = 0,
    ) -> None:
        """`context_length`: tokens of a whole episode; `max_sequences`: episodes in the cache;
        `cache_gb`: most memory for keys and values, half for episodes and half for shared prompts,
        taken only as it is used. Fewer episodes are held where memory does not suffice.

        Raises `ConfigError` if the model, its context or the cache does not fit.
        """
        if context_length > shape.max_context:
            raise ConfigError(
                f"context_length {context_length} is more than the model's {shape.max_context} "
                "(max_position_embeddings in config.json); lower rollout.context_length"
            )
        self.shape = shape
        self.policy_version = policy_version
        self._context = context_length
        self._seed = seed
        self._model = Llama(shape, weights, max_context=context_length)
        self._residents = Residents(
            shape, context_length=context_length, max_sequences=max_sequences, cache_gb=cache_gb
        )
        self._waiting: dict[str, Request] = {}  # by episode, first come first
        self._jobs: dict[str, _Job] = {}  # by episode
        self._stats = EngineStats()
        self._clock = 0

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._jobs)

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was made."""
        return replace(self._stats, evicted=self._residents.evicted)

    def submit(self, request: Request) -> None:
        """Take a request; `step` will return its completion. Raises `ConfigError` if it cannot."""
        check_params(request.params, vocab_size=self.shape.vocab_size)
        prompt, episode = request.prompt_ids, request.episode_id
        if not 0 < len(prompt) < self._context:
            raise ConfigError(
                f"prompt of {len(prompt)} tokens (episode {episode}) must have 1 to {self._context - 1}, to "
                "leave room within the context; raise rollout.context_length"
            )
        if min(prompt) < 0 or max(prompt) >= self.shape.vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self.shape.vocab_size)
            raise ConfigError(
                f"prompt token {wrong} (episode {episode}) is outside the model's vocabulary of "
                f"{self.shape.vocab_size}; use the tokenizer in the model's folder"
            )
        if episode in self._waiting or episode in self._jobs:
            raise ConfigError(
                f"episode {episode} already waits for a completion; give each episode its own id"
            )
        self._waiting[episode] = request

    def cancel(self, episode_id: str) -> None:
        """Forget the episode's request, if it has one; what is cached stays until it is evicted."""
        self._waiting.pop(episode_id, None)
        self._jobs.pop(episode_id, None)
        self._residents.rest(episode_id)

    def load_weights(self, weights: Mapping[str, torch.Tensor], *, policy_version: int) -> None:
        """Sample with `weights` (Hugging Face names) from the next step on.

        Everything cached is dropped. Completions under way start again, so that each one is sampled
        by one policy. Raises `ConfigError`, with nothing changed, if the weights do not fit.
        """
        self._model = Llama(self.shape, weights, max_context=self._context)
        self.policy_version = policy_version
        unanswered = {episode: job.request for episode, job in self._jobs.items()} | self._waiting
        self.reset()
        self._waiting = unanswered

    def reset(self) -> None:
        """Forget every request, episode and prompt."""
        self._waiting, self._jobs = {}, {}
        self._residents.clear()

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        """Advance every active episode; returns (request id, completion) of those that finished.

        Should it raise, nothing cached can be trusted: `reset` before another step.
        """
        started = time.perf_counter()
        self._clock += 1
        self._admit()
        active = self._residents.active(clock=self._clock)
        finished = self._advance(active) if active else []
        self._count(seconds=time.perf_counter() - started)
        return finished

    def _count(self, **more: float) -> None:
        before = self._stats
        self._stats = replace(before, **{name: getattr(before, name) + n for name, n in more.items()})

    def _admit(self) -> None:
        """Give waiting requests their places, as far as there are any, and compute new prompts."""
        for episode, request in list(self._waiting.items()):
            if resident := self._residents.resume(episode, request.prompt_ids):
                self._start(request, resident)
                self._count(reused=resident.cached)
        unfilled: list[Prefix] = []
        for episode, request in list(self._waiting.items()):
            resident = self._residents.enter(episode, request.prompt_ids, clock=self._clock)
            if resident is None:
                break
            self._start(request, resident)
            prefix = resident.prefix
            if prefix.keys or prefix in unfilled:
                self._count(reused=len(prefix))
            elif len(prefix):
                unfilled.append(prefix)
                self._count(prefilled=len(prefix))
        if unfilled:
            self._fill(unfilled)
            self._residents.forget_unused_prefixes()

    def _start(self, request: Request, resident: Resident) -> None:
        del self._waiting[request.episode_id]
        key = random_key(self._seed, self.policy_version, request.episode_id)
        self._jobs[request.episode_id] = _Job(request, key)
        self._count(prefilled=len(resident.tokens) - resident.cached)

    def _fill(self, prefixes: list[Prefix]) -> None:
        """Compute `prefixes`, several to a forward."""
        while prefixes:
            batch = [prefixes.pop()]
            while prefixes and sum(map(len, batch)) + len(prefixes[-1]) <= PROMPT_TOKENS:
                batch.append(prefixes.pop())
            attention = PromptAttention(batch, shape=self.shape)
            self._model.forward(
                attention.tokens, positions=attention.positions, attend=attention, logits_of=None
            )
            self._count(batches=1)

    def _advance(self, active: Sequence[Resident]) -> list[tuple[int, Completion]]:
        """One forward for all of `active`, and a token for each that has nothing left to read."""
        segments = [
            Segment(
                slot=r.slot, prefix=r.prefix, start=r.cached, tokens=r.tokens[r.cached : r.cached + CHUNK]
            )
            for r in active
        ]
        attention = SlotAttention(segments, slots=self._residents.slots, shape=self.shape)
        sampling: list[Resident] = []
        logits_of: list[int] = []
        for segment, last in zip(attention.segments, attention.last_of_segment, strict=True):
            resident = self._residents.at(segment.slot)
            resident.cached += len(segment.tokens)
            resident.last_used = resident.prefix.last_used = self._clock
            if resident.cached == len(resident.tokens):
                sampling.append(resident)
                logits_of.append(last)
        logits = self._model.forward(
            attention.tokens,
            positions=attention.positions,
            attend=attention,
            logits_of=torch.tensor(logits_of, dtype=torch.int64),
        )
        self._count(batches=1, sampled=len(sampling))
        return self._sample(sampling, logits) if sampling else []

    def _sample(self, residents: Sequence[Resident], logits: torch.Tensor) -> list[tuple[int, Completion]]:
        jobs = [self._jobs[resident.episode_id] for resident in residents]
        uniform = uniforms([job.key for job in jobs], [resident.cached for resident in residents])
        tokens, logprobs = draw(logits, params=[job.request.params for job in jobs], uniform=uniform)
        finished = []
        for resident, job, token, logprob in zip(residents, jobs, tokens, logprobs, strict=True):
            resident.tokens.append(token)
            job.token_ids.append(token)
            job.logprobs.append(logprob)
            params = job.request.params
            reason = FinishReason.STOP if token in params.stop_token_ids else None
            if reason is None and job.request.is_enough is not None and job.request.is_enough(job.token_ids):
                reason = FinishReason.CUT
            if len(job.token_ids) >= params.max_tokens or len(resident.tokens) >= self._context:
                reason = reason or FinishReason.LENGTH
            if reason is not None:
                completion = Completion(
                    token_ids=job.token_ids,
                    logprobs=job.logprobs,
                    finish_reason=reason,
                    policy_version=self.policy_version,
                )
                del self._jobs[resident.episode_id]
                resident.active = False
                finished.append((job.request.request_id, completion))
        return finished
