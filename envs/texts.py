"""Texts without lone surrogates, which JSON can spell and UTF-8 cannot."""

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str, *, by: str = "\ufffd") -> str:
    """`text` with `by` for each lone surrogate."""
    return text if text.isascii() else _SURROGATE.sub(by, text)


def replace_surrogates_within(value: Any, *, by: str = "\ufffd") -> Any:
    """A JSON value with `by` for each lone surrogate in its texts and keys."""
    if isinstance(value, str):
        return replace_surrogates(value, by=by)
    if isinstance(value, list):
        return [replace_surrogates_within(element, by=by) for element in value]
    if isinstance(value, dict):
        return {
            replace_surrogates(key, by=by): replace_surrogates_within(element, by=by)
            for key, element in value.items()
        }
    return value
