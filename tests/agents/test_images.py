"""Images in episodes: rendered as the processor renders them, never trained on, kept with their segments."""

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.agent import FormatAgent, with_images
from agents.prompting.renderer import Renderer
from agents.rollout.conversation import ContextPolicy, TokenConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.packing import pack
from agents.samplers.sampler import Sampler
from agents.tools.registry import get_tool
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.types import Completion, EpisodeLimits, FinishReason, SamplingParams, StopReason, Trajectory
from envs.errors import ConfigError, EnvCrashed, SamplerFailed
from envs.types import Image, Item, Message, Observation
from tests.support.examples import examples
from tests.support.gallery import SMALL, TALL, WIDE, Gallery
from tests.support.toy import ToyEnv, toy_item, toy_tokenizer
from tests.support.vision_toy import VISION, llava_processor, vision_processor, vision_tokenizer, whole

LIMITS = EpisodeLimits(
    max_turns=8, max_tokens_per_turn=30, context_length=500, episode_timeout_s=120, step_timeout_s=9
)


def renderer() -> Renderer:
    return Renderer(vision_tokenizer(), vision_processor())


def encode(text: str) -> list[int]:
    ids: list[int] = vision_tokenizer().encode(text, add_special_tokens=False)
    return ids


def token(text: str) -> int:
    return int(vision_tokenizer().convert_tokens_to_ids(text))


PAD = token("<|image_pad|>")

images = st.lists(st.sampled_from([SMALL, WIDE, TALL]), max_size=2).map(tuple)
words = st.text(st.sampled_from("ab \n<|>é"), max_size=12)


@pytest.mark.parametrize("make", [vision_processor, llava_processor])
@settings(max_examples=examples(40))
@given(
    opening=st.tuples(words, images),
    turns=st.lists(st.tuples(words, st.lists(st.tuples(words, images), min_size=1, max_size=2)), max_size=3),
    role=st.sampled_from(["user", "tool"]),
)
def test_the_pieces_are_what_the_processor_makes_of_the_whole(
    make: Callable[[], Any], opening: Any, turns: Any, role: Any
) -> None:
    processor = make()
    tokenizer = processor.tokenizer
    renderer = Renderer(tokenizer, processor)
    messages = [Message("user", *opening)]
    ids = renderer.prompt_ids(messages)
    before = " " if make is llava_processor else ""  # which the template puts before what the policy says
    for text, observations in turns:
        replies = [Message(role, *reply) for reply in observations]
        # cut where the policy's words end: what they are encoded as is its own affair
        ids += tokenizer.encode(f"{before}{text}x", add_special_tokens=False)
        ids += renderer.reply(replies, is_closed=False).ids
        messages += [Message("assistant", f"{text}x"), *replies]
    assert ids == whole(messages, processor)


def test_a_completion_that_ended_itself_is_not_ended_twice() -> None:
    reply = [Message("user", "Look.", (WIDE,))]
    closed_reply, open_ = (renderer().reply(reply, is_closed=is_closed).ids for is_closed in (True, False))
    assert (token("<|im_end|>"), *closed_reply) == open_


@pytest.mark.parametrize("make", [vision_processor, llava_processor])
@settings(max_examples=examples(40))
@given(st.lists(st.sampled_from([*VISION, "<image>", "<|image", "_pad|>", "<|im_end|>", "x"]), max_size=6))
def test_words_cannot_forge_images(make: Callable[[], Any], parts: list[str]) -> None:
    tokenizer = make().tokenizer
    renderer = Renderer(tokenizer, make())
    control = tokenizer.convert_tokens_to_ids([*VISION, "<image>", "<|im_end|>"])
    for images in ((), (SMALL,)):
        harmless, hostile = (Message("user", text, images) for text in ("x", "".join(parts)))
        for ids, reference in (
            (renderer.prompt_ids([hostile]), renderer.prompt_ids([harmless])),
            (renderer.reply([hostile], is_closed=True).ids, renderer.reply([harmless], is_closed=True).ids),
        ):
            # of tokens that a tokenizer does not have, None: there are none
            assert [ids.count(token_id) for token_id in control] == [
                reference.count(token_id) for token_id in control
            ]


def test_a_model_that_reads_text_only_is_shown_no_images() -> None:
    text_renderer = Renderer(toy_tokenizer())
    for make in (
        lambda message: text_renderer.prompt_ids([message]),
        lambda message: text_renderer.reply([message], is_closed=True),
    ):
        with pytest.raises(ConfigError, match=r"1 images are to be shown.*use a vision-language model"):
            make(Message("user", "x", (SMALL,)))


def test_a_template_that_passes_over_images_is_refused() -> None:
    processor = vision_processor()
    template = processor.chat_template
    users_only = template.replace("c['type'] == 'image'", "c['type'] == 'image' and m['role'] == 'user'")
    try:
        processor.chat_template = template.replace("<|image_pad|>", "")
        with pytest.raises(ConfigError, match="shows no images"):
            renderer()
        processor.chat_template = users_only
        with pytest.raises(ConfigError, match="shows 0 of 1 images"):
            renderer().reply([Message("tool", "x", (SMALL,))], is_closed=True)
    finally:
        processor.chat_template = template


def test_what_is_no_image_is_a_fault_that_the_policy_has_no_part_in() -> None:
    with pytest.raises(EnvCrashed, match=r"image/png, 3 bytes.*UnidentifiedImageError"):
        renderer().prompt_ids([Message("user", "x", (Image(b"abc", "image/png"),))])


def test_images_go_with_the_message_that_tells_their_observation() -> None:
    two = [Message("tool", "a"), Message("tool", "b")]
    assert [m.images for m in with_images(two, [(SMALL,), (WIDE, TALL)])] == [(SMALL,), (WIDE, TALL)]
    assert [m.images for m in with_images(two[:1], [(SMALL,), (WIDE,)])] == [(SMALL, WIDE)]
    assert [m.images for m in with_images(two, [(), ()])] == [(), ()]


class Viewer:
    """Writes words of random length and records its requests."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.requests: list[tuple[list[int], list[Image]]] = []
        self.sampled_ids: list[int] = []

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        self.requests.append((list(prompt_ids), list(images)))
        thinking = "<think>the total</think>" if self._rng.random() < 0.5 else ""
        ids = encode(f"{thinking}{'total ' * self._rng.randint(0, 5)}\nAction: add 0")[
            : params.max_tokens - 1
        ]
        ids.append(params.stop_token_ids[0])
        self.sampled_ids += ids
        return Completion(
            token_ids=tuple(ids),
            logprobs=(-1.0,) * len(ids),
            finish_reason=FinishReason.STOP,
            policy_version=0,
        )


def play_episode(
    sampler: Sampler,
    env: Any,
    item: Item,
    *,
    policy: ContextPolicy,
    limits: EpisodeLimits = LIMITS,
    **config: Any,
) -> Trajectory:
    start_conversation = partial(
        TokenConversation,
        sampler=sampler,
        renderer=renderer(),
        sampling=SamplingParams(max_tokens=1),
        context=policy,
    )
    conversation = start_conversation("e", where="e", limits=limits)
    config = {"agent": FormatAgent("action"), "limits": limits, **config}
    return asyncio.run(
        run_episode(env, item, sample_index=0, conversation=conversation, config=EpisodeConfig(**config))
    )


@settings(max_examples=examples(40))
@given(
    seed=st.integers(0, 10**6),
    when_full=st.sampled_from(["stop", "summarize", "drop"]),
    keep_thoughts=st.booleans(),
)
def test_images_stay_with_their_segments_and_never_train(
    seed: int, when_full: Any, keep_thoughts: bool
) -> None:
    policy = ContextPolicy(
        when_full=when_full,
        keep_thoughts=keep_thoughts,
        summarize_at=0.5 if when_full == "summarize" else None,
        show_budget=True,
    )
    sampler = Viewer(seed)
    segments = pack(play_episode(sampler, Gallery(), replace(toy_item(), seed=seed), policy=policy))

    # the last request of each segment is all of it except the last completion
    contexts = []
    for segment in segments:
        ids = [*segment.prompt_ids, *segment.response_ids]
        mask = [0] * len(segment.prompt_ids) + list(segment.response_mask)
        last = max(i for i, bit in enumerate(mask) if bit and not mask[i - 1])
        contexts.append((ids[:last], list(segment.images)))
        assert not any(bit for i, bit in zip(ids, mask, strict=True) if i == PAD)
        assert ids.count(token("<|vision_start|>")) == len(segment.images)
        reference_ids = renderer().prompt_ids([Message("user", "", tuple(segment.images))])
        assert [i for i in ids if i == PAD] == [i for i in reference_ids if i == PAD]
    assert all(context in sampler.requests for context in contexts)
    trained_ids = [i for s in segments for i, m in zip(s.response_ids, s.response_mask, strict=True) if m]
    assert trained_ids == sampler.sampled_ids
    for ids, images in sampler.requests:
        assert ids.count(token("<|vision_start|>")) == len(images)


def test_images_of_tools_come_with_their_answers() -> None:
    @tool
    def look(left: bool) -> dict[str, Any]:
        """Look."""
        return {"observation": "seen", "image": (SMALL if left else WIDE).data}

    class Looks(Viewer):
        async def sample(self, prompt_ids: Any, **asked: Any) -> Completion:
            completion = await super().sample(prompt_ids, **asked)
            calls = [{"name": "look", "arguments": {"left": left}} for left in (True, False)]
            text = calls if len(self.requests) == 1 else {"answer": "done"}
            ids = [*encode(json.dumps(text)), asked["params"].stop_token_ids[0]]
            return replace(completion, token_ids=tuple(ids), logprobs=(-1.0,) * len(ids))

    box = Toolbox([look])
    sampler = Looks(0)
    trajectory = play_episode(
        sampler,
        ToyEnv(),
        toy_item(),
        policy=ContextPolicy(),
        agent=FormatAgent("json", schemas=box.schemas),
        tools=box,
        limits=replace(LIMITS, max_tokens_per_turn=300, context_length=3000),
    )
    assert trajectory.stop_reason is StopReason.TERMINATED
    assert trajectory.turns[0].images == (SMALL, WIDE)
    assert sampler.requests[1][1] == [SMALL, WIDE]
    [segment] = pack(trajectory)
    assert segment.images == (SMALL, WIDE)


def test_a_policy_that_says_an_image_is_not_believed() -> None:
    class Forger(Viewer):
        async def sample(self, prompt_ids: Any, **asked: Any) -> Completion:
            return replace(await super().sample(prompt_ids, **asked), token_ids=(PAD,), logprobs=(-1.0,))

    with pytest.raises(SamplerFailed, match="stands for an image"):
        play_episode(Forger(0), ToyEnv(), toy_item(), policy=ContextPolicy())


def test_a_summary_goes_on_with_the_images_of_the_opening_and_of_its_own_turn() -> None:
    @tool
    def look() -> dict[str, Any]:
        """Look."""
        return {"observation": "seen", "image": WIDE.data}

    class Sums(Viewer):
        async def sample(self, prompt_ids: Any, **asked: Any) -> Completion:
            completion = await super().sample(prompt_ids, **asked)
            look, cut = (
                {"name": "look", "arguments": {}},
                {"name": "summarize", "arguments": {"summary": "so"}},
            )
            text = ([look], [look, cut], {"answer": "done"})[len(self.requests) - 1]
            ids = [*encode(json.dumps(text)), asked["params"].stop_token_ids[0]]
            return replace(completion, token_ids=tuple(ids), logprobs=(-1.0,) * len(ids))

    class Opens(ToyEnv):
        async def reset(self, item: Item) -> Any:
            return Observation(await super().reset(item), (TALL,))

    box = Toolbox([look, get_tool("summarize")])
    sampler = Sums(0)
    trajectory = play_episode(
        sampler,
        Opens(),
        toy_item(),
        policy=ContextPolicy(),
        agent=FormatAgent("json", schemas=box.schemas),
        tools=box,
        limits=replace(LIMITS, max_tokens_per_turn=300, context_length=4000),
    )
    assert [images for _, images in sampler.requests] == [[TALL], [TALL, WIDE], [TALL, WIDE]]
    assert [segment.images for segment in pack(trajectory)] == [(TALL, WIDE), (TALL, WIDE)]
    assert [turn.images for turn in trajectory.turns] == [(WIDE,), (), ()]
