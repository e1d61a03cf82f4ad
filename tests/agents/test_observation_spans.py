"""Which tokens of a reply the environment wrote: by the bytes of each token, and never the template's."""

import copy
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.prompting.renderer import Renderer
from agents.rollout.conversation import SUMMARY_REQUEST, ContextPolicy
from agents.rollout.packing import PackedSegment, pack
from agents.samplers.sampler import ScriptedSampler
from envs.types import Message
from tests.agents.test_segments import LIMITS, Recorder, play_policy
from tests.support.examples import examples
from tests.support.gallery import make_image
from tests.support.toy import CHATML, NO_SYSTEM, PIPES, encode, toy_tokenizer
from tests.support.vision_toy import llava_processor, vision_processor

WITH_SPACES = CHATML.replace("<|im_end|>\n", " <|im_end|> ").replace("['role'] }}\n", "['role'] }}: ")
"""White space of the template stands directly beside a message's text."""
words = st.text(st.sampled_from("ab \n<|>é🙂o"), max_size=12)


@cache
def renderer_of(template: str, *, trim_offsets: bool) -> tuple[Any, Renderer]:
    """`trim_offsets`: they leave out the space with which a token begins, as Llama 3's do."""
    from tokenizers import processors

    tokenizer = copy.deepcopy(toy_tokenizer(CHATML if template == WITH_SPACES else template))
    tokenizer.chat_template = template
    if trim_offsets:
        tokenizer.backend_tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer, Renderer(tokenizer)


@cache
def bytes_of(token: str, *, is_added: bool) -> bytes:
    """What a token of the byte-level toy stands for."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    if is_added:
        return token.encode()
    byte_of = {character: byte for byte, character in bytes_to_unicode().items()}
    return bytes(byte_of[character] for character in token)


@pytest.mark.parametrize("template", [CHATML, PIPES, NO_SYSTEM, WITH_SPACES])
@pytest.mark.parametrize("trim_offsets", [False, True])
@settings(max_examples=examples(25))
@given(
    texts=st.lists(words, min_size=1, max_size=3), num_observed=st.integers(0, 12), is_closed=st.booleans()
)
def test_a_span_has_every_token_of_a_body_and_no_byte_of_the_template(
    template: str, trim_offsets: bool, texts: list[str], num_observed: int, is_closed: bool
) -> None:
    tokenizer, renderer = renderer_of(template, trim_offsets=trim_offsets)
    contents = [f"{number}{text}" for number, text in enumerate(texts)]
    counts = [*map(len, contents[:-1]), min(num_observed, len(contents[-1]))]
    ids, bodies = renderer.reply(
        [Message("user", content) for content in contents], is_closed=is_closed, observed=counts
    )
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    lengths = [
        len(bytes_of(token, is_added=token_id in tokenizer.added_tokens_decoder))
        for token, token_id in zip(tokens, ids, strict=True)
    ]
    starts = [0, *accumulate(lengths)]
    whole = tokenizer.decode(ids).encode()
    assert len(whole) == starts[-1]
    spans, cursor = iter(bodies), 0
    for content, count in zip(contents, counts, strict=True):
        text = content.strip() if template == NO_SYSTEM else content
        first = whole.index(text.encode(), cursor)
        last = cursor = first + len(text[:count].encode())
        inside = [i for i in range(len(ids)) if first <= starts[i] and starts[i + 1] <= last]
        if not inside:
            continue
        start, end = next(spans, (inside[-1] + 1,) * 2)
        # with trimmed offsets, a token that may begin with a space of the template is left out
        assert inside[0] <= start <= inside[0] + trim_offsets
        assert end == inside[-1] + 1
    assert next(spans, None) is None


@pytest.mark.parametrize("make", [vision_processor, llava_processor])
def test_an_images_tokens_are_in_no_span(make: Any) -> None:
    processor = make()
    renderer = Renderer(processor.tokenizer, processor)
    messages = [
        Message("tool", "The first", (make_image(28, 28), make_image(120, 40))),
        Message("tool", "The second", ()),
        Message("tool", "The third", (make_image(30, 90),)),
    ]
    ids, bodies = renderer.reply(messages, is_closed=True)
    texts = [processor.tokenizer.decode(ids[start:end]) for start, end in bodies]
    assert texts == ["The first", "The second", "The third"]
    assert all(renderer.placeholder_ids.isdisjoint(ids[start:end]) for start, end in bodies)
    assert not renderer.placeholder_ids.isdisjoint(ids)


def observed_texts(segment: PackedSegment) -> str:
    """The observed tokens of a segment, with a bar where others stand between them."""
    text, previous = "", 0
    for token, mask in zip(segment.response_ids, segment.observation_mask, strict=True):
        if mask:
            text += ("" if previous else "|") + toy_tokenizer().decode([token])
        previous = mask
    return text


@pytest.mark.parametrize("show_budget", [False, True])
def test_neither_a_request_for_a_summary_nor_the_budget_is_an_observation(show_budget: bool) -> None:
    long = "Thought: the total is now, the total is now, the total is now\nAction: add 1"
    sampler = Recorder(ScriptedSampler([long, long, "So far 2.", "Action: add 1"], encode=encode))
    policy = ContextPolicy(when_full="summarize", summarize_at=0.18, show_budget=show_budget)
    trajectory = play_policy(sampler, policy, limits=replace(LIMITS, context_length=600))
    first, second = pack(trajectory)
    assert observed_texts(first) == "|The total is 1.|The total is 2."
    assert observed_texts(second) == ""
    text = toy_tokenizer().decode(first.response_ids)
    assert SUMMARY_REQUEST in text
    assert ("[left: about" in text) == show_budget
    assert not any(r and o for r, o in zip(first.response_mask, first.observation_mask, strict=True))


def test_the_last_observation_of_a_segment_is_not_part_of_it() -> None:
    sampler = ScriptedSampler(["Action: add 1", "Action: add 1", "Action: add 1"], encode=encode)
    [segment] = pack(play_policy(sampler, ContextPolicy()))
    assert observed_texts(segment) == "|The total is 1.|The total is 2."
