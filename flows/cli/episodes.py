"""The commands that run episodes without training: `wingspan play`, `rollout` and `evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import EnvironmentName, PipelineName, Settings, parse_settings, parse_where


def play(
    name: EnvironmentName,
    item: Annotated[str, typer.Argument(metavar="ITEM", help="Number or id of one of its items.")],
    seed: Annotated[
        int | None, typer.Option(help="Seed to use instead of the item's.", show_default=False)
    ] = None,
) -> None:
    """Play one item yourself, in the terminal or with lines from a pipe."""
    from rich.console import Console

    from flows.commands.play import play as play_item
    from flows.endings.guardian import guard

    guard()
    play_item(name, item, seed=seed, console=Console())


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
    settings: Settings = None,
) -> None:
    """Let a model play a pipeline's items, without training, and show the task and every turn.

    Exits with status 1 if no episode could be played to its end, 130 after Ctrl-C.
    """
    from rich.console import Console

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
        out=out,
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
        list[str],
        typer.Argument(metavar="ENV…", help="Names of environments; `wingspan envs` lists them."),
    ],
    step: Annotated[
        int | None,
        typer.Option(help="Step of the run's checkpoint.", show_default="the trained policy"),
    ] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES", help="Select items by metadata, e.g. --where depth=1,2; can be repeated."
        ),
    ] = None,
    split: Annotated[str, typer.Option(help="Split that the items are taken from: test or train.")] = "test",
    items: Annotated[
        int | None,
        typer.Option(min=1, help="How many items to take, evenly over the split.", show_default="all"),
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many episodes to run of each item.")] = 1,
    k: Annotated[
        list[int] | None,
        typer.Option(help="Report pass@k and pass^k for this k; can be repeated.", show_default="1, 2, 4, …"),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.", show_default="evaluate.temperature"),
    ] = None,
    max_turns: Annotated[
        int | None,
        typer.Option(min=1, help="Turns that an episode may have.", show_default="evaluate.max_turns"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of sampling on this machine.", show_default="the pipeline's")
    ] = None,
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
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the endpoint's model.")] = None,
    api_key_from: Annotated[
        str | None, typer.Option(metavar="ENVVAR", help="Environment variable that holds the endpoint's key.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="runs/evaluations/…")
    ] = None,
    track: Annotated[bool, typer.Option("--track", help="Also record the evaluation in MLflow.")] = False,
    settings: Settings = None,
) -> None:
    """Evaluate any policy on any environment: success, pass@k and pass^k with 95% intervals.

    Writes a record with every item's outcomes, by which `wingspan compare` tests two evaluations. Exits with
    status 1 if no episode could be run to its end.
    """
    from rich.console import Console

    from flows.commands.evaluate import evaluate as evaluate_and_show
    from flows.endings.guardian import guard
    from flows.endings.stopping import Stoppable
    from tasks.evaluation.request import PolicyEvaluation

    guard()
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
    with Stoppable("stopped; the same command begins the evaluation anew"):
        is_any_valid = evaluate_and_show(evaluation, console=Console())
    if not is_any_valid:
        raise typer.Exit(1)
