"""The folder of a corpus's index: next to the corpus, built once for all processes, rebuilt when the corpus
changes.

`wiki-18.jsonl` has `wiki-18.jsonl.bm25/`. Its `made.json` records what it was built from; it is built under
another name and renamed when complete.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError, MissingDependency
from envs.files import lock_file, replaced_folder, write_atomically

RECORD = "made.json"
LOG_FROM_S = 10.0
"""Seconds of building from which the log mentions it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IndexFolder:
    """The folder of a complete index of the corpus in its current state."""

    folder: Path
    corpus_sha256: str


def ensure_index(
    corpus: Path, *, kind: str, facts: Mapping[str, object], build: Callable[[Path], str]
) -> IndexFolder:
    """Return the folder of index `kind` of `corpus`; builds it if it is missing or outdated.

    `facts`: what it depends on besides the corpus, JSON values. `build` writes into an empty folder and
    returns the sha256 of the corpus that it read. Raises `ConfigError` if the folder of the corpus is not
    writable.
    """
    folder = corpus.with_name(f"{corpus.name}.{kind}")
    if index := _read_index(folder, _describe_sources(corpus, facts)):
        return index
    try:
        with lock_file(corpus.with_name(f".{corpus.name}.{kind}.lock")):
            built_meanwhile = _read_index(folder, _describe_sources(corpus, facts))
            return built_meanwhile or _build(corpus, folder, facts=facts, build=build)
    except PermissionError as error:
        raise ConfigError(
            f"the index of {corpus} is built next to it, and {error.filename} is not writable; make it "
            "writable, or copy the corpus elsewhere"
        ) from None


def _build(
    corpus: Path, folder: Path, *, facts: Mapping[str, object], build: Callable[[Path], str]
) -> IndexFolder:
    sources, start = _describe_sources(corpus, facts), time.perf_counter()
    with replaced_folder(folder) as new:
        sha256 = build(new)
        if _describe_sources(corpus, facts) != sources:
            raise ConfigError(f"{corpus} changed while its index was built; leave it unchanged and try again")
        write_atomically(new / RECORD, json.dumps({"of": sources, "sha256": sha256}))
    seconds = time.perf_counter() - start
    if seconds > LOG_FROM_S:
        _log.warning("built the index %s in %.0f s; later runs reuse it", folder, seconds)
    return IndexFolder(folder, sha256)


def _describe_sources(corpus: Path, facts: Mapping[str, object]) -> dict[str, object]:
    try:
        stat = corpus.stat()
    except FileNotFoundError:
        raise MissingDependency(
            f"there is no corpus {corpus}; correct the path, or put the file there"
        ) from None
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, **facts}


def _read_index(folder: Path, sources: Mapping[str, object]) -> IndexFolder | None:
    try:
        record = json.loads((folder / RECORD).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return IndexFolder(folder, record["sha256"]) if record["of"] == sources else None
