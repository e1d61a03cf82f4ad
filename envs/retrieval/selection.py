"""Selects the retriever: a server by URL, or BM25 over a corpus by path; both behind the cache.

`WINGSPAN_RETRIEVER_<ENVIRONMENT>`, e.g. `WINGSPAN_RETRIEVER_SEARCHQA_MINI`, is for an environment,
`WINGSPAN_RETRIEVER` for the tool `search`. The value is the URL of a server that speaks Search-R1's protocol
(`wingspan serve-retriever`, or the original), or the path of a corpus. Without it, an environment uses its
default corpus.
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


def configured_location(env: str) -> str | None:
    """The value of the environment's variable; None if it is not set."""
    return os.environ.get(variable_of(env)) or None


def retriever_for(env: str, *, corpus: Callable[[], Path]) -> Retriever:
    """The retriever of an environment, one per process; `corpus` returns the default corpus.

    Raises `ConfigError` for an invalid URL, and what `corpus` raises.
    """
    return retriever_at(configured_location(env) or str(corpus()))


@cache
def retriever_at(location: str) -> Retriever:
    """The retriever at a URL or over a corpus, one per process. Raises `ConfigError` for an invalid URL."""
    if "://" in location:
        return CachedRetriever(RemoteRetriever(checked_url(location)), shared_cache())
    return CachedRetriever(Bm25(Path(location)), shared_cache())
