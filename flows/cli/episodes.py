"""The commands that run episodes without training: `wingspan play`, `rollout`, `evaluate` and `fork`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.exit_status import STOPPED
from flows.cli.options import (
    EndpointKey,
    EndpointModel,
    EnvironmentName,
    ItemSplit,
    MaxTurns,
    PipelineName,
    SamplingSeed,
    Settings,
    Temperature,
    parse_settings,
    parse_where,
)


def play(
    name: EnvironmentName,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Number or id of one of its items.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed to use instead of the item's.", show_default=False)
    ] = None,
) -> None:
    """Play one item yourself, in the terminal or with lines from a pipe.

    Exits with status 130 after Ctrl-C.
    """
    from rich.console import Console

    from flows.commands.play import play as play_item
    from flows.endings.guardian import guard

    guard()
    if not play_item(name, item, seed=seed, console=Console()):
        raise typer.Exit(STOPPED)


def rollout(
    pipeline: PipelineName,
    split: ItemSplit = "test",
    items: Annotated[
        int | None, typer.Option(min=1, help="How many items of the split to run.", show_default="all")
    ] = None,
    num_samples: Annotated[int, typer.Option(min=1, help="How many episodes to run of each item.")] = 1,
    max_turns: MaxTurns = None,
    temperature: Temperature = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file to write the trajectories to.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="OpenAI-compatible endpoint of the model, e.g. http://127.0.0.1:8000/v1."
        ),
    ] = None,
    model: EndpointModel = None,
    api_key_from: EndpointKey = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy to run, as for `wingspan evaluate`; without a URL, it runs on the CPU.",
            show_default="the pipeline's model",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Run a model on a pipeline's items, without training, and show the task and every turn.

    Exits with status 1 if no episode could be run to its end, 130 after Ctrl-C.
    """
    from rich.console import Console

    from envs.files import read_path
    from flows.commands.rollout import Rollout, make_model, run_rollout
    from flows.endings.guardian import guard
    from flows.endings.stopping import Stoppable
    from tasks.config.pipelines import load_pipeline

    guard()
    configuration = load_pipeline(pipeline, overrides=parse_settings(settings or []))
    request = Rollout(
        split=split,
        items=items,
        num_samples=num_samples,
        max_turns=max_turns,
        temperature=temperature,
        out=None if out is None else read_path(out),
    )
    player = make_model(
        configuration, endpoint=endpoint, model=model, api_key_from=api_key_from, policy=policy
    )
    with Stoppable(None):  # the summary says so
        is_any_valid = run_rollout(configuration, player, request, console=Console())
    if not is_any_valid:
        raise typer.Exit(1)


def evaluate(
    policy: Annotated[
        str,
        typer.Argument(
            metavar="POLICY",
            help="Folder of a run, a checkpoint or a model; OWNER/NAME on a hub; or the "
            "URL of an OpenAI-compatible endpoint.",
        ),
    ],
    env: Annotated[
        list[str], typer.Argument(metavar="ENV…", help="Names of environments; `wingspan envs` lists them.")
    ],
    step: Annotated[
        int | None, typer.Option(help="Step of the run's checkpoint.", show_default="the trained policy")
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES", help="Select items by metadata, e.g. --where depth=1,2; can be repeated."
        ),
    ] = None,
    split: ItemSplit = "test",
    items: Annotated[
        int | None,
        typer.Option(min=1, help="How many items to take, evenly over the split.", show_default="all"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many episodes to run of each item.")] = 1,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Report pass@k and pass^k for this k; can be repeated.", show_default="1, 2, 4, …"),
    ] = None,
    temperature: Temperature = None,
    max_turns: MaxTurns = None,
    seed: SamplingSeed = None,
    format: Annotated[
        str | None,
        typer.Option(help="Format that the model writes in, e.g. react.", show_default="agent.format"),
    ] = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Pipeline whose agent, rollout settings and servers are taken.",
            show_default="that of the run, else defaults",
        ),
    ] = None,
    model: EndpointModel = None,
    api_key_from: EndpointKey = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="runs/evaluations/…")
    ] = None,
    track: Annotated[bool, typer.Option("--track", help="Also record the evaluation in MLflow.")] = False,
    settings: Settings = None,
) -> None:
    """Evaluate any policy on any environment: success, pass@k and pass^k with 95% intervals.

    Writes a record with every item's outcomes, by which `wingspan compare` tests evaluations. Exits with
    status 1 if no episode could be run to its end.
    """
    from rich.console import Console

    from flows.commands.evaluate import evaluate as evaluate_and_show
    from flows.endings.guardian import guard
    from flows.endings.stopping import DIED, Stoppable, resume_hint
    from tasks.evaluation.request import PolicyEvaluation
    from tasks.runs.provenance import is_in_repository

    if is_in_repository():
        kept, hint = "finished episodes are kept, and ", resume_hint()
    else:
        kept, hint = "", f"outside of a Git repository, {resume_hint('begins anew')}"
    guard(if_killed=f"{DIED}; {hint}")
    evaluation = PolicyEvaluation(
        policy=policy,
        step=step,
        model=model,
        api_key_from=api_key_from,
        envs=tuple(env),
        where=parse_where(where or []),
        split=split,
        items=items,
        samples=samples,
        ks=None if k is None else tuple(k),
        temperature=temperature,
        max_turns=max_turns,
        seed=seed,
        format=format,
        pipeline=pipeline,
        overrides=parse_settings(settings or []),
        out=out,
        track=track,
    )
    with Stoppable(f"stopped; {kept}{hint}"):
        is_any_valid = evaluate_and_show(evaluation, console=Console())
    if not is_any_valid:
        raise typer.Exit(1)


def fork(
    turn: Annotated[
        str,
        typer.Argument(
            metavar="TRAJECTORY@TURN",
            help="RUN/FILE:LINE@TURN as the viewer names it, e.g. textcraft-cpu/step_0003:5@2, or the "
            "address of its page.",
        ),
    ],
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder in which RUN is looked up, as for `wingspan view`; can be repeated.",
            show_default="runs",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option("-n", "--samples", min=1, help="How many episodes go on from the turn.")
    ] = 1,
    policy: Annotated[
        str | None,
        typer.Option(
            help="Policy that goes on: folder, OWNER/NAME or URL, as for `wingspan evaluate`.",
            show_default="the run's",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint.", show_default="the trained policy")
    ] = None,
    model: EndpointModel = None,
    api_key_from: EndpointKey = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.", show_default="as evaluated"),
    ] = None,
    observation: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Repeat the turn as well, and show the policy this in place of its observation.",
        ),
    ] = None,
    human: Annotated[bool, typer.Option("--human", help="Go on yourself, in the terminal.")] = False,
    max_turns: Annotated[
        int | None,
        typer.Option(min=1, help="Turns that the whole episode may have.", show_default="as evaluated"),
    ] = None,
    seed: SamplingSeed = None,
    pipeline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Pipeline whose agent, rollout settings and servers are taken.",
            show_default="that of the run",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Repeat a recorded trajectory up to a turn, then go on with a policy or as a person.

    The environment is a new instance, and all its answers are compared with the record: a difference is an
    error. Several samples give the value of the turn with a 95% interval. `wingspan view` shows the new
    trajectories next to the old one. Exits with status 1 if no episode could be run to its end.
    """
    from rich.console import Console

    from flows.commands.fork import fork as run_forks
    from flows.endings.guardian import guard
    from flows.endings.stopping import Stoppable
    from tasks.evaluation.forks.request import ForkRequest
    from tasks.runs.folders import RUNS

    guard()
    request = ForkRequest(
        policy=policy,
        step=step,
        model=model,
        api_key_from=api_key_from,
        is_person=human,
        samples=samples,
        temperature=temperature,
        observation=observation,
        max_turns=max_turns,
        seed=seed,
        pipeline=pipeline,
        overrides=parse_settings(settings or []),
    )
    with Stoppable("stopped; the forks that had ended are recorded"):
        is_any_valid = run_forks(turn, request, runs=runs or [RUNS], console=Console())
    if not is_any_valid:
        raise typer.Exit(1)
