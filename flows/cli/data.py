"""The commands `wingspan data …`, which list, download, generate and check data sets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from envs.requirements.data_sets import DataSet
    from envs.requirements.downloads import DownloadProgress

COLUMNS = ("data set", "state", "size", "about")

data_app = typer.Typer(
    help="List, download, make and check the data sets of environments.", no_args_is_help=True
)
DataSetName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a data set; `wingspan data list` lists them.")
]


@data_app.command("list")
def list_data() -> None:
    """List the data sets: whether they are here, their size, what they are."""
    from envs.requirements.data_sets import DATA_SETS
    from flows.display.tables import print_table

    print_table(COLUMNS, [*map(_row, DATA_SETS.values())])


@data_app.command("pull")
def pull_data(name: DataSetName) -> None:
    """Download a data set, or the missing files of it."""
    from envs.requirements.data_sets import DATA_SETS
    from envs.requirements.downloads import pull

    with _show_downloads() as progress:
        folder = pull(DATA_SETS.find(name), progress=progress)
    typer.echo(f"{name}: {folder}")


@data_app.command("make")
def make_data(name: DataSetName) -> None:
    """Generate a data set again; a run generates a missing one by itself."""
    from envs.requirements.data_sets import DATA_SETS

    typer.echo(f"{name}: {DATA_SETS.find(name).make_again()}")


@data_app.command("check")
def check_data(name: DataSetName) -> None:
    """Verify a downloaded data set; exits with status 1 if a file is missing, changed or not recorded."""
    from envs.requirements.data_sets import DATA_SETS
    from envs.requirements.downloads import faults

    messages = list(faults(DATA_SETS.find(name)))
    for message in messages:
        typer.echo(message)
    if messages:
        raise typer.Exit(1)
    typer.echo(f"{name}: all files are as they were downloaded")


@contextmanager
def _show_downloads() -> "Iterator[DownloadProgress]":
    """Show a progress bar for each file; yields the observer for `pull`."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with ProgressBars(*columns) as bars:
        tasks = {}

        def update(path: str, done: int, total: int | None) -> None:
            if path not in tasks:
                tasks[path] = bars.add_task(path, total=total)
            bars.update(tasks[path], completed=done, total=total)

        yield update


def _row(data_set: "DataSet") -> Sequence[str]:
    sizes = [file.bytes for file in data_set.files]
    size = ""
    if sizes:
        at_least = "" if all(sizes) else "at least "
        size = f"{at_least}{_format_bytes(sum(n or 0 for n in sizes))}" if any(sizes) else "unknown"
    if data_set.make is not None:
        state = "made" if (data_set.folder / data_set.required_paths[0]).exists() else "made when needed"
    else:
        state = data_set.find_remedy() or f"here: {data_set.folder}"
    return (data_set.name, state, size, data_set.about)


def _format_bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
