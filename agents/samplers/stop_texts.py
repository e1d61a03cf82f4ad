"""Stop texts: where a completion ends because its text contains one, to the token.

What was sampled is whole tokens, and a text may end within one. The token by which a stop text is complete is
the completion's last, whatever else it says; the text that is told ends where the stop text begins.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from agents.types import Completion, FinishReason

Decode = Callable[[list[int]], str]

_MARGIN = 8
"""Tokens that are decoded beside those that a stop text can consist of: decoders change how a text begins."""


def text_before(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first place where one of `stop` begins; all of it where none does."""
    places = [place for place in (text.find(one) for one in stop) if place >= 0]
    return text[: min(places)] if places else text


def cut_at_stop(completion: Completion, stop: Sequence[str], *, decode: Decode) -> Completion:
    """`completion` up to and with the first token by which its text contains one of `stop`."""

    def contains(length: int) -> bool:
        text = decode(completion.token_ids[:length])
        return any(one in text for one in stop)

    length = len(completion.token_ids)
    if not stop or not contains(length):
        return completion
    low, high = 1, length  # a text that contains it does so with more tokens, too
    while low < high:
        middle = (low + high) // 2
        if contains(middle):
            high = middle
        else:
            low = middle + 1
    return truncate(completion, low)


def truncate(completion: Completion, length: int) -> Completion:
    """The first `length` tokens of `completion`, which ends there because no more was wanted.

    The beginning of a sample is a sample: nothing else is to be known of it to train on it.
    """
    return replace(
        completion,
        token_ids=completion.token_ids[:length],
        logprobs=completion.logprobs[:length],
        finish_reason=FinishReason.CUT,
    )


class StopDetector:
    """Says after each token whether a completion has come to a stop text; for samplers."""

    def __init__(self, stop: Sequence[str], *, decode: Decode) -> None:
        self._stop = stop
        self._decode = decode
        # A token says a byte at least, or nothing at all: of the latter there may be some.
        self._window = max((len(one.encode()) for one in stop), default=0) + _MARGIN

    def is_reached(self, token_ids: list[int]) -> bool:
        """Whether the text of `token_ids` ([C]) contains one; the last token is new."""
        end = self._decode(token_ids[-self._window :])
        if not any(one in end for one in self._stop):
            return False
        text = self._decode(token_ids)  # the end alone may begin in the midst of a character
        return any(one in text for one in self._stop)
