"""The train stage: rounds of training steps, each with a checkpoint and a quick evaluation at its end.

Owns the files under `train/` and `policy/`, the Ray session, and what happens when the training
process dies: a new one goes on from the last checkpoint, and steps after it are done again, counted
once. The steps themselves are `tasks/verl/actor.py`'s.
"""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from agents.types import Trajectory
from envs.errors import ConfigError, WingspanError
from envs.types import Item
from tasks.cluster.session import check_ray, connect_ray, end_local_ray, keep_logs, result_of
from tasks.config.settings import Pipeline
from tasks.data.items import read_items, write_items
from tasks.data.mixture import evaluation_turns, training_order
from tasks.data.trajectories import summarise, write_trajectories
from tasks.errors import RayDied, SamplerDied, names_dead_engine
from tasks.rollout.runner import RolloutSpec
from tasks.verl import checkpoints
from tasks.verl.actor import StepRecord, launch
from tasks.verl.config import check_pipeline
from tasks.verl.policies import copy_policy

if TYPE_CHECKING:
    from tasks.rollout.served_policy import ServedAt

_log = logging.getLogger(__name__)

MAX_RESTARTS = 3
"""Times in a row that the training process may die without a step in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One finished round, as in `train/rounds/NN.json`."""

    index: int
    """From 0."""
    first_step: int
    last_step: int
    evaluation: dict[str, float]
    """`summarise` of the quick evaluation: test items, one sample each, at `evaluate.temperature`."""
    seconds: float
    """Wall time, start-up included; of the last attempt, where one was interrupted."""


def train(
    pipeline: Pipeline,
    workspace: Path,
    *,
    on_step: Callable[[StepRecord], None] | None = None,
    on_phase: Callable[[str], None] | None = None,
    on_round: Callable[[RoundResult], None] | None = None,
) -> list[RoundResult]:
    """Train all rounds and write the final policy to `workspace/policy`; finished rounds are not repeated.

    `on_phase` sees what goes on between the steps, in words.
    """
    results = []
    with TrainSession(pipeline, workspace, on_step=on_step, on_phase=on_phase) as session:
        for index in range(session.rounds):
            results.append(session.run_round(index))
            if on_round is not None:
                on_round(results[-1])
        session.export()
    return results


class TrainSession:
    """The training process and its files, for the length of a `with`; nothing starts before it is needed.

    Uses the Ray cluster that this process is connected to, else that of `RAY_ADDRESS`, else a local
    one of its own.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        workspace: Path,
        *,
        on_step: Callable[[StepRecord], None] | None = None,
        on_phase: Callable[[str], None] | None = None,
        serve: "ServedAt | None" = None,
    ) -> None:
        """`on_phase`: sees what goes on between the steps, in words; `serve`: where the policy is served
        while the training process is up.

        Raises `ConfigError` for settings or files that training cannot start from.
        """
        check_pipeline(pipeline)
        self.rounds = -(-pipeline.train.steps // pipeline.train.steps_per_round)
        self._pipeline = pipeline
        self._workspace = workspace.resolve()
        self._folder = self._workspace / "train"
        self._checkpoints = self._folder / "checkpoints"
        self._items = self._folder / "items.jsonl"
        self._logs = self._folder / "ray-logs"
        self._on_step = on_step
        self._on_phase = on_phase or (lambda _: None)
        self._serve = serve
        self._actor: Any = None
        self._started = False
        self._resumed = False
        self._owns_ray = False
        self._step = 0
        self._restarts = 0

    def __enter__(self) -> "TrainSession":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """`close`, and without waiting for anything where the run was stopped by a signal."""
        if error is None or isinstance(error, Exception):
            self.close()
        elif self._actor is not None:
            self._end_actor(graceful=False)

    def prestart(self) -> None:
        """Begin what a start-up can do without the policy, and do not wait for it.

        Its imports take longer than anything else in it: call this before the warm-up, which
        leaves a core idle.
        """
        self._resume()
        if self._actor is None and not all(self._round_file(i).exists() for i in range(self.rounds)):
            with suppress(RayDied):  # the start will be another
                self._launch()

    def run_round(self, index: int) -> RoundResult:
        """Train the round's remaining steps and evaluate; a finished round is only read.

        Raises `WingspanError` if an earlier round is missing, if no checkpoint of several is whole, or if the
        process dies again and again.
        """
        self._resume()
        path = self._round_file(index)
        if path.exists():
            return RoundResult(**json.loads(path.read_text()))
        settings = self._pipeline.train
        first = index * settings.steps_per_round + 1
        last = min(first + settings.steps_per_round - 1, settings.steps)
        started = time.perf_counter()
        evaluation = self._restarting(lambda: self._train_and_evaluate(first, last))
        result = RoundResult(
            index=index,
            first_step=first,
            last_step=last,
            evaluation=evaluation,
            seconds=time.perf_counter() - started,
        )
        _write_atomically(path, json.dumps(asdict(result), indent=1))
        return result

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        """`RolloutRunner.run` with the policy as trained so far."""
        groups: list[list[Trajectory]] = self._restarting(lambda: self._call("run_rollout", items, spec))
        return groups

    def export(self) -> Path:
        """Write the last checkpoint's policy, with its tokenizer, to `workspace/policy`; returns that."""
        self._resume()
        steps = checkpoints.complete_steps(self._checkpoints)
        if not steps:
            raise WingspanError(f"no whole checkpoint in {self._checkpoints}: train a round first")
        target = self._workspace / "policy"
        copy_policy(checkpoints.policy_folder(self._checkpoints, step=steps[-1]), target)
        return target

    def close(self) -> None:
        """End the training process, and the Ray session if it is this one's."""
        if self._actor is not None:
            self._end_actor(graceful=self._started)
        self._end_ray()

    def _train_and_evaluate(self, first: int, last: int) -> dict[str, float]:
        self._ensure_started()
        if self._step < first - 1:
            raise WingspanError(
                f"{self._checkpoints} ends at step {self._step}, but the round needs step {first - 1}; "
                f"delete {self._folder} to train from the start"
            )
        if self._step < last:
            self._on_phase(f"training from step {self._step + 1}")
        while self._step < last:
            step = self._step + 1
            save = step == last or step % self._pipeline.train.save_every == 0
            record: StepRecord = self._call("run_step", save=save)
            self._step = record.step
            self._restarts = 0
            self._write_step(record)
            if self._on_step is not None:
                self._on_step(record)
        self._on_phase("quick evaluation")
        settings = self._pipeline.evaluate
        spec = RolloutSpec(
            name=f"after {last}",
            max_turns=evaluation_turns(self._pipeline),
            num_samples=1,
            temperature=settings.temperature,
        )
        groups = self._call("run_rollout", self._quick_items(), spec)
        return summarise([t for group in groups for t in group])

    def _quick_items(self) -> list[Item]:
        items = read_items(self._workspace / "data" / "test.jsonl", data=self._pipeline.data)
        count = min(self._pipeline.evaluate.quick_items, len(items))
        return [items[i * len(items) // count] for i in range(count)]  # spread: test items lie by depth

    def _restarting(self, work: Callable[[], Any]) -> Any:
        """`work`, again with a new training process each time that it dies."""
        from ray.exceptions import RayActorError

        while True:
            try:
                self._ensure_started()
                return work()
            except (RayActorError, RayDied, SamplerDied) as error:
                keep_logs(self._logs)
                self._end_actor(graceful=False)
                # Ray keeps a dead trainer's placement group until the whole session has ended.
                self._end_ray()
                self._restarts += 1
                if self._restarts > MAX_RESTARTS:
                    raise WingspanError(
                        f"the training process died {self._restarts} times in a row at step "
                        f"{self._step + 1}: {type(error).__name__}; see Ray's logs in {self._logs}"
                    ) from error

    def _ensure_started(self) -> None:
        if self._started:
            return
        self._resume()
        self._check_policy()
        self._write_training_items()
        self._write_prompts()
        if self._actor is None:
            self._launch()
        self._on_phase("starting the trainer")
        self._step = self._call("start")
        self._started = True
        self._write_missing_step()

    def _resume(self) -> None:
        """Go back to the last whole checkpoint, once for each training process: what came after it, rounds
        that were finished included, is done again."""
        if self._resumed:
            return
        found = checkpoints.resume(self._checkpoints)
        for damage in found.damage:
            _log.warning("training goes back to step %d: %s", found.step, damage)
        _drop_steps_after(self._folder / "metrics.jsonl", found.step)
        for index in range(self.rounds):
            path = self._round_file(index)
            if path.exists() and json.loads(path.read_text())["last_step"] > found.step:
                path.unlink()
        self._resumed = True

    def _check_policy(self) -> None:
        warmed = self._workspace / "warmup"
        if self._pipeline.warmup and not (warmed / "config.json").exists():
            raise ConfigError(f"no policy in {warmed}; run the warm-up stage first")

    def _launch(self) -> None:
        self._on_phase("starting Ray")
        self._owns_ray |= connect_ray(self._pipeline)
        model = self._workspace / "warmup" if self._pipeline.warmup else self._pipeline.model
        self._actor = launch(
            self._pipeline,
            model=str(model),
            items=self._items,
            checkpoints=self._checkpoints,
            serve=self._serve,
        )
        self._actor.prepare.remote()  # nobody waits: if it fails, `start` does it again, and says so

    def _write_training_items(self) -> None:
        """The items in the order in which training samples them, `rollout.items_per_step` a step."""
        train, seed = self._pipeline.train, self._pipeline.seed
        items = read_items(self._workspace / "data" / "train.jsonl", data=self._pipeline.data)
        count = train.steps * self._pipeline.rollout.items_per_step
        order = islice(training_order(items, self._pipeline.data, seed=seed), count)
        write_items(self._items, (items[index] for index in order))

    def _write_prompts(self) -> None:
        """What the agent is told before all else, and its judges, to be kept with what came of it."""
        agent = self._pipeline.agent
        prompts = {"prompt.md": agent.prompt}
        prompts |= {f"judge-{name}.md": judge.prompt for name, judge in agent.judges.items()}
        for name, prompt in prompts.items():
            if prompt is not None:
                _write_atomically(self._folder / name, prompt.read_text(encoding="utf-8"))

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._get(getattr(self._actor, method).remote(*args, **kwargs))

    def _get(self, answer: Any) -> Any:
        from ray.exceptions import RayActorError, RayTaskError, UnserializableException

        try:
            return result_of(answer)
        except (RayTaskError, UnserializableException) as error:
            # Its text is a remote traceback, of one process within another: what counts is the first cause.
            cause: BaseException = error
            while isinstance(cause, RayTaskError):
                cause = cause.cause
            if isinstance(cause, WingspanError | RayActorError):
                raise cause from error
            if names_dead_engine(error):  # noticed by the trainer: in putting the sampler to sleep, say
                raise SamplerDied(f"the sampler's engine died after step {self._step}") from error
            raise WingspanError(f"training failed after step {self._step}: {_in_short(cause)}") from error

    def _end_actor(self, *, graceful: bool) -> None:
        import ray

        with suppress(RayDied):  # without its control service nothing of Ray answers, and all of it is ended
            check_ray()
            if graceful:
                with suppress(Exception):  # it is killed next, whatever state it is in
                    ray.get(self._actor.stop.remote(), timeout=10)
            ray.kill(self._actor)
        self._actor = None
        self._started = False
        self._resumed = False

    def _end_ray(self) -> None:
        if self._owns_ray:
            end_local_ray()
            self._owns_ray = False

    def _write_step(self, record: StepRecord) -> None:
        folder = self._folder / "trajectories"
        write_trajectories(folder / f"step_{record.step:04d}.jsonl", record.trajectories)
        with (self._folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": record.step, **record.metrics}) + "\n")

    def _write_missing_step(self) -> None:
        """Write the checkpoint's step, if this process or an earlier one ended before it could."""
        file = self._folder / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        if self._step and (not lines or json.loads(lines[-1])["step"] < self._step):
            record = StepRecord.read(checkpoints.checkpoint_folder(self._checkpoints, step=self._step))
            if record is not None:
                self._write_step(record)

    def _round_file(self, index: int) -> Path:
        return self._folder / "rounds" / f"{index:02d}.json"


def _in_short(error: BaseException) -> str:
    """On one line and without colours; of a remote traceback in its text, the last line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    if "ray::" in text:
        text = text.splitlines()[-1]
    return " ".join(f"{type(error).__name__}: {text}".split())[:300]


def _drop_steps_after(path: Path, step: int) -> None:
    """Cut a metrics file to the steps that the checkpoint knows; a torn last line goes, too."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            continue
    _write_atomically(path, "".join(kept))


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(path.suffix + ".new")
    fresh.write_text(text)
    os.replace(fresh, path)
