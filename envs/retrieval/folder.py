"""Where the index of a corpus lies: a folder beside it, built once for all processes, rebuilt when the corpus
has changed.

`wiki-18.jsonl` has `wiki-18.jsonl.bm25/`. What it was built of stands in its `made.json`; it is built under
another name and renamed when it is whole.
"""

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import ConfigError, MissingDependency
from envs.files import lock_file, write_atomically

MADE = "made.json"
SAY_FROM_S = 10.0
"""Building that took longer is told in the log."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Built:
    """An index that is whole and belongs to the corpus as it is."""

    folder: Path
    corpus_sha256: str


def built(corpus: Path, *, kind: str, facts: Mapping[str, Any], build: Callable[[Path], str]) -> Built:
    """The index `kind` of `corpus`; takes as long as `build` does where it is not there.

    `facts`: what decides it beside the corpus, JSON values. `build` writes into an empty folder and returns
    the sha256 of the corpus that it read. Raises `ConfigError` where nothing can be written beside the
    corpus.
    """
    folder = corpus.with_name(f"{corpus.name}.{kind}")
    found = _made_of(folder, _wanted(corpus, facts))
    if found is not None:
        return found
    try:
        with lock_file(corpus.with_name(f".{corpus.name}.{kind}.lock")):
            found = _made_of(folder, _wanted(corpus, facts))  # by another process, meanwhile
            return found or _build(corpus, folder, facts=facts, build=build)
    except PermissionError as error:
        raise ConfigError(
            f"the index of {corpus} is built beside it, and {error.filename} cannot be written; let it be "
            "written, or copy the corpus elsewhere"
        ) from None


def _build(corpus: Path, folder: Path, *, facts: Mapping[str, Any], build: Callable[[Path], str]) -> Built:
    wanted, started = _wanted(corpus, facts), time.perf_counter()
    making, replaced = (folder.with_name(f".{folder.name}.{word}") for word in ("making", "replaced"))
    for old in (making, replaced):
        shutil.rmtree(old, ignore_errors=True)
    making.mkdir()
    sha256 = build(making)
    if _wanted(corpus, facts) != wanted:
        raise ConfigError(f"{corpus} changed while its index was built; let it be, then try again")
    write_atomically(making / MADE, json.dumps({"of": wanted, "sha256": sha256}))
    if folder.exists():
        folder.rename(replaced)
    making.rename(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    seconds = time.perf_counter() - started
    if seconds > SAY_FROM_S:
        _log.warning("built the index %s in %.0f s; it is kept", folder, seconds)
    return Built(folder, sha256)


def _wanted(corpus: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    try:
        stat = corpus.stat()
    except FileNotFoundError:
        raise MissingDependency(
            f"there is no corpus {corpus}; correct the path, or put the file there"
        ) from None
    return {"bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns, **facts}


def _made_of(folder: Path, wanted: Mapping[str, Any]) -> Built | None:
    try:
        made = json.loads((folder / MADE).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return Built(folder, made["sha256"]) if made["of"] == wanted else None
