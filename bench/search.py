"""Measures searches: BM25 on a synthetic corpus, and results from the cache.

    python -m bench.search --passages 100000 --compare

Passages have 100 words, drawn from 200,000 by Zipf's law; queries are 3 to 11 words of a passage. Prints one
JSON object; times are wall-clock milliseconds of consecutive searches, `bar` the target:

- `build_s`, `index_mb`, `open_ms`: of the index; `open_ms` is the time to open an existing one
- `bm25_ms`: median, mean, 95th percentile of a search, retriever and thread included; `bm25_cpu_ms`: CPU time
- `cached_ms`: a result from Redis on a Unix socket; `cached_cpu_ms`: CPU time of this process only
- `*_of_bar`: median divided by its bar; 1 or less meets the target
- `compared` (`--compare`, where it is installed): the same for bm25s, memory-mapped, with numpy
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from envs.retrieval.bm25 import Bm25
from envs.retrieval.cache import CachedRetriever, SearchCache
from envs.retrieval.redis_server import EmbeddedServer

BM25_BAR_MS, CACHED_BAR_MS = 5.0, 0.5
WORDS, VOCABULARY = 100, 200_000
QUERIES = 400


def make_texts(count: int, *, seed: int = 0) -> list[str]:
    """Passages; word k of the vocabulary is drawn with a weight of 1 / k."""
    rng = np.random.default_rng(seed)
    sums = np.cumsum(1 / np.arange(1, VOCABULARY + 1))
    words = np.searchsorted(sums, rng.random((count, WORDS)) * sums[-1])
    names = np.array([f"w{number:x}z" for number in range(VOCABULARY)])
    return [" ".join(row) for row in names[words]]


def make_queries(texts: Sequence[str], *, seed: int = 1) -> list[str]:
    """Words of passages, none of them twice."""
    rng = random.Random(seed)
    return [
        " ".join(dict.fromkeys(rng.choices(rng.choice(texts).split(), k=rng.randint(3, 11))))
        for _ in range(QUERIES)
    ]


async def time_searches(
    queries: Sequence[str], search: Callable[[str], Awaitable[object]]
) -> tuple[Any, float]:
    """(median, mean and 95th percentile of wall time, mean of CPU time), in ms."""
    for query in queries[:20]:
        await search(query)
    wall, cpu = [], time.process_time()
    for query in queries:
        start = time.perf_counter()
        await search(query)
        wall.append(1e3 * (time.perf_counter() - start))
    spread = {
        "median": round(statistics.median(wall), 3),
        "mean": round(statistics.fmean(wall), 3),
        "p95": round(sorted(wall)[int(0.95 * len(wall))], 3),
    }
    return spread, round(1e3 * (time.process_time() - cpu) / len(queries), 3)


async def measure(passages: int, folder: Path) -> dict[str, Any]:
    """All figures of this project's search."""
    texts = make_texts(passages)
    queries = make_queries(texts)
    corpus = folder / "corpus.jsonl"
    with corpus.open("w") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "contents": f'"Passage {number}"\n{text}'}) + "\n")
    start = time.perf_counter()
    await Bm25(corpus).version()
    build_s = time.perf_counter() - start
    retriever = Bm25(corpus)
    start = time.perf_counter()
    await retriever.version()
    open_ms = 1e3 * (time.perf_counter() - start)
    bm25, bm25_cpu = await time_searches(queries, lambda query: retriever.search([query], top_k=3))
    server = EmbeddedServer(folder / "cache")
    try:
        cached_retriever = CachedRetriever(retriever, SearchCache(server))
        for query in queries:
            await cached_retriever.search([query], top_k=3)
        hit, hit_cpu = await time_searches(queries, lambda query: cached_retriever.search([query], top_k=3))
        await cached_retriever.close()
    finally:
        server.close()
    index = sum(file.stat().st_size for file in (folder / "corpus.jsonl.bm25").iterdir())
    return {
        "passages": passages,
        "build_s": round(build_s, 1),
        "index_mb": round(index / 1e6, 1),
        "open_ms": round(open_ms, 1),
        "bm25_ms": bm25,
        "bm25_cpu_ms": bm25_cpu,
        "bm25_of_bar": round(bm25["median"] / BM25_BAR_MS, 3),
        "cached_ms": hit,
        "cached_cpu_ms": hit_cpu,
        "cached_of_bar": round(hit["median"] / CACHED_BAR_MS, 3),
        "memory_mb": round(psutil.Process().memory_info().rss / 1e6),
    }


async def measure_bm25s(passages: int, folder: Path) -> dict[str, Any]:
    """The library that was not chosen (docs/decisions/0003-search.md)."""
    import bm25s  # a dependency of one environment alone: [webshop]

    texts = make_texts(passages)
    queries = make_queries(texts)
    start = time.perf_counter()
    index = bm25s.BM25(method="lucene")
    index.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    index.save(folder / "bm25s")
    build_s = time.perf_counter() - start
    start = time.perf_counter()
    index = bm25s.BM25.load(folder / "bm25s", mmap=True)
    open_ms = 1e3 * (time.perf_counter() - start)

    async def search(query: str) -> object:
        tokens = bm25s.tokenize([query], stopwords="en", show_progress=False)
        return index.retrieve(tokens, k=3, show_progress=False)

    report, cpu = await time_searches(queries, search)
    size = sum(file.stat().st_size for file in (folder / "bm25s").iterdir())
    return {
        "build_s": round(build_s, 1),
        "index_mb": round(size / 1e6, 1),
        "open_ms": round(open_ms, 1),
        "bm25_ms": report,
        "bm25_cpu_ms": cpu,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--compare", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(measure(arguments.passages, Path(folder)))
        if arguments.compare:
            report["compared"] = asyncio.run(measure_bm25s(arguments.passages, Path(folder)))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
