"""The policy behind a gateway: samples a completion for a request and records it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.gateway.generation import CONTEXT_FULL, GenerationRequest
from agents.gateway.recording import PendingTurn, Recording
from agents.gateway.rendering import Reading, Rendering
from agents.samplers.sampler import Sampler, checked_sample
from agents.types import MIN_COMPLETION, Completion, SamplingParams
from envs.errors import ConfigError, SamplerFailed
from envs.network.server import RequestRejected

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion and its reading, to be sent to the client."""

    reading: Reading
    completion: Completion
    prompt_tokens: int
    is_named: bool
    """Whether the request named the function that is called."""


class Policy:
    """A sampler with messages in and out."""

    def __init__(
        self,
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        name: str,
        sampling: SamplingParams,
        context_length: int,
        processor: "ProcessorMixin | None" = None,
    ) -> None:
        """`sampling`: the defaults of requests; without `stop_token_ids` they are the chat template's.
        `context_length`: tokens of prompt and completion together. `processor`: of a vision model.

        Raises `ConfigError` for a chat template that cannot be used.
        """
        self.name = name
        self.rendering = Rendering(tokenizer, processor)
        self._sampler = sampler
        self._sampling = replace(
            sampling, stop_token_ids=sampling.stop_token_ids or self.rendering.stop_token_ids
        )
        self._context_length = context_length

    async def answer(self, generation: GenerationRequest, recording: Recording) -> Answer:
        """Sample the next message. Raises `RequestRejected` and `SamplerFailed`."""
        if generation.model != self.name:
            why = f"there is no model {generation.model!r}; this is {self.name!r}"
            raise RequestRejected(404, why, param="model", code="model_not_found")
        messages, tools = generation.messages, generation.tools
        if self.rendering.is_longer(messages, self._context_length):
            raise self._context_full(f"more than {self._context_length}")  # it would hold the event loop
        params = self._params(generation)
        prefix = self.rendering.call_prefix(tools.function) if tools.function is not None else None
        ids = prefix.ids if prefix else ()
        with recording.pending_turn(messages, tools.schemas, prefix=ids) as pending:
            completion, reading = self.rendering.read_completion(
                await self._sample(pending, params),
                tools=tools.schemas,
                stop=generation.stop,
                call_prefix=prefix,
                one_call=generation.one_call,
            )
            recording.answer(pending, completion, reading)
        # Where an answer ends does not matter: the beginning of a sample is a sample.
        as_default = replace(self._sampling, max_tokens=params.max_tokens, stop=params.stop) == params
        recording.other_sampling += not as_default
        return Answer(
            reading=reading,
            completion=completion,
            prompt_tokens=len(pending.prompt.ids),
            is_named=tools.is_named,
        )

    def _context_full(self, size: str) -> RequestRejected:
        return RequestRejected(
            400,
            f"the conversation has {size} tokens, which leaves no room for an answer in a context of "
            f"{self._context_length}; send a shorter one",
            param="messages",
            code=CONTEXT_FULL,
        )

    def _params(self, generation: GenerationRequest) -> SamplingParams:
        default = self._sampling
        return replace(
            default,
            temperature=default.temperature if generation.temperature is None else generation.temperature,
            top_p=default.top_p if generation.top_p is None else generation.top_p,
            top_k=default.top_k if generation.top_k is None else generation.top_k,
            max_tokens=generation.max_tokens or default.max_tokens,
            stop=generation.stop,
        )

    async def _sample(self, pending: PendingTurn, params: SamplingParams) -> Completion:
        prompt = pending.prompt
        room = self._context_length - len(prompt.ids)
        if room < min(MIN_COMPLETION, params.max_tokens):
            raise self._context_full(str(len(prompt.ids)))
        params = replace(params, max_tokens=min(params.max_tokens, room))
        name = pending.cache_name
        try:
            completion = await checked_sample(
                self._sampler, prompt.ids, images=prompt.images, params=params, episode_id=name, where=name
            )
        except ConfigError as error:
            raise RequestRejected(400, str(error)) from error
        if not self.rendering.placeholder_ids.isdisjoint(completion.token_ids):
            # Code that counts images by these tokens, the trainer's too, would find one too many.
            raise SamplerFailed(f"{name}: the sampler returned a token that stands for an image")
        return completion
