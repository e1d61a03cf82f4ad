"""Cases of each family by the hundred: well-formed, malformed, adversarial. What is to be expected of each is
known from how it was made, or from `json.loads`; no parser of ours has a say.
"""

import json
import random
from collections.abc import Callable, Iterator
from typing import NoReturn

from agents.formats.calls import ToolCall
from tests.support.format_writers import ARGUMENTS, CALLS, EVIL, FRAGMENTS, WRAPS, WRITERS

FAMILIES = ("hermes", "qwen3", "llama3", "json", "react")
Case = tuple[str, list[ToolCall]]
"""A text, and the calls that are to be read in it."""


def react(call: ToolCall) -> str:
    return f"Thought: so\nAction: {call.name}\nAction Input: {json.dumps(call.arguments)}"


def write_turn(family: str, call: ToolCall) -> str:
    """A turn with one call."""
    return react(call) if family == "react" else WRITERS[family]([call])


def well_formed(family: str) -> list[Case]:
    """Every kind of argument, in every kind of turn."""
    if family != "react":
        return [
            (wrap.replace("CALLS", WRITERS[family](calls)), calls)
            for calls in CALLS
            for wrap in WRAPS.values()
        ]
    calls = [ToolCall("get_weather", arguments) for arguments in ARGUMENTS]
    return [(wrap.replace("CALLS", react(call)), [call]) for call in calls for wrap in WRAPS.values()]


# What is written here of a call within a call must never come out of one that is broken.
_BASES = [
    ToolCall("f", {}),
    ToolCall("get_weather", {"city": "Paris", "days": 3}),
    ToolCall("f", {"x": {"name": "evil", "arguments": {}, "parameters": {}}}),
    ToolCall("f", {"x": '{"name": "evil", "arguments": {}}', "y": [1, None, {"a": "}"}]}),
]
_FRAMES: dict[str, Callable[[str], str]] = {
    "hermes": lambda body: f"I look.\n<tool_call>\n{body}\n</tool_call>",
    "llama3": lambda body: body,
    "json": lambda body: f"```json\n{body}\n```",
    "react": lambda body: f"Thought: so\nAction: f\nAction Input: {body}",
}


def _body(family: str, call: ToolCall) -> str:
    if family == "react":
        return json.dumps(call.arguments)
    key = "parameters" if family == "llama3" else "arguments"
    return json.dumps({"name": call.name, key: call.arguments})


def _mutants(body: str) -> Iterator[str]:
    for index, character in enumerate(body):
        if character in '{}[]:,"':
            yield body[:index] + body[index + 1 :]  # left out
            yield body[:index] + character + body[index:]  # twice
        if index:
            yield body[:index]  # cut off
    yield body.replace('"', "'")
    yield body[:-1] + ",}"
    yield body.replace(": ", " = ")
    yield body.replace("{", "(").replace("}", ")")
    for bad in (
        "NaN",
        "-Infinity",
        "undefined",
        "None",
        "01",
        "1.",
        "'x'",
        "0x1",
        "tru",
        "[1,",
        '"\\x"',
        "1e999",
    ):
        yield body[:-1] + (", " if body != "{}" else "") + f'"z": {bad}}}'


def is_json(text: str) -> bool:
    """By the standard library; constants that JSON has not, and numbers that nothing holds, are none."""

    def refuse(_: str) -> NoReturn:
        raise ValueError

    def finite(digits: str) -> float:
        number = float(digits)
        return number if abs(number) < float("inf") else refuse(digits)

    try:
        json.loads(text, parse_constant=refuse, parse_float=finite)
    except ValueError:
        return False
    return True


def begins_json(text: str) -> bool:
    """Whether a whole value stands at its beginning, whatever follows."""
    try:
        return is_json(text[: json.JSONDecoder().raw_decode(text)[1]])
    except ValueError:
        return False


_SHAPES = [
    *(
        '[{"name": "f"}]',
        "1",
        '"f"',
        "null",
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": null, "arguments": {}}',
    ),
    *('{"name": "", "arguments": {}}', '{"name": ["f"], "arguments": {}}', '{"name": "f", "arguments": 1}'),
    *(
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "text"}',
        '{"name": "f", "arguments": true}',
    ),
]


def make_malformed(family: str) -> list[str]:
    """Turns of which no call can be read."""
    if family == "qwen3":
        return list(_malformed_xml())
    bodies = [_body(family, call) for call in _BASES]
    texts = [
        mutant
        for body in bodies
        for mutant in _mutants(body)
        # Where calls are found in the midst of prose, a whole one with a bracket beside it is a call.
        if not is_json(mutant) and (family == "hermes" or not (body in mutant or begins_json(mutant)))
    ]
    if family == "react":  # what does not begin with a brace is a plain input
        texts = [piece for piece in texts if piece.startswith("{")]
    elif family == "llama3":
        texts += [piece.replace("arguments", "parameters") for piece in _SHAPES]
    else:
        texts += _SHAPES
    return [_FRAMES[family](piece) for piece in dict.fromkeys(texts)]


def _malformed_xml() -> Iterator[str]:
    for call in _BASES:
        whole = WRITERS["qwen3"]([call])
        end = whole.index("</function>") + len("</function>")
        yield from (whole[:index] for index in range(len("<tool_call>"), end))  # cut off before it is whole
        last = whole.rfind(
            "</parameter>"
        )  # without another one, its value goes on to the next parameter's end
        if last >= 0:
            yield whole[:last] + whole[last + len("</parameter>") :]
        tag_end = whole.index(">\n", whole.index("<function="))
        yield whole[:tag_end] + whole[tag_end + 1 :]
        if call.arguments:
            yield whole.replace("<parameter=", "", 1)
        for tag in ("<function=", "</function>"):
            start = whole.find(tag, len("<tool_call>"))  # that one may be missing
            while start >= 0:
                mutant = whole[:start] + whole[start + len(tag) :]
                if not is_whole_xml(mutant):
                    yield mutant
                start = whole.find(tag, start + 1)
        for name in ("", "a b", "a<b", "a" * 300, "\n"):
            yield whole.replace("<function=" + call.name, "<function=" + name)
        for junk in ("loose", "<b>", "{}", "</tool_call>"):
            yield whole.replace("</function>", junk + "</function>")
            yield whole + junk * (junk == "</tool_call>") + "<tool_call>" + junk.replace("</tool_call>", "")


def is_whole_xml(text: str) -> bool:
    """Whether every tag that is opened is closed, counted."""
    pairs = (("<function=", "</function>"), ("<parameter=", "</parameter>"), ("<tool_call>", "</tool_call>"))
    return all(text.count(piece) == text.count(family_name) for piece, family_name in pairs)


def adversarial(family: str) -> list[Case]:
    """Turns that would have other calls read in them than there are."""
    rng = random.Random(f"adversarial {family}")

    def soup(most: int) -> str:
        pieces = rng.choices([piece for piece in FRAGMENTS if len(piece) < 100], k=rng.randint(1, most))
        return "".join(pieces).replace("\ud800", "").replace("\\ud800", "")

    cases: list[Case] = []
    quotes = [write_turn(family_name, EVIL) for family_name in FAMILIES]
    while len(cases) < 120:  # within an argument
        text = rng.choice(["", "\n", "a "]) + soup(5) + rng.choice([*quotes, ""]) + soup(4)
        if family == "qwen3" and ("</parameter>" in text or "<function" in text):
            continue  # the format has no escapes
        call = ToolCall("f", {"x": text, "n": "7"})
        cases.append((write_turn(family, call), [call]))
    while len(cases) < 240:  # within a thought
        thoughts = (soup(5) + rng.choice(quotes) + soup(5)).replace("</think>", "")
        call = ToolCall("g", {"y": "z"})
        cases.append((f"<think>{thoughts}</think>\n{write_turn(family, call)}", [call]))
    while len(cases) < 300:  # within a thought without an end
        cases.append((f"<think>{soup(4)}{rng.choice(quotes)}{soup(4)}".replace("</think>", ""), []))
    return cases
