"""Text to tokens, for what the environment says; nothing that the policy sampled is encoded again.

A chat template renders whole conversations as text. An episode needs only the tokens *between*
two completions: they are cut, once, out of a rendered conversation of sentinel words.

    … A0 <|im_end|>\\n<|im_start|>user\\n U1 <|im_end|>\\n<|im_start|>assistant\\n
         └────────── before ──────────┘    └──────────────── after ──────────────┘
"""

import copy
import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from envs.errors import ConfigError
from envs.types import Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SYSTEM, _USER, _ASSISTANT, _NEXT = "Wspan0system", "Wspan1user", "Wspan2assistant", "Wspan3next"
_PROMPTS_CACHED = 1024  # chains of one item start with the same prompt
_OBSERVATIONS_CACHED = 8192  # siblings meet the same answers


class Renderer:
    """Messages and observations as tokens, in the format of a tokenizer's chat template."""

    stop_token_ids: tuple[int, ...]
    """The template's end-of-turn token, then the tokenizer's eos where that is another one."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        """Raises `ConfigError` for a template that is missing, drops messages or has no end of turn."""
        self._tokenizer = tokenizer
        self._encode, self._decode = _codec(tokenizer)
        control = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
        control |= set(tokenizer.all_special_tokens)
        longest_first = sorted(control, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._system_role = self._takes_system()
        # Templates write spaces and newlines of their own round a message, but no tabs.
        padded = f"\t{_NEXT}\t"
        rendered = self._render([("user", _USER), ("assistant", _ASSISTANT), ("user", padded)])
        self._trims = padded not in rendered
        try:
            before_next, self._after = rendered.split(_NEXT if self._trims else padded)
            _, self._before = before_next.split(_ASSISTANT)
        except ValueError:
            raise self._unusable("does not show every message exactly once") from None
        self._end_of_turn = self._find_end_of_turn()
        eos = tokenizer.eos_token_id
        others = () if eos is None or eos == self._end_of_turn else (eos,)
        self.stop_token_ids = (self._end_of_turn, *others)
        self._prompt = lru_cache(_PROMPTS_CACHED)(self._encode_prompt)
        self._observation = lru_cache(_OBSERVATIONS_CACHED)(self._encode_observation)

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """The conversation up to where the policy speaks ([P]).

        A template without a system role gets the system message at the head of the next one.
        """
        return list(self._prompt(tuple(messages)))

    def observation_ids(self, text: str, *, closed: bool) -> list[int]:
        """Tokens between a completion and the next one: end of turn, `text` as user, prompt to speak.

        `closed`: the completion ended with a stop token, so none is added here.
        """
        return list(self._observation(text, closed))

    def decode(self, ids: list[int]) -> str:
        """Sampled tokens as text, without control tokens: to read and parse, never to encode."""
        return self._decode(ids)

    def _encode_prompt(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        turns = [(m.role, self._clean(m.content)) for m in messages]
        if not self._system_role and len(turns) > 1 and turns[0][0] == "system":
            (_, system), (role, content), *rest = turns
            turns = [(role, f"{system}\n\n{content}"), *rest]
        return tuple(self._encode(self._render(turns)))

    def _encode_observation(self, text: str, closed: bool) -> tuple[int, ...]:
        text = self._clean(text)
        # Encoded from the end of turn on, even where it is cut off again: some control tokens take
        # in the white space that follows them.
        ids = self._encode(self._before + (text.strip() if self._trims else text) + self._after)
        return tuple(ids[ids.index(self._end_of_turn) + 1 :] if closed else ids)

    def _clean(self, text: str) -> str:
        # Control tokens spelled out in an environment's text would forge turns. A space, not
        # nothing, lest the halves around one make another.
        return self._control.sub(" ", text)

    def _find_end_of_turn(self) -> int:
        ids = self._encode(self._before)
        if self._tokenizer.eos_token_id in ids:
            return int(self._tokenizer.eos_token_id)
        special = set(self._tokenizer.all_special_ids)
        special |= {i for i, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        for token_id in ids:
            if token_id in special:
                return token_id
        raise self._unusable("puts no special token after an assistant's message")

    def _takes_system(self) -> bool:
        try:
            return _SYSTEM in self._render([("system", _SYSTEM), ("user", _USER)])
        except ConfigError:
            self._render([("user", _USER)])  # raises if the template is the trouble, not the role
            return False

    def _render(self, turns: Sequence[tuple[str, str]]) -> str:
        from jinja2 import TemplateError

        conversation = [{"role": role, "content": content} for role, content in turns]
        try:
            text = self._tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, ValueError) as error:
            roles = "/".join(role for role, _ in turns)
            raise self._unusable(f"refuses {roles}: {' '.join(str(error).split())[:200]}") from None
        assert isinstance(text, str)
        return text

    def _unusable(self, why: str) -> ConfigError:
        name = self._tokenizer.name_or_path or type(self._tokenizer).__name__
        return ConfigError(f"the chat template of {name!r} {why}; use a model with a multi-turn template")


def _codec(
    tokenizer: "PreTrainedTokenizerBase",
) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Encoding that adds no tokens (the template has written them), decoding that skips control tokens."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer in plain Python
        return (
            partial(tokenizer.encode, add_special_tokens=False),
            partial(tokenizer.decode, skip_special_tokens=True, clean_up_tokenization_spaces=False),
        )
    # Half the time of the methods around it; a copy, for padding and truncation are state in there.
    backend = copy.deepcopy(backend)
    backend.no_padding()
    backend.no_truncation()
    return (
        lambda text: backend.encode(text, add_special_tokens=False).ids,
        partial(backend.decode, skip_special_tokens=True),
    )
