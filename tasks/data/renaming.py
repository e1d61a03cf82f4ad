"""Renames the names in demonstrations, so that a small model copies names instead of memorizing them.

A model that imitates a few hundred demonstrations memorizes their names: that `Peru` follows `XNA is in`. If
the names differ each time that a demonstration is shown, the next name can only be copied from the text. All
names are trained equally, so the model can also copy those of test items, which no demonstration contains.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from tasks.data.supervised import SupervisedRow
from tasks.data.vocabulary import SPACE

Row = TypeVar("Row", bound=SupervisedRow)

MAX_SHARE = 0.03
"""A word that more of the demonstrations have is part of the language, not a name."""
MAX_SHARE_OF_CAPITALS = 0.5
"""The same for words that begin with a capital letter, such as `Africa`."""

Forms = Mapping[bool, int]
"""A word's tokens: after a space (True), and not."""


def rename_words(
    demonstrations: Sequence[Row], words: Mapping[str, int], *, copies: int, seed: int
) -> list[Row]:
    """`copies` of each of `demonstrations`, each with its own renaming: seeded.

    `words`: new words, as the tokenizer writes them, and their ids. In each copy, those that are names, that
    is, that few of `demonstrations` have, take the places of each other, of words with the same forms,
    wherever they stand: no two become one.
    """
    names = _names(demonstrations, words)
    rng = random.Random(f"renaming/{seed}")
    return [_rename(demonstration, names, rng) for _ in range(copies) for demonstration in demonstrations]


def _names(demonstrations: Sequence[SupervisedRow], words: Mapping[str, int]) -> list[list[Forms]]:
    """The words that are names, those with the same forms together."""
    counts = Counter(
        token
        for demonstration in demonstrations
        for token in {*demonstration.prompt_ids, *demonstration.response_ids}
    )
    forms: dict[str, dict[bool, int]] = defaultdict(dict)
    for word, token in words.items():
        forms[word.removeprefix(SPACE)][word.startswith(SPACE)] = token
    names: dict[frozenset[bool], list[Forms]] = defaultdict(list)
    for word, tokens in forms.items():
        share = MAX_SHARE_OF_CAPITALS if word[:1].isupper() else MAX_SHARE
        if max(counts[token] for token in tokens.values()) <= share * len(demonstrations):
            names[frozenset(tokens)].append(tokens)
    return [*names.values()]


def _rename(demonstration: Row, names: Iterable[Sequence[Forms]], rng: random.Random) -> Row:
    present = {*demonstration.prompt_ids, *demonstration.response_ids}
    new_tokens: dict[int, int] = {}
    for group in names:
        olds = [forms for forms in group if not present.isdisjoint(forms.values())]
        for old, new in zip(olds, rng.sample(group, len(olds)), strict=True):
            new_tokens.update({old[form]: new[form] for form in old})
    return replace(
        demonstration,
        prompt_ids=[new_tokens.get(token, token) for token in demonstration.prompt_ids],
        response_ids=[new_tokens.get(token, token) for token in demonstration.response_ids],
    )
