"""Stop texts: a completion ends with the token that completes one of them.

Completions are whole tokens, and a stop text may end within a token. The completion includes that token,
whatever else the token contains; the text that is passed on ends where the stop text begins.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from agents.types import Completion, FinishReason

Decode = Callable[[Sequence[int]], str]

_MARGIN = 8
"""Tokens decoded in addition to those of the longest stop text: decoders change how a text begins."""


def text_before(text: str, stop: Sequence[str]) -> str:
    """`text` up to where the first of the `stop` texts begins; all of it if it contains none."""
    positions = [position for position in map(text.find, stop) if position >= 0]
    return text[: min(positions)] if positions else text


def cut_at_stop(completion: Completion, stop: Sequence[str], *, decode: Decode) -> Completion:
    """`completion` up to and including the first token with which its text contains one of `stop`."""

    def contains(length: int) -> bool:
        text = decode(completion.token_ids[:length])
        return any(stop_text in text for stop_text in stop)

    length = len(completion.token_ids)
    if not stop or not contains(length):
        return completion
    # A text that contains one still does with more tokens.
    return truncate(completion, 1 + bisect_left(range(1, length), True, key=contains))


def truncate(completion: Completion, length: int) -> Completion:
    """The first `length` tokens of `completion`, as a completion that was cut.

    The beginning of a sample is a sample as well, so that it can be trained on as it is.
    """
    return replace(
        completion,
        token_ids=completion.token_ids[:length],
        logprobs=completion.logprobs[:length],
        finish_reason=FinishReason.CUT,
    )


class StopDetector:
    """Checks after each token, within a sampler, whether a completion contains a stop text."""

    def __init__(self, stop: Sequence[str], *, decode: Decode) -> None:
        self._stop = stop
        self._decode = decode
        # Most tokens decode to at least one byte; the margin covers the few that decode to none.
        self._window = max((len(stop_text.encode()) for stop_text in stop), default=0) + _MARGIN

    def is_reached(self, token_ids: Sequence[int]) -> bool:
        """Whether the text of `token_ids` ([C]) contains a stop text; the last token is new."""
        end = self._decode(token_ids[-self._window :])
        if not any(stop_text in end for stop_text in self._stop):
            return False
        text = self._decode(token_ids)  # the end alone may begin in the middle of a character
        return any(stop_text in text for stop_text in self._stop)
