"""The seam between episodes and models: tokens in, a completion out.

`Sampler` is all that an episode knows of a model. `ScriptedSampler` ships with the product: tests,
benchmarks and demonstrations play through it. The CPU engine is in `agents/sampler_cpu.py`; on
GPUs verl's vLLM server answers the same call.
"""

from collections.abc import Sequence
from typing import Protocol

from agents.types import Completion, SamplingParams


class Sampler(Protocol):
    """Anything that continues a sequence of tokens."""

    async def sample(
        self, prompt_ids: Sequence[int], *, params: SamplingParams, episode_id: str
    ) -> Completion:
        """Continue `prompt_ids` ([P], the whole conversation so far).

        `episode_id` is the same for all turns of an episode, so that a sampler may keep its KV
        cache between them. Raises `SamplerFailed` if it cannot answer.
        """
        ...
