"""`wingspan sweep`: runs of a pipeline with several seeds and parameters, and which is best."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import IfChanged, PipelineName, Settings, parse_axes, parse_seeds, parse_settings
from flows.cli.run import leave_incomplete_record


def sweep(
    pipeline: PipelineName,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,N…", help="Seeds, e.g. 0,1,2.", show_default="the pipeline's")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B…",
            help="Values of a parameter, e.g. --vary train.lr=1e-3,1e-4; with several, all combinations.",
        ),
    ] = None,
    settings: Settings = None,
    at_once: Annotated[int, typer.Option(min=1, help="How many runs work at the same time.")] = 1,
    folder: Annotated[
        Path | None, typer.Option(help="Folder of the runs' workspaces.", show_default="runs/sweeps/PIPELINE")
    ] = None,
    if_changed: IfChanged = "refuse",
    only_plan: Annotated[
        bool, typer.Option("--plan", help="Check the sweep, and list its runs and their cost; start nothing.")
    ] = False,
) -> None:
    """Run a pipeline for each seed and combination of parameters, compare the runs, and promote the best.

    Each is a `wingspan run` in a workspace of its own; finished ones are skipped, so that the same command
    resumes. The best policy becomes the champion if a paired test, corrected for the number of runs, shows
    that it is better.
    """
    import tempfile

    temporary = tempfile.gettempdir()
    from rich.console import Console

    from flows.commands.compare import show
    from flows.commands.costs import COST_COLUMNS
    from flows.commands.sweep_costs import list_sweep_costs
    from flows.display.tables import print_table
    from flows.endings.guardian import guard
    from flows.endings.stopping import DIED, Stoppable, resume_hint
    from flows.lock import lock
    from flows.orchestrator.runs import TemporaryServer, server_url
    from flows.sweep.plan import plan_sweep

    guard(if_killed=f"{DIED}; {resume_hint()}")
    with Stoppable(f"stopped; {resume_hint()}"):
        numbers = None if seeds is None else parse_seeds(seeds)
        axes, overrides = parse_axes(vary or []), parse_settings(settings or [])
        plan = plan_sweep(
            pipeline,
            seeds=numbers,
            axes=axes,
            settings=overrides,
            at_once=at_once,
            folder=folder,
            if_changed=if_changed,
        )
        if only_plan:
            rows = [
                (run.name, "finished" if run.is_finished else "would run", str(run.workspace))
                for run in plan.runs
            ]
            print_table(("run", "state", "workspace"), rows)
            if plan.unfinished:
                typer.echo()
                print_table(COST_COLUMNS, list_sweep_costs(plan))
            return
        with lock(plan.folder, option="--folder"):
            if server_url() is None:
                TemporaryServer().use()
            from flows.sweep.flow import sweep_with_prefect

            parameters = {"seeds": numbers, "vary": axes, "overrides": overrides, "if_changed": if_changed}
            result, prefect_failure = sweep_with_prefect(plan, parameters=parameters, temporary=temporary)
    show(result.comparison, console=Console())
    typer.echo(f"best: {result.best.name} with success {result.success:.3f}: {result.best.workspace}")
    if result.promotion is None:
        typer.echo(f"champion of {pipeline}: as before; the best run is it already, or no better by the test")
    else:
        test = result.promotion.test
        typer.echo(
            f"champion of {pipeline}: version {result.promotion.version}, against {test['against']}: "
            f"{test['difference']} ({test['interval']}), p = {test['p_value']} × {test['candidates']} runs"
        )
    typer.echo(f"comparison: {result.page}")
    if prefect_failure is not None:
        leave_incomplete_record(prefect_failure)
