"""Which retriever searches: a server by URL, or BM25 over a corpus by path; with the cache around it.

`WINGSPAN_RETRIEVER_<ENVIRONMENT>`, e.g. `WINGSPAN_RETRIEVER_SEARCHQA_MINI`, is an environment's;
`WINGSPAN_RETRIEVER` is the tool `search`'s. Their value is the URL of a server that speaks Search-R1's
protocol (`wingspan serve-retriever`, or theirs), or the path of a corpus. Without it an environment has its
own corpus.
"""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from envs.retrieval.bm25 import Bm25
from envs.retrieval.cache import CachedRetriever, shared_cache
from envs.retrieval.remote import RemoteRetriever, checked_url
from envs.retrieval.types import Retriever

VARIABLE = "WINGSPAN_RETRIEVER"


def variable_of(env: str) -> str:
    """`searchqa-mini` → `WINGSPAN_RETRIEVER_SEARCHQA_MINI`."""
    return f"{VARIABLE}_{env.upper().replace('-', '_')}"


def place_for(env: str) -> str | None:
    """What the environment's variable says; None where it is not set."""
    return os.environ.get(variable_of(env)) or None


def retriever_for(env: str, *, corpus: Callable[[], Path]) -> Retriever:
    """The retriever of an environment, one for the whole process; `corpus` is where it has its own.

    Raises `ConfigError` for a URL that is none, and what `corpus` raises.
    """
    return retriever_at(place_for(env) or str(corpus()))


@cache
def retriever_at(place: str) -> Retriever:
    """The retriever at a URL or over a corpus, one for the whole process. Raises `ConfigError` for a wrong
    URL."""
    if "://" in place:
        return CachedRetriever(RemoteRetriever(checked_url(place)), shared_cache())
    return CachedRetriever(Bm25(Path(place)), shared_cache())
