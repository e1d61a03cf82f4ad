"""The samplers that `bench/sampler.py` compares, each as a context manager with the `Sampler` protocol.

- `cpu`: the CPU engine
- `transformers`: the product's other sampler, one completion at a time
- `generate`: transformers' `generate` over all requests that wait, as one left-padded batch
- `continuous`: transformers' continuous batching with its paged cache
- `vllm`: vLLM on the CPU, in its own process

All sample in float32 and return log-probs.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from agents.types import Completion, FinishReason, SamplingParams
from envs.types import Image

if TYPE_CHECKING:
    from agents.samplers.cpu import CpuSampler
    from agents.samplers.transformers import TransformersSampler
    from agents.samplers.vllm import VllmSampler


class Subject(ABC):
    """A `Sampler` that the benchmark can close, and whose cache it can drop."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027
        """Free threads and processes, where there are any."""

    async def drop_cache(self) -> None:  # noqa: B027
        """Drop keys and values of earlier episodes, where the sampler does not do it by itself."""

    @abstractmethod
    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """As `Sampler.sample`."""


def _completion(token_ids: Sequence[int], logprobs: Sequence[float]) -> Completion:
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=tuple(logprobs),
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
    )


class Delegate(Subject):
    """One of the product's own samplers."""

    def __init__(self, sampler: "CpuSampler | TransformersSampler | VllmSampler") -> None:
        self._sampler = sampler

    def close(self) -> None:
        self._sampler.close()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        return await self._sampler.sample(prompt_ids, images=images, params=params, episode_id=episode_id)


class WithCache(Delegate):
    """One that keeps keys and values between turns, and drops them with the weights."""

    def __init__(self, sampler: "CpuSampler | VllmSampler", *, folder: Path) -> None:
        super().__init__(sampler)
        self._with_weights = sampler
        self._folder = folder

    async def drop_cache(self) -> None:
        from safetensors.torch import load_file

        await self._with_weights.load_weights(load_file(self._folder / "model.safetensors"), policy_version=1)


def make_cpu(folder: Path, **options: Any) -> WithCache:
    """The CPU engine."""
    from agents.samplers.cpu import CpuSampler

    return WithCache(CpuSampler(folder, **options), folder=folder)


def make_vllm(folder: Path, **options: Any) -> WithCache:
    """vLLM as it trains on a CPU."""
    from agents.samplers.vllm import VllmSampler, find_python

    return WithCache(VllmSampler(folder, python=find_python(), **options), folder=folder)


class OneByOne(Delegate):
    """The product's sampler of models that the CPU engine does not know."""

    def __init__(self, folder: Path, *, context_length: int, **_: Any) -> None:
        from agents.samplers.transformers import TransformersSampler

        super().__init__(TransformersSampler(folder, None, context_length=context_length))


class Generate(Subject):
    """transformers' `generate`: all waiting requests in one batch, computed from their first token."""

    def __init__(self, folder: Path, **_: Any) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        self._waiting: list[tuple[list[int], SamplingParams, asyncio.Future[Completion]]] = []

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Wait for the other requests of this turn of the event loop, then sample all."""
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            asyncio.get_running_loop().call_later(0.001, self._run)
        self._waiting.append((list(prompt_ids), params, answer))
        return await answer

    def _run(self) -> None:
        import torch

        batch, self._waiting = self._waiting, []
        width = max(len(prompt) for prompt, _, _ in batch)
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _, _ in batch])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _, _ in batch])
        with torch.inference_mode():
            result = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=batch[0][1].max_tokens,
                do_sample=True,
                top_k=0,
                eos_token_id=-1,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            )
            tokens = result.sequences[:, width:]
            logprobs = torch.stack(result.logits, dim=1).log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        for (_, _, answer), row, row_logprobs in zip(batch, tokens.tolist(), logprobs.tolist(), strict=True):
            answer.set_result(_completion(row, row_logprobs))


class ContinuousBatching(Subject):
    """transformers' continuous batching."""

    def __init__(self, folder: Path, *, context_length: int, max_sequences: int, **_: Any) -> None:
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", attn_implementation="sdpa"
        ).eval()
        self._manager = model.init_continuous_batching(
            GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1, max_new_tokens=context_length),
            ContinuousBatchingConfig(
                return_logprobs=True,
                max_batch_tokens=1024,
                num_blocks=(max_sequences + 1) * context_length // 32,
                block_size=32,
                use_cuda_graph=False,
            ),
        )
        self._manager.start()
        self._requests = 0

    def close(self) -> None:
        self._manager.stop(block=True)
        self._manager.destroy()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """One request of the manager."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests += 1
        request_id = str(self._requests)
        self._manager.register_result_handler(request_id, answer.set_result)
        self._manager.add_request(list(prompt_ids), request_id, max_new_tokens=params.max_tokens)
        output = await answer
        assert output.error is None, output.error
        return _completion(output.generated_tokens, output.logprobs)


SAMPLERS: dict[str, Callable[..., Subject]] = {
    "cpu": make_cpu,
    "transformers": OneByOne,
    "generate": Generate,
    "continuous": ContinuousBatching,
    "vllm": make_vllm,
}
