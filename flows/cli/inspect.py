"""The commands that show what there is: pipelines, runs, environments, and what they need."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import PipelineName, Settings, parse_settings


def pipelines() -> None:
    """List the pipelines of pipelines.yaml, and the test success of those that were run."""
    from flows.commands.inventory import PIPELINE_COLUMNS, pipeline_rows
    from flows.display.tables import print_table

    print_table(PIPELINE_COLUMNS, pipeline_rows())


def runs() -> None:
    """List the recorded runs with their state, steps and success, and mark those that were killed."""
    from envs.errors import to_line
    from flows.commands.runs import COLUMNS, run_rows
    from flows.display.tables import print_table
    from tasks.tracking.connection import tracking_uri

    rows = list(run_rows())
    if rows:
        print_table(COLUMNS, rows)
        return
    place = to_line(tracking_uri())
    typer.echo(
        f"no run is recorded in {place}; `wingspan run NAME` records one, and MLFLOW_TRACKING_URI names "
        "another place to look in",
        err=True,
    )


def envs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show the details of this environment.", show_default="list all"),
    ] = None,
) -> None:
    """List the environments and whether they can be played here, or show one with what it lacks."""
    from rich.console import Console

    from flows.commands.inventory import COLUMNS, environment_facts, environment_rows
    from flows.display.tables import print_table

    if name is None:
        console = Console()
        rows = environment_rows(width=console.width if console.is_terminal else None)
        print_table(COLUMNS, rows, console=console)
    else:
        print_table(("", ""), environment_facts(name))


def doctor(
    pipeline: PipelineName = "textcraft-cpu",
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show what other pipelines, tools and environments may need.")
    ] = False,
    settings: Settings = None,
) -> None:
    """Check what a pipeline needs and, for each missing requirement, show the command that installs it.

    Exits with status 1 if the pipeline cannot run here.
    """
    from flows.commands.doctor import COLUMNS, State, examine
    from flows.display.tables import print_table

    findings = examine(pipeline, overrides=parse_settings(settings or []))
    print_table(COLUMNS, [finding.row for finding in findings if show_all or finding.is_needed])
    if any(finding.state is State.MISSING for finding in findings):
        raise typer.Exit(1)


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER…",
            help="Folders of finished runs, or of evaluations; a folder of such folders stands for all.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the comparison to.")] = Path("runs/comparison"),
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Run, setting or evaluation to compare with.", show_default="the first"
        ),
    ] = None,
) -> None:
    """Compare finished runs, or evaluations of the same items, with one of them.

    Shows scores with intervals and paired tests, success by metadata, the items that only one side solves,
    how episodes ended, costs, and the parameters that differ; the page, one self-contained file, also has the
    curves. Runs that differ only by their seed are one setting.
    """
    from rich.console import Console

    from flows.commands.compare import show
    from tasks.reporting.comparison.compare import compare as compare_all

    comparison, page = compare_all(folders, out, reference=reference)
    show(comparison, console=Console())
    typer.echo(f"comparison: {page}")
