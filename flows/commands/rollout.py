"""`wingspan rollout`: a pipeline's items, played by any model and shown turn by turn; nothing is trained."""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console

from agents.clients.endpoint import ChatClient, Endpoint
from agents.samplers.local import LocalModel
from agents.types import StopReason, Trajectory
from envs.errors import ConfigError, describe
from envs.types import Item
from flows.cli.tables import print_table
from flows.commands.turns import TurnPrinter
from tasks.config.environments import check_environments
from tasks.config.judges import check_judges
from tasks.config.pipelines import did_you_mean
from tasks.config.settings import Pipeline
from tasks.config.user_code import reward_names
from tasks.data.mixture import evaluation_turns, split
from tasks.data.trajectories import summarise, trajectory_to_dict
from tasks.rollout.program_runner import make_runner
from tasks.rollout.runner import EndpointRunner, RolloutRunner, RolloutSpec

SPLITS = ("test", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """What is to be played."""

    split: str = "test"
    items: int | None = None
    """The first of the split; None is all."""
    num_samples: int = 1
    max_turns: int | None = None
    """In the place of the pipeline's."""
    temperature: float | None = None
    """In the place of `evaluate.temperature`."""
    out: Path | None = None


def model_of(
    pipeline: Pipeline,
    *,
    endpoint: str | None,
    model: str | None,
    api_key_from: str | None,
    policy: Path | None,
) -> Endpoint | LocalModel:
    """What plays, by the command line's options; raises `ConfigError` for those that do not go together."""
    if endpoint is None:
        for option, value in (("--model", model), ("--api-key-from", api_key_from)):
            if value is not None:
                raise ConfigError(f"{option} {value} is an endpoint's; give --endpoint URL, too")
        local = LocalModel(
            policy or Path(pipeline.model), seed=pipeline.seed, max_sequences=pipeline.backend.max_sequences
        )
        local.check()
        return local
    if policy is not None:
        raise ConfigError(f"--endpoint {endpoint} and --policy {policy}: give only one of them")
    if model is None:
        raise ConfigError(f"--endpoint {endpoint}: which of its models? Give --model NAME")
    asked = Endpoint(endpoint, model, api_key_variable=api_key_from)
    asked.headers()
    return asked


def rollout(pipeline: Pipeline, model: Endpoint | LocalModel, asked: Rollout, *, console: Console) -> bool:
    """Play, and show every turn; returns whether any episode counts.

    Trajectories are written as they end. Ctrl-C ends the rollout, and what has ended until then is summed up
    before it is raised.
    Raises `ConfigError` and `MissingDependency` before anything is played.
    """
    items = _items(pipeline, asked)
    check_environments(pipeline)
    check_judges(pipeline.agent, names=reward_names(pipeline.agent))
    spec = RolloutSpec(
        name="rollout",
        max_turns={part: asked.max_turns or turns for part, turns in evaluation_turns(pipeline).items()},
        num_samples=asked.num_samples,
        temperature=pipeline.evaluate.temperature if asked.temperature is None else asked.temperature,
    )
    ended: list[Trajectory] = []
    printer = TurnPrinter(console)

    async def gather(make: Callable[[], RolloutRunner], out: TextIO | None) -> None:
        def end(trajectory: Trajectory) -> None:
            ended.append(trajectory)
            printer.trajectory(trajectory)
            if out is not None:
                out.write(json.dumps(trajectory_to_dict(trajectory)) + "\n")
                out.flush()

        runner = make()
        try:
            runner.check(items)
            if isinstance(model, Endpoint):
                await ChatClient(model).check()
            if out is not None:
                out.truncate(0)
            await runner.run(items, spec, on_opening=printer.opening, on_turn=printer.turn, on_trajectory=end)
        finally:
            await runner.close()

    stopped = False
    with _opened(asked.out) as out, _player(pipeline, model) as make:
        try:
            asyncio.run(gather(make, out))
        except KeyboardInterrupt:
            stopped = True
            printer.note("stopped; what follows is of the episodes that have ended")
    if ended:
        print_table(("", ""), summary_rows(summarise(ended)), console=console)
    if asked.out is not None:
        printer.note(f"trajectories: {asked.out}")
    if stopped:
        raise KeyboardInterrupt
    return any(trajectory.stop_reason is not StopReason.ERROR for trajectory in ended)


def summary_rows(summary: Mapping[str, float]) -> list[tuple[str, str]]:
    """The numbers of `tasks.data.trajectories.summarise` that say something, in its order; the main ones
    first."""
    first = [key for key in ("success", "reward", "turns", "episodes", "dropped") if key in summary]
    rest = [
        key
        for key, value in summary.items()
        if key not in first
        and (value or not key.startswith(("stop_", "tokens")))  # an endpoint tells no tokens
    ]
    return [(key, f"{summary[key]:.4g}") for key in [*first, *rest]]


def _items(pipeline: Pipeline, asked: Rollout) -> Sequence[Item]:
    if asked.split not in SPLITS:
        raise ConfigError(
            f"--split {asked.split!r}{did_you_mean(asked.split, SPLITS)}; there are: {', '.join(SPLITS)}"
        )
    parts = split(pipeline.data)
    return (parts.test if asked.split == "test" else parts.train)[: asked.items]


@contextmanager
def _player(pipeline: Pipeline, model: Endpoint | LocalModel) -> Iterator[Callable[[], RolloutRunner]]:
    """Makes the runner, in the event loop that will run it."""
    if isinstance(model, Endpoint):
        yield lambda: EndpointRunner(pipeline, client=ChatClient(model))
        return
    with model.load(context_length=pipeline.rollout.context_length) as loaded:
        yield lambda: make_runner(
            pipeline, sampler=loaded.sampler, tokenizer=loaded.tokenizer, processor=loaded.processor
        )


def _opened(out: Path | None) -> "nullcontext[None] | TextIO":
    """Whatever it held is there until something is played."""
    if out is None:
        return nullcontext()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        return out.open("a")
    except OSError as error:
        raise ConfigError(f"--out {out} cannot be written: {describe(error)}; give another file") from None
