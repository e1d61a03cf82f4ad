"""Stage `evaluate`: the test split, played by the policy before and after training.

Each plays every test item `samples_per_item` times at `evaluate.temperature` and once greedily, with
the same limits. On a CPU both policies play side by side, each with a sampler in a process of its own;
elsewhere verl's generation servers are brought up with one after the other, and nothing is trained.
"""

import asyncio
import json
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from threading import Event, Thread
from typing import Any

from agents.samplers.local import LocalModel
from agents.types import Trajectory
from envs.errors import ConfigError, WingspanError
from envs.files import write_atomically
from envs.types import Item
from tasks.config.settings import Pipeline
from tasks.data.items import read_items
from tasks.data.mixture import evaluation_turns
from tasks.data.trajectories import summarise, write_trajectories
from tasks.interrupts import interrupts_blocked
from tasks.rollout.program_runner import make_runner
from tasks.rollout.runner import RolloutSpec

RunRollout = Callable[[Sequence[Item], RolloutSpec], list[list[Trajectory]]]
"""`RolloutRunner.run` with one policy, for callers that wait."""
OnEpisodes = Callable[[int, int], None]
"""Sees how many episodes have ended, and how many there are in all."""

_counts: Any = None
"""Where this process counts the episodes that have ended, by policy: memory that the processes share, in
which each has a place that no other writes."""
POLL_S = 0.5
"""How often they are added up."""


def evaluate(pipeline: Pipeline, workspace: Path, *, on_episodes: OnEpisodes | None = None) -> None:
    """Write `evaluation.json` and `evaluation_trajectories.jsonl`.

    The first: `{"before" | "after": {"sampled" | "greedy": <tasks.data.trajectories.summarise>}}`. The
    second: of every item, policy and mode the first trajectory, whose `metrics` say which they were.
    Policy versions are training steps: 0 before, the last one after. `on_episodes` is called as episodes
    end. Raises `ConfigError` where a policy is missing.
    """
    items = read_items(workspace / "data" / "test.jsonl", data=pipeline.data)
    start = workspace / "warmup" if pipeline.warmup else pipeline.model
    policies = (
        _Policy(index=0, name="before", model=start, version=0),
        _Policy(index=1, name="after", model=workspace / "policy", version=pipeline.train.steps),
    )
    for policy in policies:
        if isinstance(policy.model, Path) and not (policy.model / "config.json").exists():
            raise ConfigError(
                f"no model in {policy.model}; run the stage that writes it, warmup or train, first"
            )
    work = partial(_evaluate_policy, pipeline, workspace, items)
    total = len(policies) * len(items) * (pipeline.evaluate.samples_per_item + 1)
    spawn = get_context("spawn")
    counts = spawn.RawArray("q", len(policies))
    progress: AbstractContextManager[None] = (
        nullcontext() if on_episodes is None else _progress(counts, total, on_episodes)
    )
    if pipeline.backend.rollout == "cpu":
        with progress:
            results = _side_by_side(work, policies, counts)
    else:
        _count_in(counts)
        with progress:
            results = [work(policy) for policy in policies]
    summaries = {policy.name: found for policy, (found, _) in zip(policies, results, strict=True)}
    write_trajectories(workspace / "evaluation_trajectories.jsonl", [t for _, kept in results for t in kept])
    write_atomically(workspace / "evaluation.json", json.dumps(summaries, indent=2) + "\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    index: int
    name: str
    model: Path | str
    version: int


def _count_in(counts: Any) -> None:
    """Count this process's episodes in `counts`."""
    global _counts
    _counts = counts


@contextmanager
def _progress(counts: Sequence[int], total: int, on_episodes: OnEpisodes) -> Iterator[None]:
    """Call `on_episodes` with the sum of `counts` when it has grown, for as long as the context is open."""
    is_over = Event()

    def watch() -> None:
        before = 0
        while True:
            was_over = is_over.wait(POLL_S)
            if (done := sum(counts)) > before:
                on_episodes(done, total)
                before = done
            if was_over:
                return

    thread = Thread(target=watch, name="episodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


_Found = tuple[dict[str, dict[str, float]], list[Trajectory]]
"""Of one policy: summaries by mode, and the trajectories to keep."""


def _side_by_side(
    work: Callable[[_Policy], _Found], policies: Sequence[_Policy], counts: Any
) -> list[_Found]:
    """`work` for every policy, each in its own process, one core each; no process outlives the call.

    The processes count their episodes in `counts`, an array that they share.
    """
    context = get_context("spawn")  # a fork of torch's threads would hang
    processes: list[SpawnProcess] = []
    places: dict[Connection, int] = {}
    found: dict[int, _Found] = {}
    try:
        with interrupts_blocked():
            for place, policy in enumerate(policies):
                receiving, sending = context.Pipe(duplex=False)
                places[receiving] = place
                processes.append(context.Process(target=_send, args=(sending, work, policy, counts)))
                processes[-1].start()
                sending.close()
        while len(found) < len(policies):
            ready = [end for end in wait(set(places)) if isinstance(end, Connection)]
            for receiving in ready:
                found[places.pop(receiving)] = _receive(receiving)
        for process in processes:
            process.join()
        return [found[place] for place in range(len(policies))]
    finally:
        for process in processes:
            process.kill()


def _send(sending: Connection, work: Callable[[_Policy], _Found], policy: _Policy, counts: Any) -> None:
    _count_in(counts)
    try:
        answer: _Found | Exception = work(policy)
    except Exception as error:
        error.add_note(traceback.format_exc())  # pickled, it has none
        answer = error
    with suppress(BrokenPipeError):  # who asked was stopped meanwhile
        sending.send(answer)


def _receive(receiving: Connection) -> _Found:
    with receiving:
        try:
            answer: _Found | Exception = receiving.recv()
        except EOFError:
            raise WingspanError("evaluation: a process died, for want of memory perhaps") from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _evaluate_policy(pipeline: Pipeline, workspace: Path, items: Sequence[Item], policy: _Policy) -> _Found:
    settings, turns = pipeline.evaluate, evaluation_turns(pipeline)
    summaries: dict[str, dict[str, float]] = {}
    kept: list[Trajectory] = []

    def count(episodes: int) -> None:
        _counts[policy.index] += episodes

    with _open_runner(pipeline, model=str(policy.model), workspace=workspace, count=count) as run:
        for mode, temperature in {"sampled": settings.temperature, "greedy": 0.0}.items():
            num_samples = settings.samples_per_item if mode == "sampled" else 1
            spec = RolloutSpec(name=mode, max_turns=turns, num_samples=num_samples, temperature=temperature)
            groups = run(items, spec)
            summaries[mode] = summarise([t for group in groups for t in group])
            kept += [
                _labelled(group[0], policy=policy.name, mode=mode, version=policy.version) for group in groups
            ]
    return summaries, kept


def _labelled(trajectory: Trajectory, *, policy: str, mode: str, version: int) -> Trajectory:
    # A sampler that was started with a policy's files counts its versions from there.
    turns = [
        replace(turn, completion=replace(turn.completion, policy_version=version))
        for turn in trajectory.turns
    ]
    return replace(trajectory, turns=turns, metrics={**trajectory.metrics, "policy": policy, "mode": mode})


@contextmanager
def _open_runner(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None]
) -> Iterator[RunRollout]:
    """`count` is called with the number of episodes that have just ended."""
    on_servers = pipeline.backend.rollout == "vllm"
    runner = (_servers if on_servers else _sampler)(pipeline, model=model, workspace=workspace, count=count)
    with runner as run:
        yield run


@contextmanager
def _sampler(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None]
) -> Iterator[RunRollout]:
    """Play with the CPU sampler, in this process."""
    local = LocalModel(Path(model), seed=pipeline.seed, max_sequences=pipeline.backend.max_sequences)
    with local.load(context_length=pipeline.rollout.context_length) as loaded:

        async def gather(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            runner = make_runner(
                pipeline, sampler=loaded.sampler, tokenizer=loaded.tokenizer, processor=loaded.processor
            )
            try:
                return await runner.run(items, spec, on_trajectory=lambda _: count(1))
            finally:
                await runner.close()

        yield lambda items, spec: asyncio.run(gather(items, spec))


@contextmanager
def _servers(
    pipeline: Pipeline, *, model: str, workspace: Path, count: Callable[[int], None]
) -> Iterator[RunRollout]:
    """Play with the generation servers that training would use, on a training process of its own."""
    import ray

    from tasks.cluster.session import connect_ray, end_local_ray, result_of
    from tasks.verl.actor import launch

    owns_ray = connect_ray(pipeline)
    with tempfile.TemporaryDirectory() as no_checkpoints:
        trainer = launch(
            pipeline,
            model=model,
            items=(workspace / "data" / "train.jsonl").resolve(),
            checkpoints=Path(no_checkpoints),
        )

        def run(items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
            found: list[list[Trajectory]] = result_of(trainer.run_rollout.remote(items, spec))
            count(sum(map(len, found)))
            return found

        try:
            result_of(trainer.start.remote())
            yield run
        finally:
            ray.kill(trainer)
            if owns_ray:
                end_local_ray()
