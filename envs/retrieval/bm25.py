"""BM25 over a corpus on disk, by tantivy (`docs/decisions/0003-search.md` says why by that).

The index holds no text: which passages fit is tantivy's, what they say is read from the corpus. English stop
words are left out and words are stemmed, as in the reference's index (Pyserini's defaults); k1 = 1.2 and b =
0.75 are tantivy's. One writing thread, and passages of one score in the corpus's order: the same query has
the same answer on every machine.
"""

import asyncio
import threading
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError
from envs.requirements.detection import Package, require
from envs.retrieval.corpus import Corpus, Reader
from envs.retrieval.folder import built
from envs.retrieval.types import MAX_QUERY, Passage

if TYPE_CHECKING:
    import tantivy

FORMAT = 1
"""Of the index; counts up when it is built otherwise."""
HEAP_BYTES = 256_000_000
"""That the writer fills before it writes a segment; one of it is enough for some 500,000 passages."""
MAX_TERMS = 64
"""Of a query; a policy's babble would else search for thousands."""
TIES = 16
"""Passages beyond `top_k` that are looked at, for those of one score come in no order."""
_ANALYZER, _BODY, _NUMBER = "passage", "body", "number"


class Bm25:
    """One corpus; the index is opened, and built where it must be, with the first search."""

    def __init__(self, corpus: Path) -> None:
        self._path = corpus
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
        index = self._open()
        return [index.search(query, top_k=top_k) for query in queries]

    async def close(self) -> None:
        """See `Retriever`; the index stays open for other episodes."""

    def _open(self) -> "_Opened":
        with self._opening:
            if self._opened is None:
                require("BM25", [Package("tantivy")])
                self._opened = _Opened(self._path)
            return self._opened


class _Opened:
    def __init__(self, path: Path) -> None:
        import tantivy

        made = version("tantivy")
        facts = {"format": FORMAT, "tantivy": made}
        index = built(path, kind="bm25", facts=facts, build=lambda folder: _build(path, folder))
        self.version = f"bm25/{FORMAT}/tantivy-{made}/{index.corpus_sha256}"
        self._corpus = Corpus(path, folder=index.folder)
        self._schema = _schema()
        try:
            opened = tantivy.Index(self._schema, path=str(index.folder))
            opened.reload()
            self._searcher = opened.searcher()
        except ValueError as error:  # all that tantivy raises
            raise ConfigError(
                f"{index.folder}: no whole index ({' '.join(str(error).split())[:120]}); delete the folder, "
                "and it is built again"
            ) from None
        self._analyzer = _analyzer()

    def search(self, query: str, *, top_k: int) -> list[Passage]:
        import tantivy

        terms = list(dict.fromkeys(self._analyzer.analyze(query[:MAX_QUERY])))[:MAX_TERMS]
        wanted = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, _BODY, term, "freq"))
            for term in terms
        ]
        if not wanted:
            return []
        hits = self._searcher.search(
            tantivy.Query.boolean_query(wanted), min(top_k + TIES, len(self._corpus)), count=False
        ).hits
        numbers: Any = self._searcher.fast_field_values(_NUMBER, [address for _, address in hits])
        scores = [float(score) for score, _ in hits]
        best = sorted(zip(scores, numbers, strict=True), key=lambda found: (-found[0], found[1]))[:top_k]
        return [Passage(*self._corpus[number], score=score) for score, number in best]


def _build(corpus: Path, folder: Path) -> str:
    import tantivy

    index = tantivy.Index(_schema(), path=str(folder))
    index.register_tokenizer(_ANALYZER, _analyzer())
    writer = index.writer(heap_size=HEAP_BYTES, num_threads=1)
    reader = Reader(corpus)
    for number, line in enumerate(reader):
        document = tantivy.Document()
        document.add_text(_BODY, line.contents)
        document.add_unsigned(_NUMBER, number)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    reader.save_offsets(folder)
    return reader.sha256


def _schema() -> "tantivy.Schema":
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field(_BODY, stored=False, tokenizer_name=_ANALYZER, index_option="freq")
    builder.add_unsigned_field(_NUMBER, stored=False, indexed=False, fast=True)
    return builder.build()


def _analyzer() -> Any:
    from tantivy import Filter, TextAnalyzerBuilder, Tokenizer

    return (
        TextAnalyzerBuilder(Tokenizer.simple())
        .filter(Filter.remove_long(60))
        .filter(Filter.lowercase())
        .filter(Filter.ascii_fold())
        .filter(Filter.stopword("English"))
        .filter(Filter.stemmer("English"))
        .build()
    )
