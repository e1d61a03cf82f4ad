"""Images in requests: shown as the processor shows them, kept with the segment, never trained on."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from agents.gateway.gateway import Gateway
from agents.rollout.packing import pack
from agents.samplers.sampler import ScriptedSampler
from agents.samplers.transformers import TransformersSampler
from agents.types import Completion, FinishReason, SamplingParams
from envs.errors import SamplerFailed
from envs.types import Image, Message
from tests.agents.test_images import PAD, encode
from tests.support.gallery import SMALL, TALL, WIDE, make_image
from tests.support.gateway_toy import (
    ITEM,
    QUESTION,
    SEARCH,
    ask,
    client_of,
    make_gateway,
    make_sampler,
    to_history,
)
from tests.support.tool_templates import TEMPLATES
from tests.support.vision_toy import save_vision_model, vision_processor, vision_tokenizer, whole


class RecordingSampler(ScriptedSampler):
    """Remembers which images it was shown with which tokens."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__(script, encode=encode)
        self.prompts: list[tuple[list[int], list[Image]]] = []

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.prompts.append((list(prompt_ids), list(images)))
        return await super().sample(prompt_ids, images=images, params=params, episode_id=episode_id)


def seeing(sampler: Any, **options: Any) -> Gateway:
    return make_gateway(sampler, vision_tokenizer(), processor=vision_processor(), **options)


def part(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image.data_uri}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


async def test_images_are_shown_as_the_processor_shows_the_whole_conversation() -> None:
    sampler = RecordingSampler(["Red.", "Blue.", "Green."])
    gateway = seeing(sampler)
    first: Any = {"role": "user", "content": [text("What"), part(WIDE), text("is it?"), part(SMALL)]}
    more: Any = {"role": "user", "content": [part(TALL)]}
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            says = to_history(await ask(client, [first]))
            then = to_history(await ask(client, [first, says, more]))
            changed_message = {**first, "content": [part(TALL), *first["content"][:1]]}
            await ask(client, [changed_message, says, more])  # another image is another conversation
        trajectory = session.trajectory(reward=1.0)
    segments_text = [
        [Message("user", "What\nis it?", (WIDE, SMALL))],
        [Message("assistant", "Red."), Message("user", "", (TALL,))],
    ]
    assert sampler.prompts[0] == (whole(segments_text[0], vision_processor()), [WIDE, SMALL])
    assert sampler.prompts[1] == (
        whole(segments_text[0] + segments_text[1], vision_processor()),
        [WIDE, SMALL, TALL],
    )
    assert sampler.prompts[2][1] == [TALL, TALL]
    assert then["content"] == "Blue."
    segments = pack(trajectory)
    assert [list(segment.images) for segment in segments] == [[WIDE, SMALL, TALL], [TALL, TALL]]
    for segment in segments:
        masked_tokens = zip(segment.response_ids, segment.response_mask, strict=True)
        assert not any(mask for token, mask in masked_tokens if token == PAD)
    assert trajectory.prompt_images == (WIDE, SMALL)
    assert [list(turn.images) for turn in trajectory.turns] == [[TALL], [], []]
    assert trajectory.turns[2].prompt_images == (TALL, TALL)


async def test_responses_show_them_too_and_so_do_tools() -> None:
    sampler = RecordingSampler(["Red.", "Blue."])
    gateway = seeing(sampler)
    image_part = {"type": "input_image", "image_url": SMALL.data_uri, "detail": "auto"}
    segments_text: Any = {"role": "user", "content": [image_part, {"type": "input_text", "text": "What?"}]}
    async with gateway.listening(), gateway.session(ITEM) as session:
        async with client_of(session.base_url) as client:
            first = await client.responses.create(model="policy", input=[segments_text])
            again: Any = [segments_text, *(item.model_dump() for item in first.output), segments_text]
            await client.responses.create(model="policy", input=again)
        trajectory = session.trajectory()
    assert [images for _, images in sampler.prompts] == [[SMALL], [SMALL, SMALL]]
    assert len(pack(trajectory)) == 1


async def test_a_real_model_that_sees_is_sampled_on_them(tmp_path: Path) -> None:
    sampler = TransformersSampler(save_vision_model(tmp_path), vision_processor(), context_length=400)
    gateway = Gateway(
        sampler,
        vision_tokenizer(),
        sampling=SamplingParams(max_tokens=8),
        context_length=400,
        processor=vision_processor(),
    )
    texts = []
    async with gateway.listening():
        for prompts in (SMALL, make_image(28, 28, color=(0, 0, 250))):
            async with gateway.session(ITEM, name="same") as session, client_of(session.base_url) as client:
                says = await ask(client, [{"role": "user", "content": [part(prompts)]}])
                texts.append(says.content)
                await ask(client, [{"role": "user", "content": [part(prompts)]}, to_history(says), QUESTION])
            assert len(pack(session.trajectory())) == 1
    sampler.close()
    assert texts[0] != texts[1]  # the draws are the same, what is seen is not


@pytest.mark.parametrize(
    ("has_vision", "content", "why"),
    [
        (True, [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}], "nothing is downloaded"),
        (True, [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "nothing is downloaded"),
        (True, [{"type": "image_url"}], "has no image_url"),
        (True, [{"type": "image_url", "image_url": {"url": "data:image/png;base64,!!"}}], "no base64"),
        (True, [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], "not an image"),
        (True, [{"type": "image_url", "image_url": {"url": SMALL.data_uri, "detail": "low"}}], "detail"),
        (False, [part(SMALL)], "reads text only"),
    ],
)
async def test_what_cannot_be_shown_is_refused(has_vision: bool, content: list[Any], why: str) -> None:
    gateway = seeing(make_sampler([])) if has_vision else make_gateway(make_sampler([]))
    transport = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app))
    async with client_of("http://gateway/v1", http_client=transport) as client:
        with pytest.raises(openai.BadRequestError, match=why) as rejection:
            await ask(client, [{"role": "user", "content": content}])
    assert rejection.value.param == ("messages[0].content" if has_vision else "messages")


async def test_tools_that_the_processors_template_passes_over_are_refused() -> None:
    tokenizer = copy.deepcopy(vision_tokenizer())
    tokenizer.chat_template = TEMPLATES["hermes"]  # which shows them, as the processor's does not
    gateway = make_gateway(make_sampler([]), tokenizer, processor=vision_processor())
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        with pytest.raises(openai.BadRequestError, match="has no tools"):
            await ask(client, [QUESTION], tools=[SEARCH])


async def test_a_policy_shows_no_images_itself() -> None:
    class Forger(ScriptedSampler):
        async def sample(self, prompt_ids: Any, **options: Any) -> Completion:
            return Completion(
                token_ids=(PAD,), logprobs=(0.0,), finish_reason=FinishReason.LENGTH, policy_version=0
            )

    gateway = seeing(Forger([], encode=encode))
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        with pytest.raises(openai.InternalServerError, match="stands for an image"):
            await ask(client, [QUESTION])
        fault = session.fault
        says = {"role": "assistant", "content": [part(SMALL)]}
        with pytest.raises(openai.BadRequestError, match="cannot send images itself"):
            await ask(client, [QUESTION, says, QUESTION])
    assert isinstance(fault, SamplerFailed)
