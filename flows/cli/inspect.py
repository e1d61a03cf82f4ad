"""The commands that show what there is: pipelines, runs, environments, and what they need."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import PipelineName


def pipelines() -> None:
    """List the pipelines of pipelines.yaml, and the test success of those that were run."""
    from flows.cli.tables import print_table
    from flows.commands.inventory import PIPELINE_COLUMNS, pipeline_rows

    print_table(PIPELINE_COLUMNS, pipeline_rows())


def runs() -> None:
    """List the recorded runs with their state, steps and success, and mark those that were killed."""
    from flows.cli.tables import print_table
    from flows.commands.runs import COLUMNS, run_rows

    print_table(COLUMNS, list(run_rows()))


def envs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="Show the details of this environment.", show_default="list all"),
    ] = None,
) -> None:
    """List the environments and whether they can be played here, or show one with what it lacks."""
    from flows.cli.tables import print_table
    from flows.commands.inventory import COLUMNS, environment_facts, environment_rows

    if name is None:
        print_table(COLUMNS, environment_rows())
    else:
        print_table(("", ""), environment_facts(name))


def doctor(
    pipeline: PipelineName = "textcraft-cpu",
    show_all: Annotated[
        bool, typer.Option("--all", help="Also show what other pipelines, tools and environments may need.")
    ] = False,
) -> None:
    """Check what a pipeline needs and, for each missing requirement, show the command that installs it.

    Exits with status 1 if the pipeline cannot run here.
    """
    from flows.cli.tables import print_table
    from flows.commands.doctor import COLUMNS, State, examine

    findings = examine(pipeline)
    print_table(COLUMNS, [finding.row for finding in findings if show_all or finding.is_needed])
    if any(finding.state is State.MISSING for finding in findings):
        raise typer.Exit(1)


def compare(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER…", help="Folders of finished runs, or of two evaluations."),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write the comparison to.")] = Path("runs/comparison"),
) -> None:
    """Compare finished runs, or test two evaluations of the same items against each other.

    Of runs: one table of results, one of the parameters that differ, and a plot; runs in folders named
    `<name>-seed<k>` are seeds of one setting, and their medians are shown as well. Of two evaluations
    (`wingspan evaluate`): differences item by item, with intervals and p-values of a paired permutation test.
    """
    from flows.cli.tables import print_table
    from tasks.evaluation.comparison import are_records
    from tasks.reporting.compare import compare as compare_runs

    if are_records(folders):
        _compare_evaluations(folders, out)
        return
    comparison = compare_runs(folders, out)
    print_table(comparison.header, comparison.cells, has_header=True)
    for note in comparison.notes:
        typer.echo(note)
    if comparison.differing:
        print_table(("parameter", *comparison.names), comparison.differing, has_header=True)
    typer.echo(f"comparison: {comparison.page}")


def _compare_evaluations(folders: list[Path], out: Path) -> None:
    from flows.cli.tables import print_table
    from tasks.evaluation.comparison import compare_evaluations, sentences, tests_table

    comparison = compare_evaluations(folders, out)
    print_table(*tests_table(comparison), has_header=True)
    for sentence in sentences(comparison):
        typer.echo(sentence)
    if comparison.differing:
        print_table(("setting", *comparison.names), comparison.differing, has_header=True)
    typer.echo(f"comparison: {comparison.file}")
