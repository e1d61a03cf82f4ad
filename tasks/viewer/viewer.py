"""The runs that are served, each with an index that is brought up to date when it is asked for.

Nothing runs while nobody looks: a request starts an update in a thread of its own if the last one is older
than `REFRESH_S`, waits for it a moment, and answers from what the index has by then.
"""

import threading
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from agents.huggingface.files import decoder
from envs.network.server import RequestRejected
from tasks.runs.folders import RunFolder, find_runs
from tasks.runs.parameters import find_run_tokenizer
from tasks.viewer.index import RunIndex
from tasks.viewer.reading import token_pieces

REFRESH_S = 1.0
"""The time between two checks of the files."""
FIRST_PATIENCE_S, PATIENCE_S = 1.0, 0.2
"""How long a request waits for an update, the run's first and later ones; a longer one goes on, and the page
shows how far it is."""
_decoder = lru_cache(maxsize=16)(decoder)
_pieces = lru_cache(maxsize=16)(token_pieces)


class Viewer:
    """The runs below `paths`; those that appear later are found as well."""

    def __init__(self, paths: Sequence[Path], *, cache: Path) -> None:
        self.paths = paths
        self._cache = cache
        self._lock = threading.Lock()
        self._runs: dict[str, RunFolder] = {}
        self._looked_s = float("-inf")
        self._open: dict[Path, OpenRun] = {}

    def runs(self) -> list[RunFolder]:
        """The runs that exist now, by name."""
        with self._lock:
            if time.monotonic() - self._looked_s > REFRESH_S:
                existing = [path for path in self.paths if path.exists()]
                self._runs = {run.name: run for run in find_runs(existing)}
                self._looked_s = time.monotonic()
            return list(self._runs.values())

    def open(self, name: str) -> "OpenRun":
        """The run `name` with an index that is up to date, or on its way. Raises `RequestRejected`."""
        run = {run.name: run for run in self.runs()}.get(name)
        if run is None:
            raise RequestRejected(404, f"there is no run {name!r}; it may have been moved or deleted")
        with self._lock:
            if run.identity not in self._open:
                self._open[run.identity] = OpenRun(run, cache=self._cache)
            open_run = self._open[run.identity]
        open_run.refresh()
        return open_run


class OpenRun:
    """A run, its index and its tokenizer."""

    def __init__(self, run: RunFolder, *, cache: Path) -> None:
        self.run = run
        self.index = RunIndex(run, cache=cache, decode=self.decode)
        self._lock = threading.Lock()
        self._update: threading.Thread | None = None
        self._updated_s = float("-inf")
        self._error: Exception | None = None

    def refresh(self, *, is_forced: bool = False) -> None:
        """Start an update if one is due, and wait for the one under way, `PATIENCE_S` at most.

        `is_forced`: one is due in any case. Raises the error of the last update.
        """
        with self._lock:
            is_due = is_forced or time.monotonic() - self._updated_s > REFRESH_S
            if self._update is None and is_due:
                # A daemon: Ctrl-C does not wait for it, and what it has committed is kept.
                self._update = threading.Thread(target=self._run_update, name="viewer-index", daemon=True)
                self._update.start()
            update, error = self._update, self._error
            is_first = self._updated_s == float("-inf")
        if update is not None:
            update.join(FIRST_PATIENCE_S if is_first else PATIENCE_S)
        if error is not None:
            raise error

    def _run_update(self) -> None:
        error = None
        try:
            self.index.update()
        except Exception as caught:  # shown by the requests that follow
            error = caught
        with self._lock:
            self._update, self._updated_s, self._error = None, time.monotonic(), error

    def decode(self, ids: Sequence[int]) -> str | None:
        """Tokens to text; None without a tokenizer."""
        file = find_run_tokenizer(self.run)
        return None if file is None else _decoder(file.parent)(ids)

    def split(self, ids: Sequence[int]) -> list[str] | None:
        """Tokens to their texts; None without a tokenizer."""
        file = find_run_tokenizer(self.run)
        return None if file is None else _pieces(file)(ids)
