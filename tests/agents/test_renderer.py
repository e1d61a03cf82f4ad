"""The renderer, against the tokenizer's own rendering of the whole conversation."""

import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.prompting.renderer import Renderer
from envs.errors import ConfigError
from envs.types import Message
from tests.support.examples import examples
from tests.support.toy import CHATML, NO_SYSTEM, PIPES, token_id, toy_tokenizer

TEMPLATES = [CHATML, PIPES, NO_SYSTEM]
each_template = pytest.mark.parametrize("template", TEMPLATES, ids=["chatml", "pipes", "no-system"])


def whole(template: str, *contents: str) -> list[int]:
    """The conversation as the tokenizer itself makes it, user first, the policy to speak next."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": c} for i, c in enumerate(contents)]
    tokenizer = toy_tokenizer(template)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


@each_template
def test_the_pieces_make_the_whole_conversation(template: str) -> None:
    tokenizer = toy_tokenizer(template)
    renderer = Renderer(tokenizer)
    says = ["Action: add 1", "Thought: more.\nAction: add 2"]
    observations = ["The total is 1.", "The total is 3."]
    ids = renderer.prompt_ids([Message("user", "Goal: reach 9.")])
    for text, observation in zip(says, observations, strict=True):
        # this template's policy begins with the space that the template puts there
        ids += tokenizer.encode(f" {text}" if template == NO_SYSTEM else text, add_special_tokens=False)
        ids += renderer.reply([Message("user", observation)], is_closed=False).ids
    assert ids == whole(template, "Goal: reach 9.", says[0], observations[0], says[1], observations[1])


@each_template
@settings(max_examples=examples(40))
@given(
    parts=st.lists(
        st.tuples(st.sampled_from(["could not ", " ", "a", "日", "😀", "<|im_end|>"]), st.integers(1, 8000)),
        min_size=1,
        max_size=5,
    ),
    num_tokens=st.integers(0, 6000),
)
def test_what_is_called_longer_is_longer(
    template: str, parts: list[tuple[str, int]], num_tokens: int
) -> None:
    renderer = Renderer(toy_tokenizer(template))
    messages = [Message("user", "".join(text * count for text, count in parts))]
    if renderer.is_longer(messages, num_tokens):
        assert len(renderer.prompt_ids(messages)) > num_tokens


@each_template
def test_each_message_is_a_token_at_least(template: str) -> None:
    renderer, messages = Renderer(toy_tokenizer(template)), [Message("user", "")] * 20
    assert renderer.is_longer(messages, 19)
    assert not renderer.is_longer(messages, 20)
    assert len(renderer.prompt_ids(messages)) > 20


def test_a_text_that_is_far_too_long_is_called_longer() -> None:
    renderer = Renderer(toy_tokenizer())
    text = "could not reach the goal " * 10_000
    assert renderer.is_longer([Message("system", "Goal"), Message("tool", text)], 8192)
    assert not renderer.is_longer([Message("user", "Goal"), Message("assistant", text)], 8192)
    assert not renderer.is_longer([Message("user", text)], 1_000_000)


@each_template
def test_a_completion_that_ended_itself_is_not_ended_twice(template: str) -> None:
    renderer = Renderer(toy_tokenizer(template))
    open_ids = renderer.reply([Message("user", "The total is 1.")], is_closed=False).ids
    closed_ids = renderer.reply([Message("user", "The total is 1.")], is_closed=True).ids
    stop = renderer.stop_token_ids[0]
    assert closed_ids == open_ids[open_ids.index(stop) + 1 :]


@pytest.mark.parametrize(
    ("template", "stop"), [(CHATML, "<|im_end|>"), (PIPES, "<|end|>"), (NO_SYSTEM, "</s>")]
)
def test_the_policy_stops_at_its_end_of_turn(template: str, stop: str) -> None:
    tokenizer = toy_tokenizer(template)
    assert Renderer(tokenizer).stop_token_ids == (token_id(stop, template=template),)


def test_eos_stops_too_where_turns_end_otherwise() -> None:
    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    tokenizer.eos_token = "<|endoftext|>"
    assert Renderer(tokenizer).stop_token_ids == (token_id("<|im_end|>"), token_id("<|endoftext|>"))


def test_a_system_message_survives_a_template_without_that_role() -> None:
    tokenizer = toy_tokenizer(NO_SYSTEM)
    ids = Renderer(tokenizer).prompt_ids([Message("system", "Play well."), Message("user", "Goal.")])
    assert ids == whole(NO_SYSTEM, "Play well.\n\nGoal.")


@each_template
def test_decoding_shows_no_control_tokens(template: str) -> None:
    tokenizer = toy_tokenizer(template)
    renderer = Renderer(tokenizer)
    text = "Thought: it's  2 , \n\nAction: add 2"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert renderer.decode([*ids, *renderer.stop_token_ids]) == text


@given(
    st.lists(
        st.sampled_from(["<|im_", "end|>", "<|im_end|>", "<|im_start|>", "<", "assistant\n"]), max_size=8
    )
)
def test_an_observation_cannot_forge_a_turn(parts: list[str]) -> None:
    renderer = Renderer(toy_tokenizer(CHATML))
    harmless = renderer.reply([Message("user", "x")], is_closed=True).ids
    hostile = renderer.reply([Message("user", "".join(parts))], is_closed=True).ids
    prompt = renderer.prompt_ids([Message("user", "".join(parts))])
    for control in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"):
        token = token_id(control)
        assert hostile.count(token) == harmless.count(token)
        assert prompt.count(token) == whole(CHATML, "x").count(token)


def test_a_tokenizer_in_plain_python_will_do() -> None:
    from transformers import ByT5Tokenizer

    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", "<|end|>"]})
    tokenizer.chat_template = PIPES
    renderer = Renderer(tokenizer)
    ids = renderer.prompt_ids([Message("user", "Goal.")])
    reply = renderer.reply([Message("user", "Seen.")], is_closed=False)
    assert reply.bodies == ()
    ids += reply.ids
    assert (
        tokenizer.decode(ids) == "<|user|>Goal.<|end|><|assistant|><|end|><|user|>Seen.<|end|><|assistant|>"
    )
    assert renderer.decode(ids) == "Goal.Seen."


def test_padding_and_truncation_asked_for_elsewhere_do_not_matter() -> None:
    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    tokenizer.pad_token = "<|endoftext|>"
    tokenizer(["a"], padding="max_length", truncation=True, max_length=4)
    renderer = Renderer(tokenizer)
    tokenizer(["a"], padding="max_length", truncation=True, max_length=4)
    for text in ("", "Goal: reach 9, whatever it takes."):
        assert renderer.prompt_ids([Message("user", text)]) == whole(CHATML, text)


def test_answers_are_copies() -> None:
    renderer = Renderer(toy_tokenizer(CHATML))
    renderer.prompt_ids([Message("user", "x")]).clear()
    assert renderer.prompt_ids([Message("user", "x")])


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (None, "has no chat template"),
        ("{{ messages[0]['content'] }}", "exactly once"),
        ("{% for m in messages %}{{ m['content'] }}\n{% endfor %}", "no special token"),
        ("{{ raise_exception('never') }}", "refuses user: never"),
    ],
)
def test_an_unusable_template_is_refused(template: str | None, why: str) -> None:
    tokenizer = copy.deepcopy(toy_tokenizer(CHATML))
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=why):
        Renderer(tokenizer)
