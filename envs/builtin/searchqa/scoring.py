"""How an answer to a question is compared with the accepted ones: exact match and F1 of words, after SQuAD
v1.1's normalisation (Rajpurkar et al., arXiv 1606.05250, and its evaluation script), which Search-R1 and
AgentGym use, too. Where several answers are accepted, the best counts.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True)
class Match:
    """How near an answer comes to the accepted ones: each number is the best over these, in [0, 1]."""

    exact: float
    f1: float


def normalised(text: str) -> str:
    """In lower case, without ASCII punctuation and English articles, words one space apart.

    In this order, as SQuAD's script does it: `the-cat` is one word, `thecat`, and keeps its article.
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def f1(text: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the normalised words, as multisets; 0 if they share none."""
    said, wanted = normalised(text).split(), normalised(reference).split()
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted)) if common else 0.0


def compare(text: str | None, accepted: Sequence[str]) -> Match:
    """Compare `text` with the accepted answers; None is no answer at all and matches nothing."""
    if text is None:
        return Match(0.0, 0.0)
    exact = any(normalised(text) == normalised(one) for one in accepted)
    return Match(float(exact), max((f1(text, one) for one in accepted), default=0.0))
