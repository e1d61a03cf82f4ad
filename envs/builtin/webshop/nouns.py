"""The nouns of a product's title, without a tagger.

Upstream asks spaCy for the words of a title that are nouns or names. In titles nearly all words are: they are
written like names, and spaCy tags them so. Here every word is one that is no function word and begins with a
letter; docs/webshop.md tells how often that comes to another reward.
"""

import re
from functools import lru_cache

TITLES = 1 << 14
"""Titles whose nouns are kept."""
_WORD = re.compile(r"[^\W\d_](?:[\w.]*[^\W_])?")
"""Begins with a letter; dots within it belong to it (`d.o.n`), hyphens and slashes end it."""
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_STARTS_WITH_A_DIGIT = re.compile(r"\b\d[\w.]*")

_FUNCTION_WORDS = """
    a an the this that these those each every all any both some no another other
    of in on at by for from with without to into onto up down out off over under through across around between
    within per as than like via and or but nor so yet plus
    i me my you your he him his she her it its we us our they them their who which what
    is are was were be been being am do does did has have had can could will would may might must should shall
    not if when while because very too also only just
    one two three four five six seven eight nine ten
    """
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())


@lru_cache(maxsize=TITLES)
def nouns(title: str) -> tuple[str, ...]:
    """The words of `title` that count as nouns or names, in lower case and as often as it has them."""
    words = _POSSESSIVE.sub(" ", title.lower())
    matches = _WORD.findall(_STARTS_WITH_A_DIGIT.sub(" ", words))
    return tuple(word for word in matches if word not in FUNCTION_WORDS)
