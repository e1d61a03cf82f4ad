"""The gateway: serves a policy over OpenAI's protocol and opens sessions for agent programs."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.applications import Starlette

from agents.gateway.app import make_app
from agents.gateway.limits import GatewayLimits
from agents.gateway.policy import Policy
from agents.gateway.sessions import GatewaySession, GatewaySessions
from agents.samplers.sampler import Sampler
from agents.types import Label, SamplingParams
from envs.errors import ConfigError
from envs.network.server import RequestRejected, listening
from envs.types import Item

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


class Gateway:
    """One policy behind OpenAI's protocol."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        sampling: SamplingParams,
        context_length: int,
        model: str = "policy",
        limits: GatewayLimits = GatewayLimits(),
        token: str | None = None,
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`sampling`: the defaults of requests. `model`: the name that requests give. `token`: required of
        all requests but a session's own; None: of none. `processor`: of a vision model
        (`agents.prompting.images.load_processor`).

        Raises `ConfigError` for a chat template that cannot be used.
        """
        policy = Policy(
            sampler,
            tokenizer,
            name=model,
            sampling=sampling,
            context_length=context_length,
            processor=processor,
        )
        self.model = model
        self.policy = policy
        self.limits = limits
        self.sessions = GatewaySessions(limits)
        self.app: Starlette = make_app(policy, self.sessions, limits=limits, token=token)
        self._url: str | None = None

    @asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
        """Serve in this event loop while inside; gives the URL. Port 0 takes a free one.

        Raises `ConfigError` if the address is not available. On leaving, requests under way may finish.
        """
        async with listening(self.app, host, port) as bound_port:
            self._url = f"http://{host}:{bound_port}"
            try:
                yield self._url
            finally:
                self._url = None

    @asynccontextmanager
    async def session(
        self,
        item: Item,
        *,
        sample_index: int = 0,
        name: str | None = None,
        max_turns: int | None = None,
        metadata: Mapping[str, Label] | None = None,
    ) -> AsyncIterator[GatewaySession]:
        """An episode of `item`, for a program at its `base_url`; `trajectory` works after the end, too.

        `name` is the sampler's key and seed: equal names give equal samples. Raises `ConfigError` if the
        gateway is not listening or has too many sessions.
        """
        if self._url is None:
            raise ConfigError("the gateway is not listening; open sessions within `gateway.listening()`")
        try:
            session = self.sessions.open(
                GatewaySession(
                    policy=self.policy,
                    item=item,
                    url=self._url,
                    sample_index=sample_index,
                    name=name,
                    max_turns=max_turns or self.limits.max_turns,
                    expires=False,
                    metadata=metadata or {},
                )
            )
        except RequestRejected as rejection:
            raise ConfigError(str(rejection)) from None
        try:
            yield session
        finally:
            self.sessions.end(session)
