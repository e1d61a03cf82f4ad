"""Scores an answer against the accepted answers: exact match and F1 of words after SQuAD v1.1's normalization
(Rajpurkar et al., arXiv 1606.05250, and its evaluation script), as in Search-R1 and AgentGym. The best score
over the accepted answers counts.
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
    """The scores of an answer, each the best over the accepted answers, in [0, 1]."""

    exact: float
    f1: float


def normalize(text: str) -> str:
    """Lower-case `text`, remove ASCII punctuation, then English articles, and collapse white space.

    This is the order of SQuAD's script: `the-cat` becomes the word `thecat`, which keeps its article.
    """
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def f1(text: str, reference: str) -> float:
    """Harmonic mean of precision and recall over the normalized words, as multisets; 0 if they share none."""
    words, reference_words = normalize(text).split(), normalize(reference).split()
    common = sum((Counter(words) & Counter(reference_words)).values())
    return 2 * common / (len(words) + len(reference_words)) if common else 0.0


def compare(text: str | None, answers: Sequence[str]) -> Match:
    """Score `text` against the accepted answers; None, for no answer at all, matches nothing."""
    if text is None:
        return Match(0.0, 0.0)
    exact = any(normalize(text) == normalize(answer) for answer in answers)
    return Match(float(exact), max((f1(text, answer) for answer in answers), default=0.0))
