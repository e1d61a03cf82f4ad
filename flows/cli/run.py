"""The commands that run pipelines, or parts of them, and `wingspan plan`, which says what a run would do."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envs.errors import ConfigError, describe
from flows.cli.options import IfChanged, PipelineName, Settings, Workspace, parse_secrets, parse_settings
from flows.program import PROGRAM, REPRODUCTION

if TYPE_CHECKING:
    from flows.plan import Plan
    from tasks.evaluation.outcomes import Evaluation

BASE_MODEL = Path("models/textcraft-base")
"""The output of stage `base` in dvc.yaml."""


def run(
    pipeline: PipelineName,
    settings: Settings = None,
    workspace: Workspace = None,
    serve_policy: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT",
            help="Serve the policy over OpenAI's protocol during training; if WINGSPAN_TOKEN is set, "
            "clients must send it.",
            show_default="not served",
        ),
    ] = None,
    if_changed: IfChanged = "refuse",
    promote: Annotated[
        bool,
        typer.Option(
            "--promote/--no-promote",
            help="Make the policy the champion of its registered model if it is better by a paired test.",
        ),
    ] = True,
) -> None:
    """Run a pipeline from its data to its report, or resume it where it stopped."""
    from flows.endings.guardian import guard
    from flows.endings.stopping import DIED, Stoppable
    from flows.lock import lock
    from flows.orchestrator.runs import TemporaryServer, server_url
    from flows.plan import check_run, make_plan
    from tasks.evaluation.outcomes import POLICIES
    from tasks.runs.rounds import explain_unchanged
    from tasks.runs.steps import read_steps

    is_reproduction = REPRODUCTION in os.environ
    guard(if_killed="" if is_reproduction else _resume_line(DIED))
    with Stoppable(_resume_line()):
        prefect_failure = None
        plan = make_plan(
            pipeline,
            overrides=parse_settings(settings or []),
            workspace=workspace,
            serve_policy=serve_policy,
            if_changed=if_changed,
            is_candidate=promote,
        )
        evaluation = None if serve_policy else _read_finished(plan)
        if evaluation is None:
            server = None if server_url() else TemporaryServer()  # starts while the run is checked
            check_run(plan)
            if plan.served_at is not None:
                typer.echo(f"during training, the policy answers at {plan.served_at.url} as model 'policy'")
            with lock(plan.workspace):
                if server is not None:
                    server.use()
                from flows.train_agent import run_with_prefect  # imports Prefect

                evaluation, prefect_failure = run_with_prefect(plan)
    if reason := explain_unchanged(read_steps(plan.workspace)):
        typer.echo(reason)
    before, after = (evaluation[policy]["sampled"].get("success") for policy in POLICIES)
    typer.echo(f"success on the test split: {_format_rate(before)} before, {_format_rate(after)} after")
    if not is_reproduction:
        typer.echo(f"report: {plan.workspace / 'report' / 'index.html'}")
        typer.echo(next_commands(pipeline, workspace=plan.workspace, settings=settings or []))
    if prefect_failure is not None:
        leave_incomplete_record(prefect_failure)


def leave_incomplete_record(prefect_failure: Exception) -> None:
    """End the process after work that Prefect's server did not survive."""
    from flows.endings.stopping import leave

    typer.echo(
        f"Prefect's record of this run is incomplete ({describe(prefect_failure)[:200]}); everything else is "
        "finished",
        err=True,
    )
    leave(None, status=0)  # at exit, Prefect would keep sending events to the server that died


def _read_finished(plan: "Plan") -> "Evaluation | None":
    """The evaluation of a finished run; None if anything is left to do, or a Prefect server is to know."""
    from flows.orchestrator.runs import server_url

    if server_url() or not plan.workspace.exists():
        return None
    from flows.lock import lock
    from flows.run import read_finished

    with lock(plan.workspace):
        return read_finished(plan)


def plan_run(pipeline: PipelineName, settings: Settings = None, workspace: Workspace = None) -> None:
    """Check a run without starting it, and show its stages, which of them would run and why, their options,
    and the cost.

    The time is estimated from earlier runs of the pipeline, which are named. Makes every check that `wingspan
    run` makes before it starts. Exits with status 2 if the run would be refused.
    """
    from flows.commands.costs import COST_COLUMNS, list_costs
    from flows.commands.preview import (
        COLUMNS,
        MEMORY_COLUMNS,
        OPTION_COLUMNS,
        list_memory,
        list_notes,
        list_options,
        preview,
    )
    from flows.display.tables import print_table

    plan, forecasts = preview(pipeline, overrides=parse_settings(settings or []), workspace=workspace)
    typer.echo(f"{plan.name} in {plan.workspace}: all checks passed")
    print_table(COLUMNS, [forecast.row for forecast in forecasts])
    stages = [forecast.stage for forecast in forecasts if forecast.runs]
    if not stages:
        typer.echo("\nevery stage is finished")
        return
    for note in list_notes(plan):
        typer.echo(f"note: {note}")
    if options := list_options(plan, forecasts):
        typer.echo("\nwith these options:")
        print_table(OPTION_COLUMNS, options)
    typer.echo()
    print_table(COST_COLUMNS, list_costs(plan, stages))
    if memory := list_memory(plan):
        typer.echo()
        print_table(MEMORY_COLUMNS, memory)


def stage(
    name: Annotated[str, typer.Argument(metavar="STAGE", help="Name of a stage in dvc.yaml.")],
    pipeline: PipelineName,
) -> None:
    """Run one stage of a pipeline in its workspace; `dvc repro` calls this."""
    _take_code_from_here()
    from flows.endings.stopping import Stoppable
    from flows.train_agent import run_stage

    with Stoppable(_resume_line()):
        run_stage.fn(name, pipeline)  # a plain call, which needs no Prefect server


def _take_code_from_here() -> None:
    """Start again with the code of the working directory, if it has its own.

    `dvc exp run --queue` and `--temp` run the stages in a copy of the project, and DVC hashes its code; the
    installed command imports that of the project, which may have changed since.
    """
    here, imported_root = Path("flows"), Path(__file__).parents[1]
    if (here / "__init__.py").exists() and not here.samefile(imported_root):
        from tasks.cluster.python_path import python_path

        environment = os.environ | {"PYTHONPATH": python_path(Path.cwd())}
        os.execve(sys.executable, [*PROGRAM, *sys.argv[1:]], environment)


def base() -> None:
    """Rebuild the base model of the CPU pipelines; this takes an hour or more."""
    from flows.endings.guardian import guard
    from flows.endings.stopping import Stoppable
    from tasks.base_model.train import base as make_base
    from tasks.config.pipelines import load_base_settings

    guard()
    with Stoppable("stopped; the next `wingspan base` starts from the beginning"):
        make_base(load_base_settings(), BASE_MODEL)


def deploy(
    pipelines: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PIPELINE…",
            help="Names of pipelines.",
            show_default="all, and data, evaluations and sweeps",
        ),
    ] = None,
    pool: Annotated[str, typer.Option(help="Name of the Prefect work pool that runs them.")] = "local",
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VARIABLE=BLOCK",
            help="Give the runs an environment variable with the value of a Secret block of Prefect, e.g. "
            "--secret JUDGE_API_KEY=judge-api-key; can be repeated.",
        ),
    ] = None,
) -> None:
    """Make Prefect deployments of pipelines, data preparation, evaluations and sweeps (PREFECT_API_URL).

    What is set on Prefect's page of a deployment is kept: schedules, tags, limits. Runs on this machine that
    were killed are marked as crashed.
    """
    from flows.orchestrator.runs import check_server, server_url
    from flows.orchestrator.unfinished_runs import mark_killed_runs
    from tasks.config.pipelines import load_pipeline, pipeline_names

    secrets = parse_secrets(secret or [])
    chosen_pipelines = {name: load_pipeline(name) for name in pipelines or pipeline_names()}
    if server_url() is None:
        raise ConfigError(
            "no Prefect server is configured; start one with `prefect server start`, and set PREFECT_API_URL "
            "to its address, such as http://127.0.0.1:4200/api"
        )
    check_server(alternative="correct the variable")
    from flows.commands.deploy import deploy as deploy_pipelines
    from flows.orchestrator.limits import missing_limits, needed_slots

    mark_killed_runs()
    for name in deploy_pipelines(chosen_pipelines, are_all=not pipelines, pool=pool, secrets=secrets):
        typer.echo(name)
    needed_limits = {limit for pipeline in chosen_pipelines.values() for limit in needed_slots(pipeline)}
    for line in missing_limits(sorted(needed_limits)):
        typer.echo(line, err=True)


def next_commands(pipeline: str, *, workspace: Path, settings: Sequence[str]) -> str:
    """The last lines of `wingspan run`: commands and their purposes.

    For a run of `pipeline` with `settings` (`KEY=VALUE`) in `workspace`.
    """
    from tasks.tracking.connection import ui_command
    from tasks.tracking.record import recorded_page

    policy = str(workspace / "policy")
    overrides = [part for setting in settings for part in ("--set", setting)]
    rollout = ["wingspan", "rollout", pipeline, "--items", "3", "--policy", policy, *overrides]
    page = recorded_page(workspace)
    commands = {
        ui_command() or page: f"metrics, traces and the registered policy: {page}",
        shlex.join(["wingspan", "view", str(workspace)]): "read its trajectories in a browser",
        shlex.join(rollout): "watch the trained policy act",
        shlex.join(["wingspan", "serve-policy", policy]): "serve it with OpenAI's protocol",
    }
    return "\n".join(["next:", *(f"  {command}\n      {purpose}" for command, purpose in commands.items())])


def _resume_line(end: str = "stopped") -> str:
    from flows.endings.stopping import resume_hint

    return f"{end}; finished stages and checkpoints are kept, and {resume_hint()}"


def _format_rate(success: float | None) -> str:
    return "unknown" if success is None else f"{success:.2f}"
