"""The commands `wingspan data …`: which data sets there are, and how they come here."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from envs.requirements.data_sets import DataSet, get_data_set, list_data_set_names

if TYPE_CHECKING:
    from envs.requirements.downloads import Progress as Told

COLUMNS = ("data set", "state", "size", "about")


def data_set_rows() -> list[Sequence[str]]:
    """One row a data set: its name, whether it is here, what it weighs, what it is."""
    return [_row(get_data_set(name)) for name in list_data_set_names()]


@contextmanager
def shown() -> "Iterator[Told]":
    """Bars of a download, one a file, while within; yields what `pull` tells its progress to."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns) as bars:
        tasks = {}

        def told(path: str, done: int, total: int | None) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path, total=total)
            bars.update(tasks[path], completed=done, total=total)

        yield told


def _row(data_set: DataSet) -> Sequence[str]:
    sizes = [file.bytes for file in data_set.files]
    size = ""
    if sizes:
        least = "" if all(sizes) else "at least "
        size = f"{least}{_bytes(sum(n or 0 for n in sizes))}" if any(sizes) else "unknown"
    if data_set.make is not None:
        state = "made" if (data_set.folder / data_set.required_paths[0]).exists() else "made when needed"
    else:
        state = data_set.find_remedy() or f"here: {data_set.folder}"
    return (data_set.name, state, size, data_set.about)


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
