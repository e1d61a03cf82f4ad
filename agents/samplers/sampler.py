"""The interface between episodes and models: tokens in, a completion out.

`Sampler` is all that an episode knows about a model. `ScriptedSampler` ships with the product, for tests,
benchmarks and demonstrations. The CPU engine is `agents/samplers/cpu/`; on GPUs verl's vLLM server answers
the same call.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol

from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import SamplerFailed, boundary
from envs.types import Image


class Sampler(Protocol):
    """Anything that continues a sequence of tokens."""

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Continue `prompt_ids` ([P], the whole conversation so far), which show `images` in this order.

        The sequences belong to the episode and grow after the call: copy what you keep. `episode_id` is
        the same for all turns of an episode, so that a sampler can keep its KV cache between them.
        Raises `SamplerFailed` if it cannot answer.
        """


async def checked_sample(
    sampler: Sampler,
    prompt_ids: Sequence[int],
    *,
    images: Sequence[Image] = (),
    params: SamplingParams,
    episode_id: str,
    where: str,
) -> Completion:
    """Call `sampler.sample` and check its completion.

    Foreign exceptions and impossible completions become `SamplerFailed`, with `where` in the message;
    the sampler's `WingspanError`s pass through.
    """
    with boundary(SamplerFailed, f"{where}: the sampler"):
        completion = await sampler.sample(prompt_ids, images=images, params=params, episode_id=episode_id)
    length = len(completion.token_ids)
    if not 0 < length <= params.max_tokens or length != len(completion.logprobs):
        raise SamplerFailed(
            f"{where}: the sampler returned {length} tokens and {len(completion.logprobs)} log-probs; "
            f"expected 1 to {params.max_tokens} of each"
        )
    return completion


Script = Callable[[str, int], str]
"""`script(episode_id, turn)`: the text of that turn, counted from 0."""


class ScriptedSampler:
    """Samples prescribed texts, at once or after a simulated latency."""

    def __init__(
        self,
        script: Sequence[str] | Script,
        *,
        encode: Callable[[str], Sequence[int]],
        latency_s: float = 0.0,
        policy_version: int = 0,
    ) -> None:
        """`script`: the texts of every episode's turns, in order, or a function that returns them.

        `encode` turns a text into tokens, without adding any. Each completion takes `latency_s`.
        """
        self.policy_version = policy_version
        self._script = script
        self._encode = lru_cache(maxsize=4096)(encode)
        self._latency_s = latency_s
        self._turns_taken: Counter[str] = Counter()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """The script's next text and the first stop token, cut at `max_tokens`; log-probs are 0.0."""
        # Suspends even without latency, as a model would, so that episodes take turns.
        await asyncio.sleep(self._latency_s)
        turn = self._turns_taken[episode_id]
        self._turns_taken[episode_id] += 1
        ids = [*self._encode(self._text(episode_id, turn)), *params.stop_token_ids[:1]]
        has_stop_token = bool(params.stop_token_ids) and len(ids) <= params.max_tokens
        ids = ids[: params.max_tokens]
        return Completion(
            token_ids=tuple(ids),
            logprobs=(0.0,) * len(ids),
            finish_reason=FinishReason.STOP if has_stop_token else FinishReason.LENGTH,
            policy_version=self.policy_version,
        )

    def _text(self, episode_id: str, turn: int) -> str:
        if callable(self._script):
            return self._script(episode_id, turn)
        if turn >= len(self._script):
            raise SamplerFailed(
                f"{episode_id}: the script has {len(self._script)} texts; add one for turn {turn + 1}"
            )
        return self._script[turn]
