"""Serves the policy in training over OpenAI's protocol: `wingspan run --serve-policy`.

Owns where it is served and when it answers: not while the weights change, when a sampler may be asleep. The
gateway runs in the training process, beside the rollouts, and uses the same sampler.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from agents.gateway.gateway import Gateway
from agents.samplers.sampler import Sampler
from agents.types import Completion, SamplingParams
from envs.errors import ConfigError
from envs.network.server import bind
from envs.network.tokens import read_token
from envs.redaction import register_secret
from envs.types import Image
from tasks.config.pipelines import Pipeline

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

MODEL = "policy"
"""The name that requests give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAt:
    """Where the policy is served."""

    host: str
    port: int
    token: str | None
    """Required of requests; None requires no token."""

    @classmethod
    def read(cls, text: str) -> Self:
        """Parse `8001` or `0.0.0.0:8001`; the token comes from the environment. Raises `ConfigError`."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"--serve-policy {text!r} is not PORT or HOST:PORT; give e.g. 8001")
        token = read_token()
        register_secret(token)
        return cls(host=host or "127.0.0.1", port=int(port), token=token)

    def check(self) -> None:
        """Raise `ConfigError` if the address is not available on this machine."""
        bind(self.host, self.port).close()

    @property
    def url(self) -> str:
        """The base URL of clients."""
        return f"http://{self.host}:{self.port}/v1"


class PausableSampler:
    """A `Sampler` that can be paused: requests then wait, and none keeps running on its sampler."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._is_resumed = asyncio.Event()
        self._is_resumed.set()
        self._running: set[asyncio.Task[Completion]] = set()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        while not self._is_resumed.is_set():  # it may be paused again before this task runs
            await self._is_resumed.wait()
        work = asyncio.create_task(
            self._sampler.sample(prompt_ids, images=images, params=params, episode_id=episode_id)
        )
        self._running.add(work)
        work.add_done_callback(self._running.discard)
        # Not every sampler can cancel a completion: if the client disconnects, it still runs to its end.
        return await asyncio.shield(work)

    async def pause(self) -> None:
        """Hold back new requests; returns when all running requests are answered."""
        self._is_resumed.clear()
        if self._running:
            await asyncio.wait(self._running)

    def resume(self) -> None:
        """Release the waiting requests."""
        self._is_resumed.set()


class ServedPolicy:
    """The endpoint, in the event loop in which it is started."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        address: ServedAt,
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`processor` is that of a vision-language model. Raises `ConfigError` for a bad chat template."""
        self._sampler = PausableSampler(sampler)
        self._address = address
        self._gateway = Gateway(
            self._sampler,
            tokenizer,
            sampling=pipeline.rollout.sampling(temperature=pipeline.evaluate.temperature),
            context_length=pipeline.rollout.context_length,
            model=MODEL,
            token=address.token,
            processor=processor,
        )
        self._listening = AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises `ConfigError` if the address is not available."""
        host, port = self._address.host, self._address.port
        await self._listening.enter_async_context(self._gateway.listening(host, port))

    async def pause(self) -> None:
        """Answer no requests until `resume`; returns when the sampler has finished all of them."""
        await self._sampler.pause()

    async def resume(self) -> None:
        """Answer requests again, with the sampler's present weights."""
        self._sampler.resume()

    async def close(self) -> None:
        """Stop listening; running requests are answered."""
        self._sampler.resume()
        await self._listening.aclose()
