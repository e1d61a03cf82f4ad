"""Messages to tokens that the policy reads; sampled tokens are never encoded again.

A chat template renders whole conversations as text. An episode needs only the tokens *between* two
completions: for each sequence of roles, the frame around messages is cut once out of a rendered conversation
of sentinel words.

    … A0 <|im_end|>\\n<|im_start|>user\\n U1 <|im_end|>\\n<|im_start|>assistant\\n
         └─────────────────────────────┘    └─────────────────────────────────────┘

Images are part of the frame: the template writes a placeholder for each, which the model's processor then
expands (`agents/prompting/images.py`).
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from agents.formats.calls import Schema
from agents.prompting.images import VisionProcessor
from envs.errors import ConfigError, to_line
from envs.types import Image, Message, Role

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

_SYSTEM, _USER, _ASSISTANT, _REPLY = "Wspan0system", "Wspan1user", "Wspan2assistant", "Wspan3reply"
_PROMPTS_CACHED = 1024  # samples of one item start with the same prompt
_REPLIES_CACHED = 8192  # samples of one item get the same observations
_IMAGE_PROMPTS_CACHED = 64  # the cache keeps the images alive
_LONG = 16  # characters for each token, which texts hardly have
_PIECE = 1 << 14  # characters
_CUT_TOKENS = 64  # tokens by which a piece may differ, since cuts split words

_RenderedMessage = tuple[str, str, int]
"""Role, content and number of images of a message."""

Span = tuple[int, int]
"""Start and end, exclusive."""

_Encode = Callable[[str], list[int]]
_Decode = Callable[[Sequence[int]], str]
_EncodeWithOffsets = Callable[[str], tuple[list[int], list[Span]]]


class RenderedReply(NamedTuple):
    """What stands between two completions, as tokens."""

    ids: tuple[int, ...]  # [O]
    bodies: tuple[Span, ...]
    """In `ids`, the tokens of each message's text: those that have no character of the chat template. None
    are known of a tokenizer written in Python, or where the model's processor changes the text around an
    image."""


class Renderer:
    """Messages and observations as tokens, in the format of a tokenizer's chat template."""

    stop_token_ids: tuple[int, ...]
    """The template's end-of-turn token, then the tokenizer's eos if it differs."""

    encode: _Encode
    """Tokens of a text by the template, including its control tokens."""

    decode: _Decode
    """Text of sampled tokens without control tokens, to parse and never to encode."""

    placeholder_ids: frozenset[int]
    """Tokens that stand for images, videos or sound; neither policy nor environment may write them."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", processor: "ProcessorMixin | None" = None
    ) -> None:
        """`processor`: of a vision-language model (`images.load_processor`).

        Raises `ConfigError` for a template that is missing, drops messages or has no end of turn.
        """
        self._tokenizer = tokenizer
        if processor is None and not tokenizer.chat_template:
            raise ConfigError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; save one next to it as "
                "chat_template.jinja, or use a chat model"
            )
        self._vision = None if processor is None else VisionProcessor(processor)
        self.placeholder_ids = frozenset() if self._vision is None else self._vision.placeholder_ids
        self.encode, self.decode, self._encode_with_offsets = _codec(tokenizer)
        control = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
        control |= set(tokenizer.all_special_tokens)
        control |= set() if self._vision is None else self._vision.marks
        longest_first = sorted(control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._system_role = self._takes_system()
        self._frame = lru_cache(maxsize=64)(self._cut_frame)
        self._end_of_turn = self._find_end_of_turn()
        eos = tokenizer.eos_token_id
        extra = () if eos is None or eos == self._end_of_turn else (eos,)
        self.stop_token_ids = (self._end_of_turn, *extra)
        self._prompt = lru_cache(_PROMPTS_CACHED)(self._encode_prompt)
        self._image_prompt = lru_cache(_IMAGE_PROMPTS_CACHED)(self._encode_prompt)
        self._reply = lru_cache(_REPLIES_CACHED)(self._encode_reply)

    def prompt_ids(self, messages: Sequence[Message], *, tools: Sequence[Schema] = ()) -> list[int]:
        """The conversation up to where the policy answers ([P]), with JSON schemas of tools.

        For a template without a system role, the system message is prepended to the next one. Raises
        `ConfigError` for roles or tools that the template refuses, and for images without a processor.
        """
        encode = self._image_prompt if images_of(messages) else self._prompt
        return list(encode(tuple(messages), json.dumps(list(tools)) if tools else ""))

    def reply(
        self, messages: Sequence[Message], *, is_closed: bool, observed: Sequence[int] | None = None
    ) -> RenderedReply:
        """Tokens between a completion and the next one: end of turn, `messages`, the prompt of the next turn.

        `is_closed`: the completion ended with a stop token, so none is added. `observed`: of each message,
        the number of characters at its start that are a body; by default all. Raises `ConfigError` for roles
        that the template refuses here, and for images without a processor.
        """
        encode = self._encode_reply if images_of(messages) else self._reply
        counts = [len(message.content) for message in messages] if observed is None else observed
        return encode(tuple(messages), is_closed, tuple(counts))

    def is_longer(self, messages: Sequence[Message], num_tokens: int) -> bool:
        """Whether `messages` surely have more than `num_tokens`, without encoding much more than these.

        Only texts of many characters are looked at, because a short prompt is encoded quickly; the
        assistant's are left out, because templates drop thoughts.
        """
        texts = [message.content for message in messages if message.role != "assistant"]
        if len(texts) > num_tokens:  # a template writes a token at least for each
            return True
        if sum(map(len, texts)) <= _LONG * num_tokens:
            return False
        for text in texts:
            for start in range(0, len(text), _PIECE):
                piece = self._clean(text[start : start + _PIECE]).strip()  # templates trim
                num_tokens -= max(0, len(self.encode(piece)) - _CUT_TOKENS)
                if num_tokens < 0:
                    return True
        return False

    def add_to_prompt(self, prompt_ids: Sequence[int], text: str) -> list[int]:
        """`prompt_ids` with a paragraph of `text` at the end of the message before the policy's turn.

        All tokens of `prompt_ids` stay as they are, and the paragraph is encoded by itself. Raises
        `ConfigError` if the template's tokens after a message are not found at the end of `prompt_ids`.
        """
        paragraph = self.encode(f"\n\n{self._clean(text)}")
        for end_ids in self._prompt_ends:
            start = len(prompt_ids) - len(end_ids)
            if tuple(prompt_ids[start:]) == end_ids:
                return [*prompt_ids[:start], *paragraph, *end_ids]
        raise self._unusable("does not end a prompt with tokens of its own after the last message")

    @cached_property
    def _prompt_ends(self) -> list[tuple[int, ...]]:
        """What the template writes after the last message, the prompt of the policy's turn included; by the
        role of that message, the longest first."""
        ends: set[tuple[int, ...]] = set()
        for role in ("user", "tool"):
            with suppress(ConfigError):  # the template refuses this role
                (*_, end), _ = self._frame(((role, 0),))
                ends.add(tuple(self.encode(end)))
        return sorted(filter(None, ends), key=len, reverse=True)

    def _encode_prompt(self, messages: tuple[Message, ...], tools: str) -> tuple[int, ...]:
        turns: list[_RenderedMessage] = [(m.role, self._clean(m.content), len(m.images)) for m in messages]
        if not self._system_role and len(turns) > 1 and turns[0][0] == "system":
            (_, system, before), (role, content, images), *rest = turns
            turns = [(role, f"{system}\n\n{content}", before + images), *rest]
        text = self._render(turns, tools=json.loads(tools) if tools else None)
        return tuple(self._encode_with(images_of(messages), text))

    def _encode_reply(
        self, messages: tuple[Message, ...], is_closed: bool, observed: tuple[int, ...]
    ) -> RenderedReply:
        (text, *gaps), trims = self._frame(tuple((m.role, len(m.images)) for m in messages))
        bodies: list[Span] = []  # characters of `text`
        for message, count, gap in zip(messages, observed, gaps, strict=True):
            content, body = self._clean(message.content), self._clean(message.content[:count])
            end = len(body) if content.startswith(body) else 0
            if trims:
                end -= len(content) - len(content.lstrip())
                content = content.strip()
            bodies.append((len(text), len(text) + min(max(end, 0), len(content))))
            text += content + gap
        # Encoded with the end of turn, even if that is cut off again: some control tokens absorb the white
        # space after them.
        images = images_of(messages)
        text_ids, offsets = self._encode_with_offsets(text)
        ids = self._encode_with(images, text) if images else text_ids
        num_cut = ids.index(self._end_of_turn) + 1 if is_closed else 0
        places = _align(text_ids, ids, placeholders=self.placeholder_ids) if offsets else None
        spans = () if places is None else _find_tokens(bodies, offsets=offsets, places=places)
        return RenderedReply(
            tuple(ids[num_cut:]), tuple((start - num_cut, end - num_cut) for start, end in spans)
        )

    def _encode_with(self, images: Sequence[Image], text: str) -> list[int]:
        if not images:
            return self.encode(text)
        if self._vision is None:
            raise ConfigError(
                f"{len(images)} images are to be shown, but {self._name} reads text only; use a "
                "vision-language model with a processor, or omit the images"
            )
        return self._vision.encode(text, images)

    def _cut_frame(self, shapes: tuple[tuple[Role, int], ...]) -> tuple[list[str], bool]:
        """What the template writes around messages of these roles and numbers of images after a completion:
        one piece before each message and one after the last, and whether it trims their contents."""
        words = [f"{_REPLY}{number:04d}" for number in range(len(shapes))]
        # Templates write spaces and newlines around a message, but no tabs.
        tab_marks = [f"\t{word}\t" for word in words]
        for marks, trims in ((tab_marks, False), (words, True)):
            replies = [(role, mark, images) for (role, images), mark in zip(shapes, marks, strict=True)]
            turns = [("user", _USER, 0), ("assistant", _ASSISTANT, 0), *replies]
            head, *rest = self._render(turns).split(_ASSISTANT)
            pieces = re.split("|".join(map(re.escape, marks)), rest[0]) if len(rest) == 1 else []
            if len(pieces) == len(shapes) + 1 and _USER in head:
                return pieces, trims
        roles = "/".join(role for role, _ in shapes)
        raise self._unusable(f"does not show every message of {roles} exactly once")

    def _clean(self, text: str) -> str:
        # Control tokens in an environment's text would forge turns or images. A space replaces them, because
        # otherwise the text around one could form another.
        return self._control.sub(" ", text)

    def _find_end_of_turn(self) -> int:
        ids = self.encode(self._frame((("user", 0),))[0][0])
        if self._tokenizer.eos_token_id in ids:
            return int(self._tokenizer.eos_token_id)
        special = set(self._tokenizer.all_special_ids)
        special |= {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        for token_id in ids:
            if token_id in special:
                return token_id
        raise self._unusable("writes no special token after an assistant's message")

    def _takes_system(self) -> bool:
        try:
            return _SYSTEM in self._render([("system", _SYSTEM, 0), ("user", _USER, 0)])
        except ConfigError:
            self._render([("user", _USER, 0)])  # raises if the template is at fault, not the role
            return False

    def _render(self, turns: Sequence[_RenderedMessage], *, tools: Sequence[Schema] | None = None) -> str:
        from jinja2 import TemplateError

        try:
            if self._vision is not None:
                return self._vision.render(turns, tools=tools)
            conversation = [{"role": role, "content": content} for role, content, _ in turns]
            text = self._tokenizer.apply_chat_template(
                conversation, tools=tools, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError, TypeError) as error:
            roles = "/".join(role for role, _, _ in turns)
            raise self._unusable(f"refuses {roles}: {to_line(error, limit=200)}") from None
        assert isinstance(text, str)
        return text

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(f"the chat template of {self._name} {why}; use a model with a multi-turn template")

    @property
    def _name(self) -> str:
        return repr(self._tokenizer.name_or_path or type(self._tokenizer).__name__)


def images_of(messages: Sequence[Message]) -> list[Image]:
    """The images of a conversation, in the order in which they are shown."""
    return [image for message in messages for image in message.images]


def _find_tokens(bodies: Sequence[Span], *, offsets: Sequence[Span], places: Sequence[int]) -> Iterator[Span]:
    """The tokens that lie in the characters `bodies`; `offsets`: the characters of each token, `places`: its
    place among the tokens."""
    characters = list(_without_gaps(offsets))
    for first, last in bodies:
        inside = [
            place
            for place, (start, end) in zip(places, characters, strict=True)
            if first <= start < end <= last
        ]
        if inside:
            yield inside[0], inside[-1] + 1


def _without_gaps(offsets: Sequence[Span]) -> Iterator[Span]:
    """The characters of each token, with those before it that no token has: offsets of some tokenizers leave
    out the white space with which a token begins."""
    previous_end = 0
    for start, end in offsets:
        yield min(start, previous_end), end
        previous_end = max(previous_end, end)


def _align(text_ids: Sequence[int], ids: Sequence[int], *, placeholders: frozenset[int]) -> list[int] | None:
    """The place of each of `text_ids` in `ids`, where a run of placeholders may be longer; None if `ids`
    differ in something else."""
    places, place = [], 0
    for token in text_ids:
        if token in placeholders:
            places.append(place)
            while place < len(ids) and ids[place] in placeholders:
                place += 1
        elif place < len(ids) and ids[place] == token:
            places.append(place)
            place += 1
        else:
            return None
    return places if place == len(ids) else None


def _codec(tokenizer: "PreTrainedTokenizerBase") -> tuple[_Encode, _Decode, _EncodeWithOffsets]:
    """Encoding that adds no tokens (the template writes them), decoding that skips control tokens, and
    encoding with the characters of each token, which a tokenizer in Python does not know."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python
        encode = partial(tokenizer.encode, add_special_tokens=False)
        return (
            encode,
            partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            lambda text: (encode(text), []),
        )
    # Half the time of the tokenizer's methods; a copy, because padding and truncation are its state.
    backend = copy.deepcopy(backend)
    backend.no_padding()
    backend.no_truncation()

    def encode_with_offsets(text: str) -> tuple[list[int], list[Span]]:
        encoding = backend.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    return (
        lambda text: backend.encode(text, add_special_tokens=False).ids,
        partial(backend.decode, skip_special_tokens=True),
        encode_with_offsets,
    )
