"""The CPU engine behind the `Sampler` protocol: many coroutines in front, one engine thread behind.

`CpuSampler` is used as it is within a process, and as a Ray actor by `ray.remote(CpuSampler)`. Owns the
hand-over between event loop and thread, and the errors of requests; `engine.py` owns what a step does.
"""

import asyncio
import itertools
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from agents.huggingface.files import load_config
from agents.process_memory import keep_freed_memory, no_garbage_collection
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

    Every method may be called from any event loop; only one thread touches the engine itself.

    The same seed, weights, episode id and prompts give the same tokens and log-probs to the last bit,
    whatever else is sampled at the same time.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        context_length: int,
        max_sequences: int = 256,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        """`model`: a folder in Hugging Face format. `context_length`: tokens of a whole episode.
        `max_sequences`: episodes in the cache. `threads`: the number of threads that share the sequences of
        each step.

        Raises `ConfigError` if the model or a value is not supported.
        """
        with no_garbage_collection():
            import torch

            from agents.samplers.cpu.engine import CpuEngine
            from agents.samplers.cpu.llama import read_checkpoint

        torch.set_num_threads(1)
        keep_freed_memory()
        shape, weights = read_checkpoint(Path(model))
        self._engine = CpuEngine(
            shape,
            weights,
            context_length=context_length,
            max_sequences=max_sequences,
            seed=seed,
            threads=threads,
        )
        self._folder = Path(model)
        self._tokenizer_decode: Decode | None = None
        self._ids = itertools.count()
        self._answers: dict[int, Callable[[Completion | WingspanError], None]] = {}
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="cpu-sampler", daemon=True)
        self._thread.start()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Continue `prompt_ids` ([P], the whole conversation), keeping its keys and values for the next turn.

        Raises `ConfigError` for a request that can never be answered, `SamplerFailed` if the engine
        failed. A cancelled call leaves the batch.
        """
        from agents.samplers.cpu.engine import SamplingRequest

        if images:
            raise ConfigError(
                f"{episode_id}: {len(images)} images, but the CPU engine reads text only; use a "
                "vision-language model on vLLM, or leave the images out"
            )
        request = SamplingRequest(
            request_id=next(self._ids),
            episode_id=episode_id,
            prompt_ids=list(prompt_ids),
            params=params,
            is_complete=StopDetector(params.stop, decode=self._decode).is_reached if params.stop else None,
        )
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def submit() -> None:
            self._answers[request.request_id] = _resolver(answer)
            try:
                self._engine.submit(request)
            except Exception as error:  # for the caller, whatever it is; the engine is unchanged
                failure = error if isinstance(error, WingspanError) else SamplerFailed(describe(error))
                self._answers.pop(request.request_id)(failure)

        def cancel() -> None:
            # a newer request of the same episode must go on
            if self._answers.pop(request.request_id, None):
                self._engine.cancel(episode_id)

        self._enqueue(submit)
        try:
            return await answer
        except asyncio.CancelledError:
            with suppress(SamplerFailed):  # closed meanwhile
                self._enqueue(cancel)
            raise

    async def load_weights(self, weights: "Mapping[str, torch.Tensor]", *, policy_version: int) -> None:
        """Sample with `weights` (Hugging Face names) from the next step on.

        The cache is dropped, and completions in progress start again, so that each is sampled by one
        policy. Raises `ConfigError`, with nothing changed, if the weights do not fit.
        """
        await self._ask(lambda: self._engine.load_weights(weights, policy_version=policy_version))

    async def stats(self) -> "EngineStats":
        """Counts since the start."""
        return await self._ask(lambda: self._engine.stats)

    def close(self) -> None:
        """End the thread; requests that still wait raise `SamplerFailed`."""
        with self._lock:
            self._is_closed = True
            self._commands.put(None)
        self._thread.join()
        self._engine.close()

    async def _ask(self, question: Callable[[], _Result]) -> _Result:
        answer: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()
        resolve = _resolver(answer)

        def reply() -> None:
            try:
                resolve(question())
            except Exception as error:  # for the caller, whatever it is; the engine is unchanged
                resolve(error)

        self._enqueue(reply)
        return await answer

    def _enqueue(self, command: Callable[[], None]) -> None:
        with self._lock:  # None, which ends the thread, stays the last command
            if self._is_closed:
                raise SamplerFailed("the CPU sampler was closed; make a new one")
            self._commands.put(command)

    def _run(self) -> None:
        while self._run_commands():
            try:
                for request_id, completion in self._engine.step():
                    self._answers.pop(request_id)(completion)
            except Exception as error:
                # no caller may wait for ever, and the cache may be inconsistent
                self._engine.reset()
                failure = error if isinstance(error, SamplerFailed) else None
                self._fail_all(failure or SamplerFailed(f"the CPU engine failed: {describe(error)}"))
        self._fail_all(SamplerFailed("the CPU sampler was closed"))

    def _run_commands(self) -> bool:
        """Run the commands in the queue, waiting for one if the engine is idle; False to end."""
        while True:
            try:
                command = self._commands.get(block=not self._engine.is_busy)
            except queue.Empty:
                return True
            if command is None:
                return False
            command()

    def _decode(self, token_ids: Sequence[int]) -> str:
        """Called by the engine's thread alone."""
        if self._tokenizer_decode is None:
            self._tokenizer_decode = _decoder_of(self._folder)
        return self._tokenizer_decode(token_ids)

    def _fail_all(self, error: SamplerFailed) -> None:
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(error)


def _decoder_of(folder: Path) -> Decode:
    """Decodes with the tokenizer in a model's folder; without one, every text is empty, stop texts are never
    found here, and the caller cuts what was sampled beyond them."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        return lambda _: ""
    tokenizer = Tokenizer.from_file(str(file))
    return lambda token_ids: str(tokenizer.decode(token_ids, skip_special_tokens=True))


def _resolver(future: "asyncio.Future[_Result]") -> Callable[[_Result | Exception], None]:
    """A function that sets `future` from another thread; it does nothing if the loop is closed."""
    loop = future.get_loop()

    def settle(result: _Result | Exception) -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def resolve(result: _Result | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed, perhaps only now
            loop.call_soon_threadsafe(settle, result)

    return resolve


def is_supported(folder: str | os.PathLike[str]) -> bool:
    """Whether the engine knows the architecture of the model in `folder`."""
    from agents.samplers.cpu.llama import MODEL_TYPES

    return load_config(Path(folder)).model_type in MODEL_TYPES
