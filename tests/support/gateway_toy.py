"""Gateways for tests: the toy tokenizer with tools, and a sampler that remembers all it sampled."""

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionUserMessageParam
from pydantic import BaseModel

from agents.gateway.gateway import Gateway
from agents.gateway.limits import GatewayLimits
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler, Script, ScriptedSampler
from agents.types import Completion, FinishReason, SamplingParams, Trajectory
from envs.network.client import tls_context
from envs.types import Image, Item
from tests.support.tool_templates import TEMPLATES
from tests.support.toy import encode, toy_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

ITEM = Item(item_id="toy_7", env="toy", metadata={"target": 3})
CONTEXT = 2000
QUESTION: ChatCompletionUserMessageParam = {"role": "user", "content": "Goal: reach 3."}
SEARCH: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Finds passages.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "top_k": {"type": "integer"}},
            "required": ["query"],
        },
    },
}

LOOK: ChatCompletionFunctionToolParam = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}


def tokenizer_with(format: str = "hermes") -> "PreTrainedTokenizerFast":
    """The toy's, with a template that has tools."""
    tokenizer = copy.deepcopy(toy_tokenizer())
    tokenizer.chat_template = TEMPLATES[format]
    return tokenizer


def make_sampler(script: Sequence[str] | Script, **options: Any) -> ScriptedSampler:
    return ScriptedSampler(script, encode=encode, **options)


def make_gateway(
    sampler: Sampler, tokenizer: "PreTrainedTokenizerBase | None" = None, **options: Any
) -> Gateway:
    return Gateway(
        sampler,
        tokenizer or tokenizer_with(),
        sampling=SamplingParams(max_tokens=200),
        context_length=options.pop("context_length", CONTEXT),
        limits=GatewayLimits(**options.pop("limits", {})),
        **options,
    )


@asynccontextmanager
async def client_of(base_url: str, *, api_key: str = "none", **options: Any) -> AsyncIterator[AsyncOpenAI]:
    if "http_client" not in options:  # its own would load certificates for 20 ms
        options["http_client"] = DefaultAsyncHttpxClient(verify=tls_context())
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0, **options) as client:
        yield client


async def ask(client: AsyncOpenAI, messages: Sequence[Any], **options: Any) -> Any:
    """The assistant's message."""
    answer = await client.chat.completions.create(model="policy", messages=list(messages), **options)
    return answer.choices[0].message


def to_history(message: BaseModel) -> dict[str, Any]:
    """As a framework sends it back."""
    return dict(message.model_dump())


class GatedSampler(ScriptedSampler):
    """Answers only when `release` is set; `request_event` is set by each request."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__(script, encode=encode)
        self.request_event = asyncio.Event()
        self.release = asyncio.Event()

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.request_event.set()
        await self.release.wait()
        return await super().sample(prompt_ids, images=images, params=params, episode_id=episode_id)


class RandomSampler:
    """Says random tokens, which decoding and encoding would change, and remembers what and on what."""

    def __init__(self, seed: int = 0) -> None:
        self.samples: list[tuple[list[int], list[int]]] = []
        """Prompt and completion."""
        self._random = random.Random(seed)
        self._words = [i for i in range(len(toy_tokenizer())) if i not in toy_tokenizer().all_special_ids]

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        ids = self._random.choices(self._words, k=self._random.randint(1, 4))
        is_stopped = self._random.random() < 0.7
        ids += [params.stop_token_ids[0]] if is_stopped else []
        self.samples.append((list(prompt_ids), ids))
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(-0.1 * i for i in range(len(ids))),
            finish_reason=FinishReason.STOP if is_stopped else FinishReason.LENGTH,
            policy_version=5,
        )


def find_trained(trajectory: Trajectory) -> list[tuple[list[int], list[int]]]:
    """Every run of the policy's tokens in the packed segments, and all that stands before it."""
    runs = []
    for segment in pack(trajectory):
        tokens = [*segment.prompt_ids, *segment.response_ids]
        mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
        start = None
        for index, bit in enumerate([*mask, 0]):
            if bit and start is None:
                start = index
            elif not bit and start is not None:
                runs.append((tokens[:start], tokens[start:index]))
                start = None
    return runs
