"""Dense retrieval over a corpus on disk: vectors by an encoder, neighbours by faiss.

The encoder is given (`agents/clients/encoder.py` has one of transformers' models), for environments know
no models;
so this runs where one may be loaded, in `wingspan serve-retriever`, and environments ask it by URL. Vectors
have length 1 and are compared by their inner product. A `flat` index compares with all of them; an `ivf` one
with those of the nearest cells, and may miss some.
"""

import asyncio
import hashlib
import math
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from envs.errors import ConfigError
from envs.requirements.detection import Package, require
from envs.retrieval.corpus import Corpus, Reader
from envs.retrieval.folder import built
from envs.retrieval.types import MAX_QUERY, Passage

Vectors = npt.NDArray[np.float32]  # [N, D], each of length 1
Kind = Literal["flat", "ivf"]

FORMAT = 1
"""Of the index; counts up when it is built otherwise."""
INDEX = "index.faiss"
BATCH = 256
"""Passages that are encoded at once."""
SAMPLE_PER_CELL = 64
"""Vectors by which the centre of a cell is found."""
PROBED = 1 / 16
"""Share of the cells that a query looks into; 16 at least."""


class Encoder(Protocol):
    """Texts become vectors; what is put before them, and how long they may be, is its own affair."""

    @property
    def name(self) -> str:
        """Names the model and all that decides its vectors."""
        ...

    def queries(self, texts: Sequence[str]) -> Vectors:
        """One vector each; blocks."""
        ...

    def passages(self, texts: Sequence[str]) -> Vectors:
        """One vector each; blocks."""
        ...


class Dense:
    """One corpus; the index is opened, and built where it must be, with the first search."""

    def __init__(
        self, corpus: Path, encoder: Encoder, *, kind: Kind = "flat", index: Path | None = None
    ) -> None:
        """`index`: one that is there, of the corpus's lines in their order, in the place of building it."""
        self._path = corpus
        self._encoder = encoder
        self._kind = kind
        self._index = index
        self._opening = threading.Lock()
        self._opened: _Opened | None = None

    async def version(self) -> str:
        """See `Retriever`."""
        opened = self._opened
        if opened is None:
            opened = await asyncio.to_thread(self._open)
        return opened.version

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """See `Retriever`. Raises `ConfigError` for a corpus that is none, `MissingDependency`."""
        return await asyncio.to_thread(self.search_now, queries, top_k=top_k)

    def search_now(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        """`search`, for callers that are not asynchronous."""
        if not queries:
            return []
        opened = self._open()
        vectors = self._encoder.queries([query[:MAX_QUERY] for query in queries])
        return opened.search(vectors, top_k=top_k)

    async def close(self) -> None:
        """See `Retriever`; the index stays open."""

    def _open(self) -> "_Opened":
        with self._opening:
            if self._opened is None:
                require("dense retrieval", [Package("faiss-cpu")])
                self._opened = _Opened(self._path, self._encoder, kind=self._kind, index=self._index)
            return self._opened


class _Opened:
    def __init__(self, path: Path, encoder: Encoder, *, kind: Kind, index: Path | None) -> None:
        import faiss

        source = "given" if index is not None else f"{kind} {encoder.name}"
        facts = {"format": FORMAT, "source": source}
        name = hashlib.sha256(source.encode()).hexdigest()[:12]
        made = built(
            path,
            kind=f"dense-{name}",
            facts=facts,
            build=lambda folder: _build(path, folder, encoder, kind=None if index is not None else kind),
        )
        where = index or made.folder / INDEX
        try:
            # Mapped, not read: processes share it, and it may be larger than the memory.
            self._index: Any = faiss.read_index(str(where), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ConfigError(f"{where}: no faiss index ({' '.join(str(error).split())[:120]})") from None
        self._corpus = Corpus(path, folder=made.folder)
        if self._index.ntotal != len(self._corpus):
            raise ConfigError(
                f"{where}: expected vectors of the {len(self._corpus)} passages of {path}, got "
                f"{self._index.ntotal}"
            )
        if isinstance(self._index, faiss.IndexIVF):
            self._index.nprobe = max(16, int(self._index.nlist * PROBED))
        given = "" if index is None else f"/{index.stat().st_size}-{index.stat().st_mtime_ns}"
        self.version = f"dense/{FORMAT}/{kind}/{encoder.name}/{made.corpus_sha256}{given}"

    def search(self, vectors: Vectors, *, top_k: int) -> list[list[Passage]]:
        if vectors.shape[1] != self._index.d:
            raise ConfigError(
                f"the encoder's vectors have {vectors.shape[1]} numbers, the index's {self._index.d}; name "
                "the encoder that made the index"
            )
        scores, numbers = self._index.search(vectors, min(top_k, len(self._corpus)))
        return [
            [
                Passage(*self._corpus[number], score=score)
                for score, number in zip(own_scores, own_numbers, strict=True)
                if number >= 0  # there are fewer in the cells that were looked into
            ]
            for own_scores, own_numbers in zip(scores.tolist(), numbers.tolist(), strict=True)
        ]


def _build(corpus: Path, folder: Path, encoder: Encoder, *, kind: Kind | None) -> str:
    """Write where the lines begin and, but for `kind` None, the index."""
    reader = Reader(corpus)
    texts = (line.contents for line in reader)
    if kind is None:
        for _ in texts:
            pass
    else:
        _index(texts, folder / INDEX, encoder, kind=kind)
    reader.save_offsets(folder)
    return reader.sha256


def _index(texts: Iterator[str], path: Path, encoder: Encoder, *, kind: Kind) -> None:
    import faiss

    vectors = []
    while batch := list(islice(texts, BATCH)):
        vectors.append(encoder.passages(batch))
    everything = np.concatenate(vectors)
    count, dimensions = everything.shape
    index: Any = faiss.IndexFlatIP(dimensions)
    if kind == "ivf":
        cells = max(1, min(int(4 * math.sqrt(count)), count // SAMPLE_PER_CELL))
        index = faiss.IndexIVFFlat(index, dimensions, cells, faiss.METRIC_INNER_PRODUCT)
        index.train(everything)  # its own sample, with a seed of its own: the same every time
    index.add(everything)
    faiss.write_index(index, str(path))
