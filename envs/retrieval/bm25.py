"""BM25 over a corpus on disk, by tantivy (`docs/decisions/0003-search.md`).

The index stores no text: tantivy ranks passages, their text is read from the corpus. English stop words are
dropped and words are stemmed, as in the reference index (Pyserini's defaults); k1 = 1.2 and b = 0.75 are
tantivy's. The index has one writer thread, and equal scores are ordered as in the corpus, so a query has the
same results on every machine.
"""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.errors import ConfigError, to_line
from envs.requirements.detection import Package, require
from envs.retrieval.corpus import Corpus, Reader
from envs.retrieval.index_folder import ensure_index
from envs.retrieval.local import LocalRetriever
from envs.retrieval.types import MAX_QUERY, Passage

if TYPE_CHECKING:
    import tantivy

FORMAT = 1
"""Version of the index layout."""
HEAP_BYTES = 256_000_000
"""Writer memory per segment; one segment holds some 500,000 passages."""
MAX_TERMS = 64
"""Terms of a query that are used; degenerate completions have thousands."""
TIES = 16
"""Extra hits beyond `top_k`, as tantivy returns equal scores in no fixed order."""
_ANALYZER, _BODY, _NUMBER = "passage", "body", "number"


class Bm25(LocalRetriever):
    """BM25 over one corpus."""

    def __init__(self, corpus: Path) -> None:
        super().__init__(partial(_Bm25Index, corpus))


class _Bm25Index:
    def __init__(self, path: Path) -> None:
        require("BM25", [Package("tantivy")])
        import tantivy

        package_version = version("tantivy")
        facts = {"format": FORMAT, "tantivy": package_version}
        index = ensure_index(path, kind="bm25", facts=facts, build=lambda folder: _build(path, folder))
        self.version = f"bm25/{FORMAT}/tantivy-{package_version}/{index.corpus_sha256}"
        self._corpus = Corpus(path, folder=index.folder)
        self._schema = _schema()
        try:
            index_reader = tantivy.Index(self._schema, path=str(index.folder))
            index_reader.reload()
            self._searcher = index_reader.searcher()
        except ValueError as error:  # tantivy raises nothing else
            raise ConfigError(
                f"{index.folder}: broken index ({to_line(error, limit=120)}); delete the folder to rebuild it"
            ) from None
        self._analyzer = _analyzer()

    def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        return [self._search_one(query, top_k=top_k) for query in queries]

    def _search_one(self, query: str, *, top_k: int) -> list[Passage]:
        import tantivy

        terms = list(dict.fromkeys(self._analyzer.analyze(query[:MAX_QUERY])))[:MAX_TERMS]
        clauses = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, _BODY, term, "freq"))
            for term in terms
        ]
        if not clauses:
            return []
        hits = self._searcher.search(
            tantivy.Query.boolean_query(clauses), min(top_k + TIES, len(self._corpus)), count=False
        ).hits
        numbers: Any = self._searcher.fast_field_values(_NUMBER, [address for _, address in hits])
        scores = [float(score) for score, _ in hits]
        best = sorted(zip(scores, numbers, strict=True), key=lambda hit: (-hit[0], hit[1]))[:top_k]
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


def _analyzer() -> "tantivy.TextAnalyzer":
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
