"""The policy that is being trained, served by OpenAI's protocol: `wingspan run --serve-policy`.

Owns where it is served and when it answers: not while the weights change, when a sampler may be asleep. The
gateway lives in the training process, beside the rollouts, and asks the same sampler.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from agents.gateway.gateway import Gateway, listener
from agents.samplers.sampler import Sampler
from agents.types import Completion, SamplingParams
from envs.errors import ConfigError
from envs.redaction import register_secret
from envs.types import Image
from tasks.config.settings import Pipeline
from tasks.rollout.runner import sampling_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

TOKEN_VARIABLE = "WINGSPAN_TOKEN"
MODEL = "policy"
"""The name that requests give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAt:
    """Where the policy is served."""

    host: str
    port: int
    token: str | None
    """Asked of requests; None is open to all."""

    @classmethod
    def read(cls, text: str) -> Self:
        """`8001` or `0.0.0.0:8001`; the token is that of the environment. Raises `ConfigError`."""
        host, _, port = text.rpartition(":")
        if not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"--serve-policy {text!r} is no PORT or HOST:PORT; give e.g. 8001")
        token = os.environ.get(TOKEN_VARIABLE) or None
        register_secret(token)
        return cls(host=host or "127.0.0.1", port=int(port), token=token)

    def check(self) -> None:
        """Raise `ConfigError` if the address cannot be had on this machine."""
        listener(self.host, self.port).close()

    @property
    def url(self) -> str:
        """As clients take it."""
        return f"http://{self.host}:{self.port}/v1"


class Doorway:
    """A `Sampler` that can be shut: requests then wait, and none is left with the sampler behind it."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._opened = asyncio.Event()
        self._opened.set()
        self._inside: set[asyncio.Task[Completion]] = set()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """See `Sampler`."""
        while not self._opened.is_set():  # it may be shut again before who waits comes to run
            await self._opened.wait()
        work = asyncio.create_task(
            self._sampler.sample(prompt_ids, images=images, params=params, episode_id=episode_id)
        )
        self._inside.add(work)
        work.add_done_callback(self._inside.discard)
        # Not every sampler can break off: one whose client has left is sampled to its end, and waited for.
        return await asyncio.shield(work)

    async def shut(self) -> None:
        """Let nobody in; returns when all that are inside have their answers."""
        self._opened.clear()
        if self._inside:
            await asyncio.wait(self._inside)

    def open(self) -> None:
        """Let in whoever waits."""
        self._opened.set()


class ServedPolicy:
    """The endpoint, in the event loop in which it is started."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        at: ServedAt,
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`processor`: of a model that sees. Raises `ConfigError` for a chat template that cannot be used."""
        self._door = Doorway(sampler)
        self._at = at
        self._gateway = Gateway(
            self._door,
            tokenizer,
            sampling=sampling_of(pipeline, temperature=pipeline.evaluate.temperature),
            context_length=pipeline.rollout.context_length,
            model=MODEL,
            token=at.token,
            processor=processor,
        )
        self._listening = AsyncExitStack()

    async def start(self) -> None:
        """Listen. Raises `ConfigError` where the address cannot be had."""
        await self._listening.enter_async_context(self._gateway.listening(self._at.host, self._at.port))

    async def pause(self) -> None:
        """Answer nobody until `resume`; returns when the sampler has nothing more to do for others."""
        await self._door.shut()

    async def resume(self) -> None:
        """Answer, with the weights that the sampler has now."""
        self._door.open()

    async def close(self) -> None:
        """Stop listening; answers under way are given."""
        self._door.open()
        await self._listening.aclose()
