"""`wingspan serve-retriever`: searches of a corpus over HTTP, with Search-R1's protocol."""

from collections.abc import Callable
from pathlib import Path

from envs.errors import ConfigError
from envs.retrieval.bm25 import Bm25
from envs.retrieval.cache import CachedRetriever, shared_cache
from envs.retrieval.dense import Dense, Kind
from envs.retrieval.service import serve_retriever as serve
from envs.retrieval.types import Retriever


def make_retriever(corpus: Path, *, encoder: str | None, kind: Kind, index: Path | None) -> Retriever:
    """A dense retriever if an encoder is named, else BM25. Raises `ConfigError`."""
    if encoder is None:
        if index is not None or kind != "flat":
            raise ConfigError("--index and --kind need dense retrieval; name its model with --encoder")
        return Bm25(corpus)
    if index is not None and not index.is_file():
        raise ConfigError(f"--index: there is no file {index}")
    from agents.clients.encoder import TransformerEncoder

    return Dense(corpus, TransformerEncoder(encoder), kind=kind, index=index)


async def serve_retriever(
    corpus: Path,
    *,
    encoder: str | None,
    kind: Kind,
    index: Path | None,
    host: str,
    port: int,
    top_k: int,
    say: Callable[[str], None],
) -> None:
    """Serve until cancelled. Raises `ConfigError`, `MissingDependency`."""
    retriever = CachedRetriever(
        make_retriever(corpus, encoder=encoder, kind=kind, index=index), shared_cache()
    )
    await serve(retriever, host=host, port=port, top_k=top_k, say=say)
