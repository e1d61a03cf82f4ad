"""Choices of tools: what is promised is kept by construction, and what cannot be is refused."""

import asyncio
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from agents.gateway.rendering import Rendering
from agents.rollout.packing import pack
from agents.types import Completion, FinishReason, Trajectory
from tests.support.gateway_toy import (
    ITEM,
    LOOK,
    QUESTION,
    SEARCH,
    ask,
    client_of,
    make_gateway,
    make_sampler,
    to_history,
    tokenizer_with,
)
from tests.support.tool_templates import TEMPLATES
from tests.support.toy import encode, toy_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BY_NAME = {"type": "function", "function": {"name": "search"}}
CALL_STARTS = {
    "hermes": '<tool_call>\n{"name": "search", "arguments":',
    "qwen3": "<tool_call>\n<function=search>",
    "llama3": '{"name": "search", "parameters":',
}
REST = {
    "hermes": ' {"query": "iron"}}\n</tool_call>',
    "qwen3": "\n<parameter=query>\niron\n</parameter>\n</function>\n</tool_call>",
    "llama3": ' {"query": "iron"}}',
}


def talk(format: str, says: list[str], turns: list[dict[str, Any]]) -> tuple[list[Any], Trajectory]:
    """The choices of a conversation in which every answer is heard out, and what it leaves."""

    async def work() -> tuple[list[Any], Trajectory]:
        gateway = make_gateway(make_sampler(says), tokenizer_with(format))
        answers = []
        async with gateway.listening(), gateway.session(ITEM) as session:
            async with client_of(session.base_url) as client:
                messages: list[Any] = [QUESTION]
                for options in turns:
                    answer = await client.chat.completions.create(
                        model="policy", messages=messages, **{"tools": [SEARCH, LOOK], **options}
                    )
                    answers.append(answer.choices[0])
                    message = answers[-1].message
                    replies: list[Any] = [
                        {"role": "tool", "tool_call_id": call.id, "content": "Iron: 5."}
                        for call in message.tool_calls or []
                    ]
                    messages = [*messages, to_history(message), *(replies or [QUESTION])]
            return answers, session.trajectory(reward=1.0)

    return asyncio.run(asyncio.wait_for(work(), 300))


@pytest.mark.parametrize("format", CALL_STARTS)
def test_a_named_function_is_begun_and_the_policy_writes_its_arguments(format: str) -> None:
    says = [REST[format], "It is 5.", REST[format]]
    answers, trajectory = talk(format, says, [{"tool_choice": BY_NAME}, {}, {"tool_choice": BY_NAME}])
    for answer in (answers[0], answers[2]):
        (call,) = answer.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"query": "iron"})
        assert (answer.message.content, answer.finish_reason) == (None, "stop")
    (segment,) = pack(trajectory)
    call_start, rest = encode(CALL_STARTS[format]), encode(REST[format])
    assert list(segment.prompt_ids[-len(call_start) :]) == call_start  # no token of it is the policy's
    assert list(segment.response_ids[: len(rest)]) == rest
    whole = toy_tokenizer().decode(segment.prompt_ids + segment.response_ids)
    assert whole.count(f"<|im_start|>assistant\n{CALL_STARTS[format]}{REST[format]}") == 2
    num_sampled = sum(len(encode(text)) + 1 for text in says)
    assert sum(segment.response_mask) == num_sampled
    assert trajectory.metrics["parse_failures"] == 0


@pytest.mark.parametrize(
    ("rest", "arguments"),
    [
        (' {"query": "ir', '{"query": "ir'),
        (" iron}}\n</tool_call>", "iron}}\n</tool_call>"),
        (' {}, "name": "look"}\n</tool_call>', '{}, "name": "look"}\n</tool_call>'),
        (" I would rather not.", "I would rather not."),
    ],
)
def test_invalid_arguments_are_sent_unchanged(rest: str, arguments: str) -> None:
    (answer, _), trajectory = talk("hermes", [rest, "Done."], [{"tool_choice": BY_NAME}, {}])
    (call,) = answer.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("search", arguments)
    with pytest.raises(json.JSONDecodeError):
        json.loads(call.function.arguments)
    assert len(pack(trajectory)) == 1  # what was told is recognised
    assert trajectory.metrics["parse_failures"] == 1


def test_required_is_the_one_tool_that_there_is() -> None:
    options = {"tool_choice": "required", "tools": [SEARCH]}
    (answer,), _ = talk("hermes", [REST["hermes"]], [options])
    assert answer.finish_reason == "tool_calls"
    assert [call.function.name for call in answer.message.tool_calls] == ["search"]


TWO = {
    "hermes": '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    "qwen3": "<tool_call>\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=look>\n</function>\n</tool_call>",
    "llama3": '{"name": "search", "parameters": {"query": "a"}}; {"name": "look", "parameters": {}}',
}
FIRST_END = {"hermes": "</tool_call>", "qwen3": "</tool_call>", "llama3": '"a"}}'}


@pytest.mark.parametrize("format", TWO)
@pytest.mark.parametrize("prose", ["", "I look.\n"])
def test_without_parallel_calls_a_turn_ends_with_its_first(format: str, prose: str) -> None:
    text = prose + TWO[format]
    (first_answer, _), trajectory = talk(format, [text, "Done."], [{"parallel_tool_calls": False}, {}])
    assert [call.function.name for call in first_answer.message.tool_calls] == ["search"]
    assert first_answer.message.content == (prose.strip() or None)
    first = trajectory.turns[0]
    first_call = text[: text.index(FIRST_END[format]) + len(FIRST_END[format])]
    assert first.completion.finish_reason is FinishReason.CUT
    ids = first.completion.token_ids
    assert [*ids] == encode(text)[: len(ids)]
    # the last token is the one by which the call is whole, whatever else it says
    decode = toy_tokenizer().decode
    assert decode(ids).startswith(first_call)
    assert not decode(ids[:-1]).startswith(first_call)
    assert first.text == first_call
    assert len(pack(trajectory)) == 1

    (two_calls, _), _ = talk(format, [text, "Done."], [{}, {}])
    assert [call.function.name for call in two_calls.message.tool_calls] == ["search", "look"]
    (first_of_broken, _), malformed_trajectory = talk(
        format, [text[:-25], "Done."], [{"parallel_tool_calls": False}, {}]
    )
    assert [call.function.name for call in first_of_broken.message.tool_calls] == ["search"]
    assert malformed_trajectory.turns[0].text == first_call
    (single, _), whole = talk(format, [first_call, "Done."], [{"parallel_tool_calls": False}, {}])
    assert len(single.message.tool_calls) == 1
    assert whole.turns[0].completion.finish_reason is FinishReason.STOP


def byte_fallback_tokenizer() -> "PreTrainedTokenizerFast":
    """A token for each ASCII character, and for each byte of all others, as in Llama 2 and Gemma."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\n", *map(chr, range(32, 127))]
    vocab = {word: index for index, word in enumerate(words)}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    core.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", unk_token="<unk>")
    tokenizer.chat_template = TEMPLATES["hermes"]
    return tokenizer


@pytest.mark.parametrize("padding", range(0, 40, 3))
def test_a_call_is_cut_at_its_end_whatever_bytes_are_in_it(padding: int) -> None:
    """A run of bytes that ends within a character is decoded to more characters than the whole run."""
    tokenizer = byte_fallback_tokenizer()
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "%s"}}\n</tool_call>'
    first = call % ("a" * padding + "😀" * 10)
    ids = tokenizer.encode(f"{first}\n{call % 'b'}", add_special_tokens=False)
    completion = Completion(
        token_ids=tuple(ids), logprobs=(0.0,) * len(ids), finish_reason=FinishReason.STOP, policy_version=0
    )
    cut, reading = Rendering(tokenizer).read_completion(completion, tools=[SEARCH], one_call=True)
    assert [*cut.token_ids] == tokenizer.encode(first, add_special_tokens=False)
    assert [json.loads(read.arguments)["query"] for read in reading.calls] == ["a" * padding + "😀" * 10]


def test_none_shows_no_tools() -> None:
    says = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    (answer,), trajectory = talk("hermes", [says], [{"tool_choice": "none"}])
    assert (answer.message.content, answer.message.tool_calls) == (says, None)
    assert "search" not in toy_tokenizer().decode(trajectory.prompt_ids)


async def test_a_template_that_thinks_first_has_no_call_begun() -> None:
    tokenizer = tokenizer_with()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}"
    )
    gateway = make_gateway(make_sampler([]), tokenizer)
    async with gateway.listening() as url, client_of(f"{url}/v1") as client:
        with pytest.raises(openai.BadRequestError, match="begins each answer with a thought") as rejection:
            await ask(client, [QUESTION], tools=[SEARCH], tool_choice=BY_NAME)
    assert rejection.value.param == "tool_choice"
