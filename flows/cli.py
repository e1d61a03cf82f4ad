"""The command line, `wingspan`. Parses, calls, and turns errors that a user can mend into one line.

Nothing heavy is imported before a command needs it: `wingspan --help` answers within a second.
"""

import errno
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from agents.gateway.limits import Limits as GatewayLimits
from envs.errors import ConfigError, WingspanError, described
from envs.serve.limits import Limits
from flows.overrides import parse_settings

BASE_MODEL = Path("models/textcraft-base")
"""As in dvc.yaml, stage `base`."""

_SERVED = Limits()
"""What `serve-env` allows where nothing else is said."""
_SPOKEN_TO = GatewayLimits()
"""What `serve-policy` allows where nothing else is said."""

app = typer.Typer(
    help="Train LLM agents by multi-turn reinforcement learning, as a pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

data_app = typer.Typer(
    help="Data sets of environments: what there is, downloads, what is made here.", no_args_is_help=True
)
app.add_typer(data_app, name="data")

DataSetName = Annotated[
    str, typer.Argument(metavar="NAME", help="A data set; `wingspan data list` lists them.")
]
PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="A pipeline of pipelines.yaml.")]


@app.command()
def run(
    pipeline: PipelineName,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a parameter, e.g. --set train.lr=1e-3."),
    ] = None,
    workspace: Annotated[
        Path | None, typer.Option(help="Folder of the run.", show_default="runs/PIPELINE")
    ] = None,
    serve_policy: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the policy by OpenAI's protocol while it is trained; asks for $WINGSPAN_TOKEN, "
            "if that is set.",
            show_default="not served",
        ),
    ] = None,
) -> None:
    """Run a pipeline from its data to its report; the same command again goes on where it stopped."""
    from flows.guardian import guard
    from flows.plan import checked_address, locked, make_plan
    from flows.prefect_runs import check_server, configure_prefect
    from flows.stopping import Stoppable, leave
    from tasks.tracking import check_tracking

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
    if prefect_failure is not None:
        typer.echo(
            f"Prefect's record of this run is incomplete ({described(prefect_failure)[:200]}); "
            "everything else is finished",
            err=True,
        )
        leave(None, status=0)  # Prefect would go on sending events to the server that is gone


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="A stage of dvc.yaml.")],
    pipeline: PipelineName,
) -> None:
    """Run one stage in the pipeline's own workspace; this is what `dvc repro` calls."""
    from flows.guardian import guard
    from flows.plan import locked, make_plan
    from flows.stages import STAGES, call_stage, make_display, running
    from flows.stopping import Stoppable
    from tasks.pipelines import did_you_mean

    guard()
    if name not in STAGES:
        raise ConfigError(
            f"unknown stage {name!r}{did_you_mean(name, STAGES)}; there are: {', '.join(STAGES)}"
        )
    plan = make_plan(pipeline, overrides={}, workspace=None)
    if name not in plan.stages:
        raise ConfigError(f"{pipeline} has no stage {name!r}; it has: {', '.join(plan.stages)}")
    with (
        Stoppable(_how_to_go_on()),
        locked(plan.workspace),
        make_display(pipeline, pipeline=plan.pipeline, stages=[name], workspace=plan.workspace) as display,
        running(plan.stages[name], display=display),
    ):
        call_stage(name, pipeline=plan.pipeline, workspace=plan.workspace, display=display)


@app.command()
def base() -> None:
    """Make the base model that the CPU pipeline starts from again; takes an hour or more."""
    from flows.guardian import guard
    from flows.stopping import Stoppable
    from tasks.base import base as make_base
    from tasks.pipelines import load_base_settings

    guard()
    with Stoppable("stopped; the next `wingspan base` begins anew"):
        make_base(load_base_settings(), BASE_MODEL)


@app.command()
def pipelines() -> None:
    """List the pipelines of pipelines.yaml."""
    from tasks.pipelines import load_pipeline, pipeline_names

    for name in pipeline_names():
        pipeline = load_pipeline(name)
        typer.echo(
            f"{name:24} {' + '.join(pipeline.data.envs)}, {pipeline.model}, {pipeline.train.steps} steps of "
            f"{pipeline.train.algorithm}, on {pipeline.backend.device}"
        )


@app.command()
def runs() -> None:
    """List the runs that are recorded: their states, steps and success; runs that were killed are marked."""
    from rich.console import Console

    from flows.runs import COLUMNS, run_rows
    from flows.tables import print_table

    print_table(COLUMNS, list(run_rows()), console=Console())


@app.command()
def envs() -> None:
    """List the environments: whether they can be played here, their items, where those come from."""
    from rich.console import Console

    from flows.inventory import COLUMNS, environment_rows
    from flows.tables import print_table

    print_table(COLUMNS, environment_rows(), console=Console())


@app.command()
def doctor(pipeline: Annotated[str, typer.Argument(metavar="PIPELINE")] = "textcraft-cpu") -> None:
    """Say what PIPELINE needs, and what is missing, with the command that mends it; status 1 if any is."""
    from rich.console import Console

    from flows.doctor import COLUMNS, State, examine
    from flows.tables import print_table

    findings = examine(pipeline)
    print_table(COLUMNS, [finding.row for finding in findings], console=Console())
    if any(finding.state is State.MISSING for finding in findings):
        raise typer.Exit(1)


@app.command()
def play(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An environment; `wingspan envs` lists them.")],
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Its number, or its id.")],
    seed: Annotated[int | None, typer.Option(help="In place of the item's own.", show_default=False)] = None,
) -> None:
    """Play one item yourself, in the terminal or by lines from a pipe."""
    from rich.console import Console

    from flows.guardian import guard
    from flows.play import play as play_item

    guard()
    play_item(name, item, seed=seed, console=Console())


@app.command()
def rollout(
    pipeline: PipelineName,
    split: Annotated[str, typer.Option(help="test or train.")] = "test",
    items: Annotated[
        int | None, typer.Option(min=1, help="The first of the split.", show_default="all")
    ] = None,
    num_chains: Annotated[int, typer.Option(min=1, help="Episodes of each item.")] = 1,
    max_turns: Annotated[
        int | None, typer.Option(min=1, help="Of an episode.", show_default="evaluate.max_turns")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy.", show_default="evaluate.temperature")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the trajectories, one a line, as JSON.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible, e.g. http://127.0.0.1:8000/v1.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Which of the endpoint's.")] = None,
    api_key_from: Annotated[
        str | None, typer.Option(metavar="ENVVAR", help="The environment variable with the endpoint's key.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="Folder of a model, for the CPU.", show_default="the pipeline's model")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for run.")
    ] = None,
) -> None:
    """Play a pipeline's items without training, by an endpoint's model or a local one, and show every turn.

    Status 1 if no episode could be played to its end, 130 after Ctrl-C.
    """
    from rich.console import Console

    from flows.guardian import guard
    from flows.rollout import Rollout, model_of
    from flows.rollout import rollout as play_items
    from flows.stopping import Stoppable
    from tasks.pipelines import load_pipeline

    guard()
    chosen = load_pipeline(pipeline, overrides=parse_settings(settings or []))
    asked = Rollout(
        split=split, items=items, chains=num_chains, max_turns=max_turns, temperature=temperature, out=out
    )
    player = model_of(chosen, endpoint=endpoint, model=model, api_key_from=api_key_from, policy=policy)
    with Stoppable(None):  # the summary says it
        any_counts = play_items(chosen, player, asked, console=Console())
    if not any_counts:
        raise typer.Exit(1)


@app.command()
def compare(
    workspaces: Annotated[list[Path], typer.Argument(metavar="WORKSPACE…", help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="Folder of the comparison.")] = Path("runs/comparison"),
) -> None:
    """Put finished runs side by side: one table, one plot; `<name>-seed<k>` are seeds of one setting."""
    from tasks.compare import compare as compare_runs

    typer.echo(f"comparison: {compare_runs(workspaces, out)}")


@app.command()
def serve_env(
    name: Annotated[str, typer.Argument(help="An environment of envs/registry.py.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    token: Annotated[
        list[str] | None,
        typer.Option(envvar="WINGSPAN_TOKEN", help="Ask for it; again for more users, each with its own."),
    ] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Live instances.")] = _SERVED.max_sessions,
    idle_s: Annotated[float, typer.Option(min=0.1, help="Close what so long is unused.")] = _SERVED.idle_s,
    step_timeout_s: Annotated[
        float, typer.Option(min=0.1, help="Of one step or reset.")
    ] = _SERVED.step_timeout_s,
    max_body_bytes: Annotated[int, typer.Option(min=1024, help="Of one request.")] = _SERVED.max_body_bytes,
) -> None:
    """Serve an environment over HTTP, by AgentGym's protocol and OpenEnv's, until Ctrl-C."""
    import asyncio

    from envs.registry import get_env
    from envs.serve.app import serve
    from flows.guardian import guard

    guard()
    limits = Limits(
        max_sessions=max_sessions,
        idle_s=idle_s,
        step_timeout_s=step_timeout_s,
        max_body_bytes=max_body_bytes,
    )
    tokens = [part for part in token or [] if part]
    asyncio.run(serve(get_env(name), host=host, port=port, limits=limits, tokens=tokens, say=typer.echo))


@app.command()
def serve_policy(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A policy in Hugging Face format.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8001,
    model: Annotated[str, typer.Option(help="What requests call it.")] = "policy",
    temperature: Annotated[float, typer.Option(min=0, max=2, help="Where a request says none.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1, help="Where a request says none.")] = 1.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of an answer whose request says nothing.")] = 512,
    context_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and answer.", show_default="the model's")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Of torch.")] = 1,
    token: Annotated[str | None, typer.Option(envvar="WINGSPAN_TOKEN", help="Ask for it.")] = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Live sessions.")] = _SPOKEN_TO.max_sessions,
    idle_s: Annotated[
        float, typer.Option(min=0.1, help="Forget sessions so long unused.")
    ] = _SPOKEN_TO.idle_s,
    max_turns: Annotated[int, typer.Option(min=1, help="Of one session.")] = _SPOKEN_TO.max_turns,
    max_body_bytes: Annotated[
        int, typer.Option(min=1024, help="Of one request.")
    ] = _SPOKEN_TO.max_body_bytes,
) -> None:
    """Serve a policy over HTTP, by OpenAI's protocol, until Ctrl-C; sessions keep what was sampled."""
    import asyncio

    from agents.types import SamplingParams
    from flows.serve_policy import serve_policy as serve

    limits = GatewayLimits(
        max_sessions=max_sessions, idle_s=idle_s, max_turns=max_turns, max_body_bytes=max_body_bytes
    )
    asyncio.run(
        serve(
            folder,
            host=host,
            port=port,
            model=model,
            sampling=SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p),
            context_length=context_length,
            threads=threads,
            limits=limits,
            token=token or None,
            say=typer.echo,
        )
    )


@app.command()
def serve_retriever(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="JSONL, a passage a line (docs/search.md).")
    ],
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Retrieve by its vectors.", show_default="none: BM25"),
    ] = None,
    kind: Annotated[str, typer.Option(help="Of the index of vectors: flat or ivf.")] = "flat",
    index: Annotated[
        Path | None, typer.Option(help="A faiss index that is there, of the corpus's lines in their order.")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="Passages, where a request says nothing.")] = 3,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8002,
) -> None:
    """Serve a corpus for searches over HTTP, by Search-R1's protocol, until Ctrl-C."""
    import asyncio

    from flows.serve_retriever import serve_retriever as serve

    if kind not in ("flat", "ivf"):
        raise ConfigError(f"--kind {kind!r}: give flat or ivf")
    asyncio.run(
        serve(
            corpus,
            encoder=encoder,
            kind="ivf" if kind == "ivf" else "flat",
            index=index,
            host=host,
            port=port,
            top_k=top_k,
            say=typer.echo,
        )
    )


@app.command()
def serve_sites(
    port: Annotated[
        int, typer.Option(min=1, max=65532, help="Of the shop; those of forum, forge and CMS follow.")
    ] = 7770,
) -> None:
    """Serve a fresh copy of webarena-local's sites on this machine, to look around, until Ctrl-C."""
    from envs.webarena_local.sites.data import WEBARENA_LOCAL
    from envs.webarena_local.sites.tenant import serve_here
    from flows.guardian import guard

    guard()
    serve_here(WEBARENA_LOCAL.ready(), first_port=port, say=typer.echo)


@data_app.command("list")
def list_data() -> None:
    """List the data sets: whether they are here, what they weigh, what they are."""
    from rich.console import Console

    from flows.data import COLUMNS, data_set_rows
    from flows.tables import print_table

    print_table(COLUMNS, data_set_rows(), console=Console())


@data_app.command("pull")
def pull_data(name: DataSetName) -> None:
    """Download a data set, or the rest of it; what is here and right is left alone."""
    from envs.data_sets import get_data_set
    from envs.downloads import pull
    from flows.data import shown

    with shown() as progress:
        folder = pull(get_data_set(name), progress=progress)
    typer.echo(f"{name}: {folder}")


@data_app.command("make")
def make_data(name: DataSetName) -> None:
    """Make a data set that is made here, anew; a run makes it by itself where it is not there."""
    from envs.data_sets import get_data_set

    typer.echo(f"{name}: {get_data_set(name).make_again()}")


@data_app.command("check")
def check_data(name: DataSetName) -> None:
    """Hold a data set that was downloaded against what was downloaded; status 1 for any difference."""
    from envs.data_sets import get_data_set
    from envs.downloads import faults

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
    try:
        sys.exit(app(standalone_mode=False))  # typer.Exit comes back as its status, a command as None
    except (KeyboardInterrupt, typer.Abort):
        print("stopped; the same command goes on from here", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        line = _usage(error) or one_line(error)
        if line is None:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(2)


def _how_to_go_on() -> str:
    again = shlex.join(["wingspan", *sys.argv[1:]])
    return (
        f"stopped; finished stages and checkpoints are there, and the same command goes on from them: {again}"
    )


def _usage(error: Exception) -> str | None:
    """A mistake in the command line itself, which typer's own parser reports."""
    format_message = getattr(error, "format_message", None)
    return None if format_message is None else f"{format_message()}; see wingspan --help"


def _share(success: float | None) -> str:
    return "unknown" if success is None else f"{success:.2f}"
