"""How many examples of a property a test tries."""

from math import ceil

from hypothesis import settings

DEFAULT = 100
"""Hypothesis' own number, of which `make test-fast` takes a fifth (tests/conftest.py)."""


def examples(count: int) -> int:
    """`count`, or the profile's share of it: `max_examples` of a test alone would overrule the profile."""
    return ceil(count * settings().max_examples / DEFAULT)
