"""The policy behind a gateway: a request becomes a completion, which its recording keeps."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.gateway.recording import Asked, Recording
from agents.gateway.refused import CONTEXT_FULL, Refused
from agents.gateway.rendering import Reading, Rendering
from agents.gateway.requests import ChatRequest
from agents.limits import MIN_COMPLETION
from agents.sampler import Sampler, checked_sample
from agents.types import Completion, SamplingParams
from envs.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A completion as it is told."""

    reading: Reading
    completion: Completion
    prompt_tokens: int


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
    ) -> None:
        """`sampling`: what holds where a request says nothing; `stop_token_ids`, where empty, are the chat
        template's. `context_length`: tokens of prompt and completion together.

        Raises `ConfigError` for a chat template that cannot be used.
        """
        self.name = name
        self.rendering = Rendering(tokenizer)
        self._sampler = sampler
        self._sampling = replace(
            sampling, stop_token_ids=sampling.stop_token_ids or self.rendering.stop_token_ids
        )
        self._context_length = context_length

    async def answer(self, chat: ChatRequest, recording: Recording) -> Answer:
        """Sample the next message of `chat`. Raises `Refused`, and `SamplerFailed` where there is none."""
        if chat.model != self.name:
            why = f"there is no model {chat.model!r}; this is {self.name!r}"
            raise Refused(404, why, param="model", code="model_not_found")
        conversation = chat.conversation()
        params = self._params(chat)
        with recording.asking(conversation) as asked:
            completion = await self._sample(asked, params)
            reading = self.rendering.reading(completion.token_ids, tools=conversation.tools)
            recording.answer(asked, completion, reading)
        as_default = replace(params, max_tokens=self._sampling.max_tokens) == self._sampling
        recording.other_sampling += not as_default
        return Answer(reading=reading, completion=completion, prompt_tokens=len(asked.ids))

    def _params(self, chat: ChatRequest) -> SamplingParams:
        default = self._sampling
        return replace(
            default,
            temperature=default.temperature if chat.temperature is None else chat.temperature,
            top_p=default.top_p if chat.top_p is None else chat.top_p,
            top_k=default.top_k if chat.top_k is None else chat.top_k,
            max_tokens=chat.wanted_tokens or default.max_tokens,
        )

    async def _sample(self, asked: Asked, params: SamplingParams) -> Completion:
        room = self._context_length - len(asked.ids)
        if room < min(MIN_COMPLETION, params.max_tokens):
            raise Refused(
                400,
                f"the conversation has {len(asked.ids)} tokens, which leaves no room for an answer in a "
                f"context of {self._context_length}; send a shorter one",
                param="messages",
                code=CONTEXT_FULL,
            )
        params = replace(params, max_tokens=min(params.max_tokens, room))
        try:
            return await checked_sample(
                self._sampler,
                asked.ids,
                params=params,
                episode_id=asked.cache_name,
                where=asked.cache_name,
            )
        except ConfigError as error:
            raise Refused(400, str(error)) from error
