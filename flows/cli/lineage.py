"""The commands about where results come from: `wingspan lineage` and `wingspan reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from envs.errors import ConfigError

REFERENCES = "a run's folder, the id or name of an MLflow run, models:/NAME/VERSION or models:/NAME@ALIAS"


def lineage(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help=f"A folder of a policy or checkpoint, or {REFERENCES}.")
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole record as one JSON object.")
    ] = False,
) -> None:
    """Show what a model was made from: code, data, environments, parameters, and what each stage read."""
    import json
    from tempfile import TemporaryDirectory

    from flows.commands.lineage import STAGE_COLUMNS, describe, fact_rows, stage_rows
    from flows.display.tables import print_table
    from tasks.tracking.references import find_run, read_registration

    with TemporaryDirectory() as downloads:
        run = find_run(model, downloads=Path(downloads))
        registration, has_answer = None, True
        try:
            registration = read_registration(run)
        except ConfigError as error:  # the lineage itself is in the run's folder
            has_answer = False
            typer.echo(f"warning: MLflow's part of the lineage is not shown: {error}", err=True)
        if as_json:
            typer.echo(json.dumps(describe(run, registration, has_answer=has_answer), indent=2))
            return
        print_table(("", ""), list(fact_rows(run, registration)))
        typer.echo()
        print_table(STAGE_COLUMNS, list(stage_rows(run)), has_header=True)


def reproduce(
    run: Annotated[str, typer.Argument(metavar="RUN", help=f"{REFERENCES[0].upper()}{REFERENCES[1:]}.")],
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the code, the data and the run; it is kept, and the same command resumes in it.",
            show_default="a temporary one",
        ),
    ] = None,
    with_patch: Annotated[
        bool,
        typer.Option("--with-patch", help="Apply the changes that were not committed when the run was made."),
    ] = False,
) -> None:
    """Run a pipeline again on the code, data and parameters of an earlier run, and compare all numbers.

    Exits with status 0 if parameters, data and every metric are equal, 1 if not, 2 if the run cannot be
    reproduced here. The earlier run and its records are only read.
    """
    import tempfile

    temporary = tempfile.gettempdir()
    from envs.files import read_path
    from flows.endings.guardian import guard
    from flows.endings.stopping import Stoppable, resume_hint

    guard()
    line = "stopped; nothing is left of the reproduction"
    if folder is not None:
        folder = read_path(folder)
        line = f"stopped; {resume_hint()}"
    with Stoppable(line):
        is_equal = _reproduce(run, folder=folder, with_patch=with_patch, temporary=temporary)
    raise typer.Exit(0 if is_equal else 1)


def _reproduce(reference: str, *, folder: Path | None, with_patch: bool, temporary: str) -> bool:
    import tempfile
    from contextlib import nullcontext

    from flows.commands.reproduce import prepare_request, reproduce, temporary_folder
    from flows.display.tables import print_table
    from tasks.reporting.reproduction import COLUMNS

    own_folder = Path(tempfile.gettempdir())  # the guardian removes it
    downloads = own_folder / "downloads"
    downloads.mkdir()
    request = prepare_request(reference, with_patch=with_patch, downloads=downloads)
    for warning in request.warnings:
        typer.echo(f"warning: {warning}", err=True)
    place = temporary_folder(own_folder) if folder is None else nullcontext(folder)
    with place as worktree:
        typer.echo(f"commit {request.commit[:10]} in {worktree}: wingspan {' '.join(request.arguments)}")
        reproduction = reproduce(request, folder=worktree, temporary=temporary)
    print_table(COLUMNS, [line.cells for line in reproduction.lines], has_header=True)
    if reproduction.is_equal:
        typer.echo("equal: parameters, data, and every metric of training and evaluation")
    else:
        remark = f"both can be compared in {folder}" if folder else "--folder keeps the reproduction"
        typer.echo(f"not equal; the lines above say where they differ; {remark}")
    return reproduction.is_equal
