"""The command line, `wingspan`. Parses, calls, and turns errors that a user can fix into one line.

Nothing heavy is imported before a command needs it: `wingspan --help` answers within a second.
"""

import errno
import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Annotated

import typer

from envs.errors import ConfigError, WingspanError, describe
from envs.redaction import clean_logs, redact
from envs.requirements.detection import APPLICATION
from flows.cli.overrides import parse_settings
from flows.cli.serve import serve_env, serve_policy, serve_retriever, serve_sites

BASE_MODEL = Path("models/textcraft-base")
"""As in dvc.yaml, stage `base`."""

app = typer.Typer(
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

data_app = typer.Typer(
    help="List, download, make and check the data sets of environments.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

DataSetName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a data set; `wingspan data list` lists them.")
]
PipelineName = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="Name of a pipeline; `wingspan pipelines` lists them.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"wingspan {version(APPLICATION)}")
        raise typer.Exit


@app.callback()
def wingspan(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Train LLM agents by multi-turn reinforcement learning, as a pipeline."""


@app.command()
def run(
    pipeline: PipelineName,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a parameter, e.g. --set train.lr=1e-3; can be repeated.",
        ),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Folder that the run writes to.", show_default="runs/PIPELINE")
    ] = None,
    serve_policy: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the policy over OpenAI's protocol while it is trained; if WINGSPAN_TOKEN is set, "
            "clients must send it.",
            show_default="not served",
        ),
    ] = None,
) -> None:
    """Run a pipeline from its data to its report, or resume it where it was stopped."""
    from flows.cli.next_commands import next_commands
    from flows.guardian import guard
    from flows.plan import checked_address, locked, make_plan
    from flows.prefect_runs import check_server, configure_prefect
    from flows.stopping import Stoppable, leave
    from tasks.tracking.tracker import check_tracking

    guard()
    with Stoppable(_how_to_go_on()):
        overrides = parse_settings(settings or [])
        if serve_policy is not None:
            url = checked_address(serve_policy).url
            typer.echo(f"while it is trained, the policy answers at {url}; its model is called 'policy'")
        check_server()
        check_tracking()
        place = make_plan(pipeline, overrides=overrides, workspace=workspace).workspace
        with locked(place):
            pass  # seconds before the flow takes it: tell at once if another run has it
        configure_prefect()
        from flows.train_agent import run_with_prefect

        folder = None if workspace is None else str(workspace)
        evaluation, prefect_failure = run_with_prefect(pipeline, overrides, folder, serve_policy)
    before, after = (evaluation[policy]["sampled"].get("success") for policy in ("before", "after"))
    typer.echo(f"success on the test split: {_share(before)} before, {_share(after)} after")
    typer.echo(f"report: {place / 'report' / 'index.html'}")
    typer.echo(next_commands(pipeline, workspace=place, settings=settings or []))
    if prefect_failure is not None:
        typer.echo(
            f"Prefect's record of this run is incomplete ({describe(prefect_failure)[:200]}); "
            "everything else is finished",
            err=True,
        )
        leave(None, status=0)  # Prefect would go on sending events to the server that is gone


@app.command("plan")
def plan_run(
    pipeline: PipelineName,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a parameter, as for `wingspan run`."),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/PIPELINE")
    ] = None,
) -> None:
    """Check a run without starting it, and list which of its stages would run, and why.

    Makes every check that `wingspan run` makes before it starts. Status 2 if the run would be refused.
    """
    from rich.console import Console

    from flows.cli.tables import print_table
    from flows.commands.preview import COLUMNS, preview

    plan, forecasts = preview(pipeline, overrides=parse_settings(settings or []), workspace=workspace)
    typer.echo(f"{plan.name} in {plan.workspace}: nothing stands in its way")
    print_table(COLUMNS, [forecast.row for forecast in forecasts], console=Console())


@app.command()
def stage(
    name: Annotated[str, typer.Argument(metavar="STAGE", help="Name of a stage in dvc.yaml.")],
    pipeline: PipelineName,
) -> None:
    """Run one stage of a pipeline in its workspace; `dvc repro` calls this."""
    from flows.guardian import guard
    from flows.plan import locked, make_plan
    from flows.stages import STAGES, call_stage, make_display, running
    from flows.stopping import Stoppable
    from flows.versioning import write_no_warmup
    from tasks.config.pipelines import did_you_mean

    guard()
    if name not in STAGES:
        raise ConfigError(
            f"unknown stage {name!r}{did_you_mean(name, STAGES)}; there are: {', '.join(STAGES)}"
        )
    plan = make_plan(pipeline, overrides={}, workspace=None)
    if name not in plan.stages:  # the warm-up, where there is none
        write_no_warmup(plan.workspace, model=plan.pipeline.model)
        return
    with (
        Stoppable(_how_to_go_on()),
        locked(plan.workspace),
        make_display(pipeline, pipeline=plan.pipeline, stages=[name], workspace=plan.workspace) as display,
        running(plan.stages[name], display=display),
    ):
        call_stage(name, pipeline=plan.pipeline, workspace=plan.workspace, display=display)


@app.command()
def base() -> None:
    """Make the base model of the CPU pipelines anew; this takes an hour or more."""
    from flows.guardian import guard
    from flows.stopping import Stoppable
    from tasks.base_model.train import base as make_base
    from tasks.config.pipelines import load_base_settings

    guard()
    with Stoppable("stopped; the next `wingspan base` begins anew"):
        make_base(load_base_settings(), BASE_MODEL)


@app.command()
def pipelines() -> None:
    """List the pipelines of pipelines.yaml, and the test success of those that were run."""
    from rich.console import Console

    from flows.cli.tables import print_table
    from flows.commands.inventory import PIPELINE_COLUMNS, pipeline_rows

    print_table(PIPELINE_COLUMNS, pipeline_rows(), console=Console())


@app.command()
def runs() -> None:
    """List the recorded runs with their state, steps and success, and mark those that were killed."""
    from rich.console import Console

    from flows.cli.tables import print_table
    from flows.commands.runs import COLUMNS, run_rows

    print_table(COLUMNS, list(run_rows()), console=Console())


@app.command()
def deploy(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(metavar="PIPELINE…", help="Names of pipelines.", show_default="all pipelines"),
    ] = None,
    pool: Annotated[str, typer.Option(help="Name of the Prefect work pool that runs them.")] = "local",
) -> None:
    """Make a Prefect deployment of each pipeline, so that workers can run it (PREFECT_API_URL)."""
    from flows.prefect_runs import check_server, configure_prefect
    from tasks.config.pipelines import load_pipeline, pipeline_names

    names = pipelines or pipeline_names()
    for name in names:
        load_pipeline(name)  # a wrong one is refused before any server is asked
    check_server()
    configure_prefect(needs_lasting_server=True)
    from flows.commands.deploy import deploy as deploy_pipelines

    for name in deploy_pipelines(names, pool=pool):
        typer.echo(name)


@app.command()
def envs(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show all about this environment.", show_default="list all in brief"
        ),
    ] = None,
) -> None:
    """List the environments and whether they can be played here, or show one with what it lacks."""
    from rich.console import Console

    from flows.cli.tables import print_table
    from flows.commands.inventory import COLUMNS, environment_facts, environment_rows

    if name is None:
        print_table(COLUMNS, environment_rows(), console=Console())
    else:
        print_table(("", ""), environment_facts(name), console=Console())


@app.command()
def doctor(
    pipeline: PipelineName = "textcraft-cpu",
    everything: Annotated[
        bool, typer.Option("--all", help="Show also what other pipelines, tools and environments may need.")
    ] = False,
) -> None:
    """Show what a pipeline needs and, for each thing that is missing, the command that installs it.

    Ends with status 1 if the pipeline cannot run here.
    """
    from rich.console import Console

    from flows.cli.tables import print_table
    from flows.commands.doctor import COLUMNS, State, examine

    findings = examine(pipeline)
    shown = [finding for finding in findings if everything or finding.is_needed]
    print_table(COLUMNS, [finding.row for finding in shown], console=Console())
    if any(finding.state is State.MISSING for finding in findings):
        raise typer.Exit(1)


@app.command()
def play(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of an environment; `wingspan envs` lists them.")
    ],
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Number or id of one of its items.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed to use instead of the item's.", show_default=False)
    ] = None,
) -> None:
    """Play one item yourself, in the terminal or with lines from a pipe."""
    from rich.console import Console

    from flows.commands.play import play as play_item
    from flows.guardian import guard

    guard()
    play_item(name, item, seed=seed, console=Console())


@app.command()
def rollout(
    pipeline: PipelineName,
    split: Annotated[str, typer.Option(help="Split that the items are taken from: test or train.")] = "test",
    items: Annotated[
        int | None, typer.Option(min=1, help="How many items of the split to play.", show_default="all")
    ] = None,
    num_samples: Annotated[int, typer.Option(min=1, help="How many episodes to play of each item.")] = 1,
    max_turns: Annotated[
        int | None,
        typer.Option(min=1, help="Turns that an episode may have.", show_default="evaluate.max_turns"),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.", show_default="evaluate.temperature"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file to write the trajectories to.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="OpenAI-compatible endpoint whose model plays, e.g. http://127.0.0.1:8000/v1.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the endpoint's model.")] = None,
    api_key_from: Annotated[
        str | None, typer.Option(metavar="ENVVAR", help="Environment variable that holds the endpoint's key.")
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a local model that plays, on the CPU.", show_default="the pipeline's model"
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override a parameter, e.g. --set agent.format=json; can be repeated.",
        ),
    ] = None,
) -> None:
    """Let a model play a pipeline's items, without training, and show the task and every turn.

    Ends with status 1 if no episode could be played to its end, 130 after Ctrl-C.
    """
    from rich.console import Console

    from flows.commands.rollout import Rollout, model_of
    from flows.commands.rollout import rollout as play_items
    from flows.guardian import guard
    from flows.stopping import Stoppable
    from tasks.config.pipelines import load_pipeline

    guard()
    chosen = load_pipeline(pipeline, overrides=parse_settings(settings or []))
    asked = Rollout(
        split=split,
        items=items,
        num_samples=num_samples,
        max_turns=max_turns,
        temperature=temperature,
        out=out,
    )
    runner = model_of(chosen, endpoint=endpoint, model=model, api_key_from=api_key_from, policy=policy)
    with Stoppable(None):  # the summary says it
        any_counts = play_items(chosen, runner, asked, console=Console())
    if not any_counts:
        raise typer.Exit(1)


@app.command()
def compare(
    workspaces: Annotated[list[Path], typer.Argument(metavar="WORKSPACE…", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder to write the comparison to.")] = Path("runs/comparison"),
) -> None:
    """Compare finished runs: results, and the parameters that differ, in one table each, and a plot.

    Runs in folders named `<name>-seed<k>` are seeds of one setting, and their medians are shown, too.
    """
    from rich.console import Console

    from flows.cli.tables import print_table
    from tasks.reporting.compare import compare as compare_runs

    found = compare_runs(workspaces, out)
    console = Console()
    print_table(found.header, found.cells, console=console, heads=True)
    for note in found.notes:
        typer.echo(note)
    if found.differing:
        print_table(("parameter", *found.names), found.differing, console=console, heads=True)
    typer.echo(f"comparison: {found.page}")


for command in (serve_env, serve_policy, serve_retriever, serve_sites):
    app.command()(command)


@data_app.command("list")
def list_data() -> None:
    """List the data sets: whether they are here, their size, what they are."""
    from rich.console import Console

    from flows.cli.data import COLUMNS, data_set_rows
    from flows.cli.tables import print_table

    print_table(COLUMNS, data_set_rows(), console=Console())


@data_app.command("pull")
def pull_data(name: DataSetName) -> None:
    """Download a data set, or what is missing of it."""
    from envs.requirements.data_sets import get_data_set
    from envs.requirements.downloads import pull
    from flows.cli.data import shown

    with shown() as progress:
        folder = pull(get_data_set(name), progress=progress)
    typer.echo(f"{name}: {folder}")


@data_app.command("make")
def make_data(name: DataSetName) -> None:
    """Make a generated data set anew; a run makes a missing one by itself."""
    from envs.requirements.data_sets import get_data_set

    typer.echo(f"{name}: {get_data_set(name).make_again()}")


@data_app.command("check")
def check_data(name: DataSetName) -> None:
    """Check that a downloaded data set is unchanged; ends with status 1 if it is not."""
    from envs.requirements.data_sets import get_data_set
    from envs.requirements.downloads import faults

    found = list(faults(get_data_set(name)))
    for fault in found:
        typer.echo(fault)
    if found:
        raise typer.Exit(1)
    typer.echo(f"{name}: all as it was downloaded")


def one_line(error: BaseException) -> str | None:
    """What to tell the user about `error`, or None if it is no error of theirs."""
    if isinstance(error, WingspanError):
        return " ".join(str(error).split())
    cause: BaseException | None = error
    while cause is not None:
        full = getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        # Processes of Ray, SQLite and torch tell of it by text alone.
        if full or any(sign in str(cause) for sign in ("No space left on device", "disk is full")):
            at = getattr(cause, "filename", None)
            where = f" at {at}" if at else ""
            return f"the disk is full{where}; free some space and run the same command: finished work is kept"
        cause = cause.__cause__ or cause.__context__
    return None


def main() -> None:
    """Entry point of `wingspan`."""
    # Read when huggingface_hub is imported, here and in every process that a run starts: transformers' bars
    # (`Loading weights`, `Writing model shards`) would be drawn over the display.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    clean_logs()
    try:
        sys.exit(app(standalone_mode=False))  # typer.Exit comes back as its status, a command as None
    except (KeyboardInterrupt, typer.Abort):
        print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        line = _usage(error) or one_line(error)
        if line is None:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
            sys.exit(1)
        print(f"error: {redact(line)}", file=sys.stderr)
        sys.exit(2)


def _how_to_go_on() -> str:
    again = shlex.join(["wingspan", *sys.argv[1:]])
    return (
        f"stopped; finished stages and checkpoints are there, and the same command goes on from them: {again}"
    )


def _usage(error: Exception) -> str | None:
    """A mistake in the command line itself, which typer's own parser reports."""
    format_message = getattr(error, "format_message", None)
    if format_message is None:
        return None
    context = getattr(error, "ctx", None)
    command = "wingspan" if context is None else context.command_path
    return f"{format_message().rstrip('.')}; see {command} --help"


def _share(success: float | None) -> str:
    return "unknown" if success is None else f"{success:.2f}"
