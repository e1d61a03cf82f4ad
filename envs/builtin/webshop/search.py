"""The shop's search engine: as upstream, BM25 over titles, descriptions, first features and options.

Upstream queries Lucene through pyserini 0.17, whose defaults are `K1`, `B` and Lucene's English analyzer:
Unicode word boundaries, lower case, no possessives, no stop words, Porter stems. bm25s computes Lucene's
formula, but Lucene rounds the length of a document to a byte, so close scores may rank differently.
"""

import logging
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache

import bm25s
import numpy as np
import Stemmer

from envs.builtin.webshop.catalogue import Product

logging.getLogger("bm25s").setLevel(logging.INFO)  # it logs every index, whatever the root's level

K1, B = 0.9, 0.4
"""pyserini's defaults."""
_STOP_WORDS = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there
    these they this to was will with
    """
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Lucene's for English."""
MAX_UNSTEMMED = 2
"""Characters; Lucene leaves words of up to this length as they are."""
STEMS = 1 << 20
"""Words whose stems are cached."""
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d])['\u2019.](?=[^\W\d])|(?<=\d)[.,](?=\d))\w+)*")
"""A word may contain an apostrophe or a dot between letters, and a dot or a comma between digits."""
_POSSESSIVE = re.compile(r"['\u2019]s$")


class Index:
    """A full-text index of some texts; immutable, so that instances share it."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._numbers: dict[str, int] = {}
        numbers = self._numbers
        documents = [[numbers.setdefault(word, len(numbers)) for word in analyze(text)] for text in texts]
        self._bm25 = bm25s.BM25(k1=K1, b=B, method="lucene")
        self._has_index = bool(self._numbers)
        if self._has_index:
            self._bm25.index((documents, self._numbers), create_empty_token=False, show_progress=False)

    def search(self, query: str, *, limit: int) -> list[int]:
        """Indices of the texts that contain a word of `query`, best first; ties keep the texts' order."""
        word_numbers = [self._numbers[word] for word in analyze(query) if word in self._numbers]
        if not word_numbers:
            return []
        scores = self._bm25.get_scores(word_numbers)
        (rows,) = scores.nonzero()
        if len(rows) > limit:
            threshold = np.partition(scores[rows], -limit)[-limit]
            rows = rows[scores[rows] >= threshold]  # keep all that tie with the last one: `argsort` decides
        order = np.argsort(-scores[rows], kind="stable")[:limit]
        return [int(number) for number in rows[order]]


def document(product: Product) -> str:
    """The text that is indexed for a product."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    first = product.features[0] if product.features else ""
    return " ".join([product.title, product.description, first, options]).lower()


def analyze(text: str) -> Iterator[str]:
    """The terms of a text, as they are indexed and searched."""
    for word in _WORD.findall(text.lower()):
        base = _POSSESSIVE.sub("", word)
        if base not in STOP_WORDS:
            yield _stem(base)


@lru_cache(maxsize=STEMS)
def _stem(word: str) -> str:
    stem: str = _porter().stemWord(word) if len(word) > MAX_UNSTEMMED else word
    return stem


@cache
def _porter() -> Stemmer.Stemmer:
    return Stemmer.Stemmer("porter", 0)  # its own cache is off: `_stem` has one
