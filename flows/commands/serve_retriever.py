"""The retriever that `wingspan serve-retriever` serves."""

from pathlib import Path

from envs.errors import ConfigError
from envs.retrieval.bm25 import Bm25
from envs.retrieval.dense import Dense, Kind
from envs.retrieval.types import Retriever


def make_retriever(corpus: Path, *, encoder: str | None, kind: Kind, index: Path | None) -> Retriever:
    """A dense retriever if an encoder is named, else BM25. Raises `ConfigError` and `MissingDependency`."""
    if encoder is None:
        if index is not None or kind != "flat":
            raise ConfigError("--index and --kind need dense retrieval; name its model with --encoder")
        return Bm25(corpus)
    if index is not None and not index.is_file():
        raise ConfigError(f"--index: there is no file {index}")
    from agents.clients.encoder import TransformerEncoder

    return Dense(corpus, TransformerEncoder(encoder), kind=kind, index=index)
