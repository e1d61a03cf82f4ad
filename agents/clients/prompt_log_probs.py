"""A model that vLLM serves, as a `Scorer`: the log-probs of a prompt of token ids.

They are read from `/v1/completions` with `prompt_logprobs`, which is vLLM's own and not OpenAI's, as are
`/detokenize` and the context length in the list of models.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from agents.clients.endpoint import Endpoint, EndpointClient, EndpointFailed
from agents.samplers.scoring import ScoredTokens
from envs.errors import ConfigError, describe, to_line
from envs.network.client import MAX_DETAIL, TryAgain
from envs.runtime.concurrency import gather_or_cancel, run_blocking

T = TypeVar("T")

CHUNK = 4096
"""Tokens that are decoded by one request."""


class EndpointScorer(EndpointClient):
    """Implements `agents.samplers.scoring.Scorer`, with one request for each continuation; blocks."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises `ConfigError` if the endpoint does not answer, rejects the key or lacks the model."""
        super().__init__(endpoint)
        self._base = endpoint.url.rstrip("/")
        self.max_length = run_blocking(self._read_max_length())

    def score(self, continuations: Sequence[ScoredTokens], *, temperature: float) -> list[list[float]]:
        """`temperature` must be 1: an endpoint computes no other.

        Raises `EndpointFailed` if a request fails, retries included, and `ConfigError` if the key, the model
        or the address is rejected.
        """
        assert temperature == 1.0, temperature
        return run_blocking(gather_or_cancel(self._score(continuation) for continuation in continuations))

    def decode(self, token_ids: Sequence[int]) -> list[str]:
        """The texts of successive runs of `token_ids`, of `CHUNK` each, by the model's tokenizer; raises as
        `score` does."""
        chunks = (token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK))
        return run_blocking(gather_or_cancel(map(self._decode, chunks)))

    async def _score(self, continuation: ScoredTokens) -> list[float]:
        ids = [*continuation.prompt_ids, *continuation.response_ids]
        request = {"prompt": ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        start = len(continuation.prompt_ids)

        def read(reply: Any) -> list[float]:
            places = reply["choices"][0]["prompt_logprobs"]
            if len(places) != len(ids):
                raise ValueError(f"{len(places)} log-probs for {len(ids)} tokens")
            pairs = zip(ids[start:], places[start:], strict=True)
            return [float(place[str(token_id)]["logprob"]) for token_id, place in pairs]

        return await self._ask(f"{self._base}/completions", request, read=read)

    async def _decode(self, token_ids: Sequence[int]) -> str:
        url = f"{self._base.removesuffix('/v1')}/detokenize"
        return await self._ask(url, {"tokens": [*token_ids]}, read=lambda reply: str(reply["prompt"]))

    async def _ask(self, url: str, request: Mapping[str, object], *, read: Callable[[Any], T]) -> T:
        async def attempt() -> T:
            return _read(await self._post(url, self.endpoint.body(request)), read)

        return await self.endpoint.retry(attempt, error=EndpointFailed)

    async def _read_max_length(self) -> int | None:
        """Tokens of a prompt: one is left to a completion, without which vLLM computes nothing."""
        await self.check()
        response = await self._send("GET", f"{self._base}/models", body=None)
        try:
            models = _read(response, lambda reply: {model["id"]: model for model in reply["data"]})
        except TryAgain as error:
            raise ConfigError(f"{error}; correct the url") from None
        if self.endpoint.model not in models:
            raise ConfigError(
                f"{self._base} has no model {self.endpoint.model!r}; it has: {', '.join(models) or 'none'}"
            )
        length = models[self.endpoint.model].get("max_model_len")
        return length - 1 if isinstance(length, int) else None


def _read(response: httpx.Response, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(response.text))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise TryAgain(
            f"{response.request.url}: not the answer of vLLM ({describe(error)}): "
            f"{to_line(response.text, limit=MAX_DETAIL)}"
        ) from error
