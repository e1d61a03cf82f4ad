"""The policy behind a gateway: a request becomes a completion, which its recording keeps."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.gateway.errors import CONTEXT_FULL, RequestRejected
from agents.gateway.generation import Wanted
from agents.gateway.recording import Asked, Recording
from agents.gateway.rendering import Reading, Rendering
from agents.limits import MIN_COMPLETION
from agents.samplers.sampler import Sampler, checked_sample
from agents.types import Completion, SamplingParams
from envs.errors import ConfigError, SamplerFailed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion as it is told."""

    reading: Reading
    completion: Completion
    prompt_tokens: int
    named: bool
    """Whether the request named the function that is called."""


class Policy:
    """A sampler that is spoken to in messages."""

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
        """`sampling`: what holds where a request says nothing; `stop_token_ids`, where empty, are the chat
        template's. `context_length`: tokens of prompt and completion together. `processor`: of a model that
        sees.

        Raises `ConfigError` for a chat template that cannot be used.
        """
        self.name = name
        self.rendering = Rendering(tokenizer, processor)
        self._sampler = sampler
        self._sampling = replace(
            sampling, stop_token_ids=sampling.stop_token_ids or self.rendering.stop_token_ids
        )
        self._context_length = context_length

    async def answer(self, wanted: Wanted, recording: Recording) -> Answer:
        """Sample the next message. Raises `Refused`, and `SamplerFailed` where there is none."""
        if wanted.model != self.name:
            why = f"there is no model {wanted.model!r}; this is {self.name!r}"
            raise RequestRejected(404, why, param="model", code="model_not_found")
        conversation, tools = wanted.conversation, wanted.tools
        params = self._params(wanted)
        begun = self.rendering.begun(tools.function) if tools.function is not None else None
        with recording.asking(conversation, begun=begun.ids if begun else ()) as asked:
            completion, reading = self.rendering.reading(
                await self._sample(asked, params),
                tools=tools.shown,
                stop=wanted.stop,
                begun=begun,
                one_call=wanted.one_call,
            )
            recording.answer(asked, completion, reading)
        # Where an answer ends is no matter: the beginning of a sample is a sample.
        as_default = replace(self._sampling, max_tokens=params.max_tokens, stop=params.stop) == params
        recording.other_sampling += not as_default
        return Answer(reading=reading, completion=completion, prompt_tokens=len(asked.ids), named=tools.named)

    def _params(self, wanted: Wanted) -> SamplingParams:
        default = self._sampling
        return replace(
            default,
            temperature=default.temperature if wanted.temperature is None else wanted.temperature,
            top_p=default.top_p if wanted.top_p is None else wanted.top_p,
            top_k=default.top_k if wanted.top_k is None else wanted.top_k,
            max_tokens=wanted.max_tokens or default.max_tokens,
            stop=wanted.stop,
        )

    async def _sample(self, asked: Asked, params: SamplingParams) -> Completion:
        room = self._context_length - len(asked.ids)
        if room < min(MIN_COMPLETION, params.max_tokens):
            raise RequestRejected(
                400,
                f"the conversation has {len(asked.ids)} tokens, which leaves no room for an answer in a "
                f"context of {self._context_length}; send a shorter one",
                param="messages",
                code=CONTEXT_FULL,
            )
        params = replace(params, max_tokens=min(params.max_tokens, room))
        name = asked.cache_name
        try:
            completion = await checked_sample(
                self._sampler, asked.ids, images=asked.images, params=params, episode_id=name, where=name
            )
        except ConfigError as error:
            raise RequestRejected(400, str(error)) from error
        if not self.rendering.placeholder_ids.isdisjoint(completion.token_ids):
            # Whoever counts pictures by these tokens, the trainer too, would see one that there is not.
            raise SamplerFailed(f"{name}: the sampler answered a token that stands for a picture")
        return completion
