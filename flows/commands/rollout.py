"""`wingspan rollout`: a pipeline's items, played by any model and shown turn by turn; nothing is trained."""

import asyncio
import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from agents.clients.endpoint import ChatClient, Endpoint
from agents.rollout.group import Callbacks
from agents.samplers.local import LocalModel
from agents.types import Trajectory
from envs.errors import ConfigError, describe
from envs.files import try_lock
from envs.types import Item
from flows.commands.turns import TurnPrinter
from flows.display.tables import print_table
from tasks.config.environments import check_environments
from tasks.config.judges import check_judges
from tasks.config.pipelines import Pipeline
from tasks.config.user_code import reward_names
from tasks.data.items import check_split, evaluation_turns, split
from tasks.data.trajectories import summarise, trajectory_to_dict
from tasks.evaluation.models import NamedPolicy, find_policy, make_endpoint
from tasks.evaluation.policy import local_model, open_model
from tasks.rollout.spec import RolloutRunner, RolloutSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Which episodes to run."""

    split: str = "test"
    items: int | None = None
    """How many items of the split, from the first; None takes all."""
    num_samples: int = 1
    max_turns: int | None = None
    """Replaces the pipeline's."""
    temperature: float | None = None
    """Replaces `evaluate.temperature`."""
    out: Path | None = None


def make_model(
    pipeline: Pipeline,
    *,
    endpoint: str | None,
    model: str | None,
    api_key_from: str | None,
    policy: str | None,
) -> Endpoint | LocalModel:
    """The model that the options of the command line name; raises `ConfigError` for contradictory options."""
    if endpoint is not None:
        if policy is not None:
            raise ConfigError(f"--endpoint {endpoint} and --policy {policy}: give only one of them")
        return make_endpoint(endpoint, model=model, api_key_from=api_key_from)
    if policy is not None:
        found = find_policy(NamedPolicy(policy=policy, model=model, api_key_from=api_key_from))
        return found if isinstance(found, Endpoint) else local_model(pipeline, found.folder)
    for option, value in (("--model", model), ("--api-key-from", api_key_from)):
        if value is not None:
            raise ConfigError(f"{option} {value} needs an endpoint; give --endpoint URL as well")
    local = local_model(pipeline, Path(pipeline.model))
    local.check()
    return local


def run_rollout(
    pipeline: Pipeline, model: Endpoint | LocalModel, request: Rollout, *, console: Console
) -> bool:
    """Run the episodes and show every turn; returns whether any episode ended without an error.

    Trajectories are written as they end. After Ctrl-C, the finished episodes are summarised before
    `KeyboardInterrupt` is raised. Raises `ConfigError` and `MissingDependency` before anything is played.
    """
    items = _items(pipeline, request)
    check_environments(pipeline)
    check_judges(pipeline.agent, names=reward_names(pipeline.agent))
    spec = RolloutSpec(
        name="rollout",
        max_turns={part: request.max_turns or turns for part, turns in evaluation_turns(pipeline).items()},
        num_samples=request.num_samples,
        temperature=pipeline.evaluate.temperature if request.temperature is None else request.temperature,
    )
    trajectories: list[Trajectory] = []
    printer = TurnPrinter(console)

    async def gather(make: Callable[[], RolloutRunner], out: TextIO | None) -> None:
        def end(trajectory: Trajectory) -> None:
            trajectories.append(trajectory)
            printer.trajectory(trajectory)
            if out is not None:
                out.write(json.dumps(trajectory_to_dict(trajectory)) + "\n")
                out.flush()

        runner = make()
        try:
            runner.check(items)
            if isinstance(model, Endpoint):
                await ChatClient(model).check()
            if out is not None and _is_regular(out):
                out.truncate(0)
            callbacks = Callbacks(on_opening=printer.opening, on_turn=printer.turn, on_trajectory=end)
            await runner.run(items, spec, callbacks)
        finally:
            await runner.close()

    is_stopped = False
    with _open(request.out) as out, open_model(pipeline, model) as make:
        try:
            asyncio.run(gather(make, out))
        except KeyboardInterrupt:
            is_stopped = True
            printer.note("stopped; this is the summary of the episodes that have ended")
    if trajectories:
        print_table(("", ""), summary_rows(summarise(trajectories)), console=console)
    if request.out is not None:
        printer.note(f"trajectories: {request.out}")
    if is_stopped:
        raise KeyboardInterrupt
    return any(not trajectory.has_failed for trajectory in trajectories)


def summary_rows(summary: Mapping[str, float]) -> list[tuple[str, str]]:
    """The informative numbers of `tasks.data.trajectories.summarise`, the main ones first."""
    first = [key for key in ("success", "reward", "turns", "episodes", "dropped") if key in summary]
    rest = [
        key
        for key, value in summary.items()
        if key not in first
        and (value or not key.startswith(("stop_", "tokens")))  # an endpoint reports no tokens
    ]
    return [(key, f"{summary[key]:.4g}") for key in [*first, *rest]]


def _items(pipeline: Pipeline, request: Rollout) -> Sequence[Item]:
    check_split(request.split)
    parts = split(pipeline.data)
    return (parts.test if request.split == "test" else parts.train)[: request.items]


def _is_regular(file: TextIO) -> bool:
    """Whether it has content that can be removed, unlike a pipe or a device."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _open(out: Path | None) -> "nullcontext[None] | TextIO":
    """Open and lock `out` without truncating it: its content stays until an episode begins."""
    if out is None:
        return nullcontext()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.open("a")
        is_free = not _is_regular(file) or try_lock(file)
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {describe(error)}; give another file") from None
    if not is_free:
        file.close()
        raise ConfigError(
            f"--out {out} is being written by another command; wait for it, or give another file"
        )
    return file
