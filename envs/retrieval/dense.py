"""Dense retrieval over a corpus on disk: vectors by an encoder, neighbours by faiss.

The caller provides the encoder (`agents/clients/encoder.py` has one for transformers' models), as
environments know no models: dense retrieval runs in `wingspan serve-retriever`, and environments query it by
URL. Vectors have length 1 and are compared by their inner product. A `flat` index compares with all of them;
an `ivf` index with those of the nearest cells, and may miss some.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from envs.errors import ConfigError, to_line
from envs.requirements.detection import Package, require
from envs.retrieval.corpus import Corpus, Reader
from envs.retrieval.index_folder import ensure_index
from envs.retrieval.local import LocalRetriever
from envs.retrieval.types import MAX_QUERY, Passage

Vectors = npt.NDArray[np.float32]  # [N, D], each of length 1
Kind = Literal["flat", "ivf"]

FORMAT = 1
"""Version of the index layout."""
INDEX = "index.faiss"
BATCH = 256
"""Passages per call of the encoder."""
SAMPLE_PER_CELL = 64
"""Vectors per cell that train its centroid."""
PROBE_SHARE = 1 / 16
"""Share of the cells that a query searches; at least 16 cells."""


class Encoder(Protocol):
    """Texts to vectors; prefixes and truncation are up to the encoder."""

    @property
    def name(self) -> str:
        """Identifies the model and everything that decides its vectors."""

    def queries(self, texts: Sequence[str]) -> Vectors:
        """One vector each; blocks."""

    def passages(self, texts: Sequence[str]) -> Vectors:
        """One vector each; blocks."""


class Dense(LocalRetriever):
    """Dense retrieval over one corpus."""

    def __init__(
        self, corpus: Path, encoder: Encoder, *, kind: Kind = "flat", index: Path | None = None
    ) -> None:
        """`index`: an existing faiss index of the corpus's lines in their order; None builds one."""
        super().__init__(partial(_DenseIndex, corpus, encoder, kind=kind, index=index))


class _DenseIndex:
    def __init__(self, path: Path, encoder: Encoder, *, kind: Kind, index: Path | None) -> None:
        require("dense retrieval", [Package("faiss-cpu")])
        import faiss

        self._encoder = encoder
        source = "given" if index is not None else f"{kind} {encoder.name}"
        facts = {"format": FORMAT, "source": source}
        name = hashlib.sha256(source.encode()).hexdigest()[:12]
        folder = ensure_index(
            path,
            kind=f"dense-{name}",
            facts=facts,
            build=lambda target: _build(path, target, encoder, kind=None if index is not None else kind),
        )
        file = index or folder.folder / INDEX
        try:
            # Memory-mapped: processes share it, and it may be larger than memory.
            self._index: faiss.Index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise ConfigError(f"{file}: no faiss index ({to_line(error, limit=120)})") from None
        self._corpus = Corpus(path, folder=folder.folder)
        if self._index.ntotal != len(self._corpus):
            raise ConfigError(
                f"{file}: expected vectors of the {len(self._corpus)} passages of {path}, got "
                f"{self._index.ntotal}"
            )
        if isinstance(self._index, faiss.IndexIVF):
            self._index.nprobe = max(16, int(self._index.nlist * PROBE_SHARE))
        suffix = "" if index is None else f"/{index.stat().st_size}-{index.stat().st_mtime_ns}"
        self.version = f"dense/{FORMAT}/{kind}/{encoder.name}/{folder.corpus_sha256}{suffix}"

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        vectors = self._encoder.queries([query[:MAX_QUERY] for query in queries])
        if vectors.shape[1] != self._index.d:
            raise ConfigError(
                f"the encoder's vectors have {vectors.shape[1]} dimensions, the index has {self._index.d}; "
                "name the encoder that the index was built with"
            )
        scores, numbers = self._index.search(vectors, min(top_k, len(self._corpus)))
        return [
            [
                Passage(*self._corpus[number], score=score)
                for score, number in zip(query_scores, query_numbers, strict=True)
                if number >= 0  # the searched cells hold fewer than `top_k`
            ]
            for query_scores, query_numbers in zip(scores.tolist(), numbers.tolist(), strict=True)
        ]


def _build(corpus: Path, folder: Path, encoder: Encoder, *, kind: Kind | None) -> str:
    """Write the line offsets and, unless `kind` is None, the index."""
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
    all_vectors = np.concatenate(vectors)
    count, dimensions = all_vectors.shape
    index: faiss.Index = faiss.IndexFlatIP(dimensions)
    if kind == "ivf":
        cells = max(1, min(int(4 * math.sqrt(count)), count // SAMPLE_PER_CELL))
        index = faiss.IndexIVFFlat(index, dimensions, cells, faiss.METRIC_INNER_PRODUCT)
        index.train(all_vectors)  # faiss samples with a fixed seed: deterministic
    index.add(all_vectors)
    faiss.write_index(index, str(path))
