"""Stage `train`: rounds of training steps, each ending with a checkpoint and a quick evaluation.

Owns the files under `train/` and `policy/`, the Ray session, and the restart when the training process
dies: a new process resumes from the last checkpoint, and later steps are repeated and counted once. The
same happens where training collapses, with `train.watch.on_collapse: rewind`: `tasks/verl/rewinds.py` says
from where. The loop over the rounds is in `flows/train_agent.py`, the training step in
`tasks/verl/actor.py`, the record of a round in `tasks/runs/rounds.py`, its evaluation in
`tasks/stages/rounds.py`.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from agents.types import Trajectory
from envs.errors import WingspanError
from envs.types import Item
from tasks.cluster.session import LOGS, keep_logs
from tasks.config.pipelines import Pipeline
from tasks.data.collapse import ALERTS, Alert, alerts_at_end, new_alerts
from tasks.data.items import training_items
from tasks.data.trajectories import write_trajectories
from tasks.data.updates import update_file, write_updates
from tasks.errors import Collapsed, RayDied, SamplerDied, actor_deaths, describe_remote
from tasks.rollout.spec import RolloutSpec
from tasks.runs.progress import SILENT, Progress
from tasks.runs.rounds import (
    RoundResult,
    TrainedRound,
    final_policy,
    find_best,
    read_round,
    round_file,
    start_policy,
)
from tasks.runs.steps import read_steps
from tasks.stages.rounds import (
    check_start,
    choose_best,
    drop_rounds_after,
    drop_short_round,
    drop_steps_after,
    evaluate_round,
    make_round,
    write_prompts,
)
from tasks.verl import checkpoints
from tasks.verl.actor import StepRecord
from tasks.verl.config import check_pipeline
from tasks.verl.policies import copy_policy
from tasks.verl.process import RayTrainingProcess, TrainingProcess
from tasks.verl.rewinds import Rewind, RewindPoints, read_rewinds, seed_after, write_rewind

T = TypeVar("T")

MAX_RESTARTS = 3
"""Times in a row that the training process may die without completing a step."""


class _Rewound(Exception):
    """Training has gone back to an earlier checkpoint, and its process has ended."""


class TrainSession:
    """Context that owns the training process and its files; the process starts when it is first needed."""

    def __init__(
        self,
        pipeline: Pipeline,
        workspace: Path,
        progress: Progress = SILENT,
        *,
        process: TrainingProcess | None = None,
    ) -> None:
        """`process`: what trains, by default in an actor of Ray.

        Raises `ConfigError` for contradictory settings.
        """
        check_pipeline(pipeline)
        self.num_rounds = pipeline.train.num_rounds
        self._pipeline = pipeline
        self._workspace = workspace.resolve()
        self._folder = self._workspace / "train"
        self._checkpoints = self._folder / "checkpoints"
        self._logs = self._folder / LOGS
        self._progress = progress
        self._process = process or RayTrainingProcess()
        self._is_started = False
        self._is_resumed = False
        self._steps: list[dict[str, float]] = []
        self._restarts = 0
        self._launched: Pipeline | None = None

    def __enter__(self) -> "TrainSession":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the session; after a signal, without waiting for the training process."""
        if error is None or isinstance(error, Exception):
            self.close()
        elif self._process.is_launched:
            self._end_process(graceful=False)

    def prestart(self) -> None:
        """Begin the part of the start-up that needs no policy, without waiting for it.

        Most of a start-up is imports: call this before the warm-up, which leaves a core idle.
        """
        if not self._process.is_launched:  # `train/` is not read: it may belong to other inputs
            self._launch()

    def train_round(self, index: int) -> TrainedRound:
        """Train the remaining steps of the round; nothing to do if it has ended.

        Earlier rounds that have not ended, because a rewind went back to before their ends, are trained and
        evaluated first. Raises `WingspanError` if no checkpoint is complete, or if the process dies
        repeatedly, and `Collapsed` if the pipeline says so.
        """
        self._resume()
        start = time.perf_counter()
        if not round_file(self._folder, index).exists():
            self._restarting(lambda: self._train_up_to(index))
        return replace(make_round(self._pipeline.train, index), seconds=time.perf_counter() - start)

    def evaluate_round(self, steps: TrainedRound) -> RoundResult:
        """Evaluate the policy on a few test items and write the round's result, or read it if it has one.

        Raises as `train_round` does, whose last steps are repeated if the process dies.
        """
        self._resume()
        if result := read_round(self._folder, steps.index):
            return result

        def evaluate() -> RoundResult:
            self._train_up_to(steps.index)  # a new process may lack the last steps
            return self._evaluate(steps)

        return self._restarting(evaluate)

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        """`RolloutRunner.run` with the policy as trained so far."""
        return self._restarting(lambda: self._process.run_rollout(items, spec))

    def export(self) -> Path:
        """Write the policy that `train.final_policy` chooses, and its tokenizer, to `workspace/policy`.

        Returns that folder.
        """
        self._resume()
        steps = checkpoints.complete_steps(self._checkpoints)
        if not steps:
            raise WingspanError(f"no complete checkpoint in {self._checkpoints}: train a round first")
        target = self._workspace / "policy"
        last = checkpoints.policy_folder(self._checkpoints, step=steps[-1])
        copy_policy(final_policy(self._pipeline, self._folder, last=last), target)
        return target

    def close(self) -> None:
        """End the training process, and the Ray session if this session started it."""
        if self._process.is_launched:
            self._end_process(graceful=self._is_started)
        self._process.close()

    def _train_up_to(self, index: int) -> None:
        """Train the remaining steps of the rounds up to that of `index`, and evaluate those before it."""
        for earlier in (make_round(self._pipeline.train, i) for i in range(index)):
            if not round_file(self._folder, earlier.index).exists():
                start = time.perf_counter()
                self._train_steps(earlier.last_step)
                self._evaluate(replace(earlier, seconds=time.perf_counter() - start))
        self._train_steps(make_round(self._pipeline.train, index).last_step)

    def _train_steps(self, last: int) -> None:
        if self._process.step < last:
            self._progress.on_phase(f"training from step {self._process.step + 1}")
        while self._process.step < last:
            step = self._process.step + 1
            save = step == last or step % self._pipeline.train.save_every == 0
            steps_to_keep = self._steps_to_keep(step) if save else ()
            record = self._process.run_step(save=save, steps_to_keep=steps_to_keep)
            self._restarts = 0
            alerts = self._write_step(record)
            if record.raise_reason:
                self._progress.on_note(f"step {record.step}: horizon {record.raise_reason}")
            self._progress.on_step({"step": record.step, **record.metrics})
            self._report_alerts(alerts, is_saved=save)

    def _report_alerts(self, alerts: Sequence[Alert], *, is_saved: bool) -> None:
        """Go back or stop, if the pipeline says so.

        Raises `_Rewound`, or `Collapsed` after a checkpoint of the last step.
        """
        for alert in alerts:
            self._progress.on_alert(alert)
        watch = self._pipeline.train.watch
        if not alerts or watch.on_collapse == "warn":
            return
        reasons = "; ".join(alert.text for alert in alerts)
        rewinds = len(read_rewinds(self._folder))
        if rewinds < watch.rewinds:
            self._rewind(reasons, number=rewinds + 1)
        if not is_saved:
            self._process.save_step(steps_to_keep=self._steps_to_keep(self._process.step))
        after = f" after rewind {rewinds} of {watch.rewinds}" if rewinds else ""
        raise Collapsed(
            f"training stopped at step {self._process.step}{after}, which is saved: {reasons}; run the same "
            "command to train on, or change the pipeline"
        )

    def _rewind(self, reasons: str, *, number: int) -> NoReturn:
        """Go back to the checkpoint that `RewindPoints` names; the next training process starts from there.

        Raises `_Rewound`.
        """
        watch, step = self._pipeline.train.watch, self._process.step
        target = RewindPoints.read(self._folder, window=watch.window).target(step)
        self._end_process(graceful=True)
        self._process.close()
        write_rewind(self._folder, Rewind(from_step=step, to_step=target, reasons=reasons))
        self._progress.on_note(
            f"step {step}: training goes back to {f'step {target}' if target else 'its start'} "
            f"(rewind {number} of {watch.rewinds})"
        )
        raise _Rewound

    def _steps_to_keep(self, step: int) -> set[int]:
        """Checkpoints that a rewind may need when that of `step` is written."""
        watch = self._pipeline.train.watch
        if watch.on_collapse != "rewind":
            return set()
        return RewindPoints.read(self._folder, window=watch.window).steps_to_keep(step)

    def _evaluate(self, steps: TrainedRound) -> RoundResult:
        """Evaluate the policy of the round's last step, and write the result."""
        self._progress.on_phase("quick evaluation")
        policy = checkpoints.policy_folder(self._checkpoints, step=steps.last_step)
        return evaluate_round(
            steps, self._pipeline, self._workspace, policy=policy, run=self._process.run_rollout
        )

    def _restarting(self, work: Callable[[], T]) -> T:
        """Call `work`, again with a new training process each time that one dies or training goes back."""
        deaths: tuple[type[Exception], ...] = (*actor_deaths(), RayDied, SamplerDied)
        while True:
            try:
                self._ensure_started()
                return work()
            except _Rewound:
                continue
            except deaths as error:
                keep_logs(self._logs)
                self._end_process(graceful=False)
                # Ray keeps a dead trainer's placement group until the whole session has ended.
                self._process.close()
                self._restarts += 1
                if self._restarts > MAX_RESTARTS:
                    raise WingspanError(
                        f"the training process died {self._restarts} times in a row at step "
                        f"{self._process.step + 1}: {describe_remote(error)}; see Ray's logs in {self._logs}"
                    ) from error

    def _ensure_started(self) -> None:
        if self._is_started:
            return
        self._resume()
        check_start(self._pipeline, self._workspace)
        items = training_items(self._pipeline, self._workspace)
        write_prompts(self._pipeline, self._folder)
        if self._process.is_launched and self._launched != self._with_own_seed():
            # `train/` was cleared since
            self._process.end(graceful=False)
        if not self._process.is_launched:
            self._launch()
        self._progress.on_phase("starting the trainer")
        self._process.start(items)
        self._is_started = True
        self._write_missing_step()
        self._rewind_if_due()

    def _resume(self) -> None:
        """Go back to the last complete checkpoint, once for each training process.

        Later steps, finished rounds included, are repeated.
        """
        if self._is_resumed:
            return
        checkpoint = checkpoints.resume(self._checkpoints)
        for damage in checkpoint.damage:
            self._progress.on_note(f"training goes back to step {checkpoint.step}: {damage}")
        drop_steps_after(self._folder / "metrics.jsonl", checkpoint.step)
        self._steps = read_steps(self._workspace)
        # The alerts of a step are written before its line.
        drop_steps_after(self._folder / ALERTS, int(self._steps[-1]["step"]) if self._steps else 0)
        for kind in ("step", "update"):
            for file in (self._folder / "trajectories").glob(f"{kind}_*.jsonl"):
                if int(file.stem.removeprefix(f"{kind}_")) > checkpoint.step:
                    file.unlink()
        self._progress.on_history(self._steps)
        drop_rounds_after(self._folder, checkpoint.step)
        drop_short_round(self._folder, self._pipeline.train, step=checkpoint.step)
        if find_best(self._folder) is None:
            choose_best(self._folder, self._checkpoints)
        self._is_resumed = True

    def _launch(self) -> None:
        self._progress.on_phase("starting Ray")
        self._launched = self._with_own_seed()
        self._process.launch(
            self._launched,
            model=str(start_policy(self._pipeline, self._workspace)),
            checkpoints=self._checkpoints,
            episode_file=self._progress.episode_file,
        )

    def _end_process(self, *, graceful: bool) -> None:
        self._process.end(graceful=graceful)
        self._is_started = False
        self._is_resumed = False

    def _with_own_seed(self) -> Pipeline:
        """The pipeline of the training process: each rewind gives it other draws."""
        seed = seed_after(len(read_rewinds(self._folder)), seed=self._pipeline.seed)
        return self._pipeline.model_copy(update={"seed": seed})

    def _write_step(self, record: StepRecord) -> list[Alert]:
        """Write the step down; returns its new signs of a collapse, which are written to `alerts.jsonl`."""
        folder = self._folder / "trajectories"
        write_updates(update_file(folder, record.step), record.updates)
        write_trajectories(folder / f"step_{record.step:04d}.jsonl", record.trajectories)
        self._steps.append({"step": record.step, **record.metrics})
        limits = self._pipeline.train.watch
        standing, alerts = alerts_at_end(self._steps, limits), new_alerts(self._steps, limits)
        with (self._folder / ALERTS).open("a") as file:
            file.writelines(json.dumps(asdict(alert)) + "\n" for alert in alerts)
        line = record.line | {"alerts": len(standing)}
        if self._pipeline.train.watch.on_collapse == "rewind":
            line["rewinds"] = len(read_rewinds(self._folder))
        with (self._folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return alerts

    def _write_missing_step(self) -> None:
        """Write the step of the checkpoint if an earlier session was killed before it could."""
        step = self._process.step
        if step > (self._steps[-1]["step"] if self._steps else 0):
            record = StepRecord.read(checkpoints.checkpoint_folder(self._checkpoints, step=step))
            self._report_alerts(self._write_step(record), is_saved=True)

    def _rewind_if_due(self) -> None:
        """Report the alerts of the last step if an earlier session was killed before it could go back."""
        train = self._pipeline.train
        if len(read_rewinds(self._folder)) < train.watch.rewinds:
            self._report_alerts(new_alerts(self._steps, train.watch), is_saved=True)
