"""The CPU engine behind the `Sampler` seam: many coroutines in front, one engine thread behind.

`CpuSampler` is used in process as it is, and as a Ray actor by `ray.remote(CpuSampler)`. Owns the
hand-over between event loop and thread, and what becomes of a request when something fails; what
an engine step does is in `engine_cpu.py`.
"""

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agents.malloc import keep_freed_memory
from agents.samplers.stop_texts import Decode, StopDetector
from agents.types import Completion, SamplingParams
from envs.errors import ConfigError, SamplerFailed, WingspanError, describe
from envs.types import Image

if TYPE_CHECKING:
    import torch

    from agents.samplers.cpu.engine import EngineStats

_Result = TypeVar("_Result")


class CpuSampler:
    """Samples completions on the CPU; implements `agents.samplers.sampler.Sampler`.

    Every method may be called from any event loop; the engine itself is touched by one thread only.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context_length: int,
        max_sequences: int = 256,
        cache_gb: float = 4.0,
        seed: int = 0,
        policy_version: int = 0,
        threads: int = 1,
    ) -> None:
        """`model`: a folder in Hugging Face format. `threads`: torch threads of this process; more than
        one pays only on an otherwise idle machine. The rest is as for `CpuEngine`.

        Raises `ConfigError` if the model or a value is not supported.
        """
        import torch

        from agents.samplers.cpu.engine import CpuEngine
        from agents.samplers.cpu.llama import read_checkpoint

        torch.set_num_threads(threads)
        keep_freed_memory()
        shape, weights = read_checkpoint(Path(model))
        self._engine = CpuEngine(
            shape,
            weights,
            context_length=context_length,
            max_sequences=max_sequences,
            cache_gb=cache_gb,
            seed=seed,
            policy_version=policy_version,
        )
        self._folder = Path(model)
        self._decode: Decode | None = None
        self._ids = itertools.count()
        self._answers: dict[int, Callable[[Completion | WingspanError], None]] = {}
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(threads,), name="cpu-sampler", daemon=True)
        self._thread.start()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Continue `prompt_ids` ([P], the whole conversation); see `agents.samplers.sampler.Sampler`.

        Raises `ConfigError` for a request that can never be answered, `SamplerFailed` where the
        engine broke. A cancelled call frees its place in the batch.
        """
        from agents.samplers.cpu.engine import Request

        if images:
            raise ConfigError(
                f"{episode_id}: {len(images)} pictures, but the CPU engine reads text only; use a "
                "vision-language model on vLLM, or leave the pictures out"
            )
        request = Request(
            request_id=next(self._ids),
            episode_id=episode_id,
            prompt_ids=list(prompt_ids),
            params=params,
            is_enough=StopDetector(params.stop, decode=self._decoded).is_reached if params.stop else None,
        )
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def take() -> None:
            self._answers[request.request_id] = _resolver(answer)
            try:
                self._engine.submit(request)
            except WingspanError as error:
                self._answers.pop(request.request_id)(error)

        def forget() -> None:
            # a newer request of the episode must not be cancelled with this one
            if self._answers.pop(request.request_id, None):
                self._engine.cancel(episode_id)

        self._order(take)
        try:
            return await answer
        except asyncio.CancelledError:
            self._order(forget)
            raise

    async def load_weights(self, weights: "Mapping[str, torch.Tensor]", *, policy_version: int) -> None:
        """Sample with `weights` (Hugging Face names) from the next step on; see `CpuEngine`."""
        await self._ask(lambda: self._engine.load_weights(weights, policy_version=policy_version))

    async def policy_version(self) -> int:
        """Global step of the weights in use."""
        return await self._ask(lambda: self._engine.policy_version)

    async def stats(self) -> "EngineStats":
        """Counts since the start."""
        return await self._ask(lambda: self._engine.stats)

    def close(self) -> None:
        """End the thread; whoever still waits gets `SamplerFailed`."""
        self._orders.put(None)
        self._thread.join()

    async def _ask(self, question: Callable[[], _Result]) -> _Result:
        answer: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        resolve = _resolver(answer)

        def reply() -> None:
            try:
                resolve(question())
            except Exception as error:  # the asker's, whatever it is; the engine is as it was
                resolve(error)

        self._order(reply)
        return await answer

    def _order(self, order: Callable[[], None]) -> None:
        if not self._thread.is_alive():
            raise SamplerFailed("the CPU sampler was closed; make a new one")
        self._orders.put(order)

    def _run(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)  # OpenMP counts per calling thread
        while self._take_orders():
            try:
                for request_id, completion in self._engine.step():
                    self._answers.pop(request_id)(completion)
            except Exception as error:
                # nobody may wait for ever, and what the cache holds is no longer certain
                self._engine.reset()
                failure = error if isinstance(error, SamplerFailed) else None
                self._fail_all(failure or SamplerFailed(f"the CPU engine failed: {describe(error)}"))
        self._fail_all(SamplerFailed("the CPU sampler was closed"))

    def _take_orders(self) -> bool:
        """Carry out what came in, waiting for it if there is nothing else to do; False to end."""
        while True:
            try:
                order = self._orders.get(block=not self._engine.busy)
            except queue.Empty:
                return True
            if order is None:
                return False
            order()

    def _decoded(self, token_ids: list[int]) -> str:
        """Called by the engine's thread alone."""
        if self._decode is None:
            self._decode = _decoder_of(self._folder)
        return self._decode(token_ids)

    def _fail_all(self, error: SamplerFailed) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(error)


def _decoder_of(folder: Path) -> Decode:
    """What tokens say, by the tokenizer in a model's folder; nothing where there is none, and then whoever
    asked cuts what was sampled beyond a stop text."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        return lambda _: ""
    tokenizer = Tokenizer.from_file(str(file))
    return lambda token_ids: str(tokenizer.decode(token_ids, skip_special_tokens=True))


def _resolver(future: "asyncio.Future[_Result]") -> Callable[[_Result | Exception], None]:
    """What sets `future` from another thread; nothing happens if its owner is gone."""
    loop = future.get_loop()

    def settle(result: _Result | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def resolve(result: _Result | Exception) -> None:
        # a closed loop has nobody left to tell
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result)

    return resolve
