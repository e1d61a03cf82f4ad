"""Stage `train` of an algorithm that learns offline: rounds of sampling, selection and supervised training.

Owns the files under `train/` and `policy/`, as `tasks/stages/train.py` does for online training, with the
same names and meanings: the episodes of a round are those of its first step. What a round has finished is not
done again: its episodes, its policy, its evaluation.
"""

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agents.huggingface.files import load_tokenizer
from agents.types import Trajectory
from envs.errors import WingspanError
from envs.files import write_atomically
from tasks.algorithms.builtin.dpo import Dpo
from tasks.algorithms.offline import Imitation, OfflineAlgorithm
from tasks.cluster.session import LOGS
from tasks.config.offline import check_offline
from tasks.config.pipelines import Pipeline
from tasks.data.demonstrations import Demonstration, prepare_cloning
from tasks.data.items import read_items, read_split, training_items
from tasks.data.supervised import SupervisedRow, make_pairs, rows_of, select
from tasks.data.training_files import check_tokens, read_training_files
from tasks.data.trajectories import is_informative, read_trajectories, summarise, write_trajectories
from tasks.evaluation.policy import open_policy
from tasks.rollout.spec import horizon_metrics, make_training_spec
from tasks.runs.progress import SILENT, Progress
from tasks.runs.rounds import RoundResult, TrainedRound, final_policy, read_round, start_policy
from tasks.runs.steps import read_steps
from tasks.stages.rounds import check_start, drop_steps_after, evaluate_round, make_round, write_prompts
from tasks.verl.config import check_pipeline
from tasks.verl.cpu import fork_server
from tasks.verl.dpo import DpoRequest
from tasks.verl.policies import copy_policy
from tasks.verl.process import environment_of
from tasks.verl.sft import SftRequest, columns_of, train_apart

_NAMES = {
    "imitation": {"loss": "imitation_loss", "tokens": "trained_tokens"},
    "preference": {
        "loss": "preference_loss",
        "margin": "preference_margin",
        "accuracy": "preference_accuracy",
        "tokens": "trained_tokens",
    },
}
"""Numbers of the training process → their keys in `train/metrics.jsonl`."""


class OfflineSession:
    """Context that trains a pipeline offline, round by round; the same interface as `TrainSession`."""

    def __init__(self, pipeline: Pipeline, workspace: Path, progress: Progress = SILENT) -> None:
        """Raises `ConfigError` for contradictory settings."""
        check_pipeline(pipeline)
        check_offline(pipeline)
        algorithm = pipeline.train.algorithm
        assert isinstance(algorithm, OfflineAlgorithm)
        self.num_rounds = pipeline.train.num_rounds
        self._algorithm = algorithm
        self._pipeline = pipeline
        self._workspace = workspace.resolve()
        self._folder = self._workspace / "train"
        self._start = str(start_policy(pipeline, self._workspace))
        self._progress = progress

    def __enter__(self) -> "OfflineSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prestart(self) -> None:
        """Do nothing: there is no trainer to start before the warm-up has ended."""

    def train_round(self, index: int) -> TrainedRound:
        """Sample and train the round, or what is left of it.

        Raises `ConfigError` for training files that do not fit, `WingspanError` if there is nothing to learn
        from or if the training process fails.
        """
        steps, start = make_round(self._pipeline.train, index), time.perf_counter()
        if not self._is_trained(steps):
            check_start(self._pipeline, self._workspace)
            files = self._read_files()
            write_prompts(self._pipeline, self._folder)
            groups, seconds = self._sample(steps)
            self._train(steps, files=files, groups=groups, seconds_rollout=seconds)
        return replace(steps, seconds=time.perf_counter() - start)

    def evaluate_round(self, steps: TrainedRound) -> RoundResult:
        """Evaluate the round's policy on a few test items and write its result, or read it."""
        result = read_round(self._folder, steps.index)
        if result is None:
            policy, start = self._policy(steps.index), time.perf_counter()
            self._progress.on_phase("quick evaluation")
            with open_policy(self._pipeline, model=str(policy), logs=self._folder / LOGS) as run:
                steps = replace(steps, seconds=steps.seconds + time.perf_counter() - start)
                result = evaluate_round(steps, self._pipeline, self._workspace, policy=policy, run=run)
        # The next round samples with this one's. A kill after the record leaves the earlier ones.
        for earlier in range(steps.index):
            shutil.rmtree(self._policy(earlier), ignore_errors=True)
        return result

    def export(self) -> Path:
        """Copy the policy that `train.final_policy` chooses to `workspace/policy`; returns that folder."""
        target = self._workspace / "policy"
        last = self._policy(self.num_rounds - 1)
        copy_policy(final_policy(self._pipeline, self._folder, last=last), target)
        return target

    def close(self) -> None:
        """End the fork server of the processes that trained."""
        fork_server.close()

    def _policy(self, index: int) -> Path:
        return self._folder / "policies" / f"{index:02d}"

    def _is_trained(self, steps: TrainedRound) -> bool:
        """Whether the round's policy was saved and its steps were written, which comes last."""
        recorded_steps = read_steps(self._workspace)
        last = recorded_steps[-1]["step"] if recorded_steps else 0
        has_policy = (self._policy(steps.index) / "config.json").exists()
        # An earlier round's policy is removed once the next one's has been evaluated.
        return last > steps.last_step or (last == steps.last_step and has_policy)

    def _read_files(self) -> list[Trajectory]:
        pipeline = self._pipeline
        if not self._algorithm.data:
            return []
        trajectories = read_training_files(
            self._algorithm.data,
            test_items=read_items(self._workspace / "data" / "test.jsonl", data=pipeline.data),
            micro_batch_tokens=pipeline.train.micro_batch_tokens,
        )
        check_tokens(trajectories, load_tokenizer(self._start), model=self._start)
        return trajectories

    def _sample(self, steps: TrainedRound) -> tuple[list[list[Trajectory]], float]:
        """The round's episodes, sampled or read, and how many seconds that took."""
        pipeline = self._pipeline
        file = self._folder / "trajectories" / f"step_{steps.first_step:04d}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not self._algorithm.is_sampling:
            return [], 0.0
        start = time.perf_counter()
        if not file.exists():
            per_step = pipeline.rollout.items_per_step
            items = training_items(pipeline, self._workspace)
            items = items[(steps.first_step - 1) * per_step : steps.last_step * per_step]
            self._progress.on_phase(f"sampling {len(items) * pipeline.rollout.group_size} episodes")
            policy = str(self._policy(steps.index - 1)) if steps.index else self._start
            spec = make_training_spec(pipeline, step=steps.first_step, evidence={})
            with open_policy(pipeline, model=policy, logs=self._folder / LOGS) as run:
                new_groups = run(items, spec)
            write_trajectories(file, [trajectory for group in new_groups for trajectory in group])
        groups: list[list[Trajectory]] = []
        for trajectory in read_trajectories(file):
            if trajectory.sample_index == 0:  # the file may be of a session with another group_size
                groups.append([])
            groups[-1].append(trajectory)
        return groups, time.perf_counter() - start

    def _train(
        self,
        steps: TrainedRound,
        *,
        files: Sequence[Trajectory],
        groups: Sequence[Sequence[Trajectory]],
        seconds_rollout: float,
    ) -> None:
        """Train the round's policy, then write its steps to `metrics.jsonl`."""
        start_s = time.perf_counter()
        samples = [trajectory for group in groups for trajectory in group]
        lines: list[dict[str, float]] = []
        with tempfile.TemporaryDirectory() as folder:
            request: SftRequest
            if isinstance(self._algorithm, Dpo):
                names = _NAMES["preference"]
                facts, request = self.plan_preferences(steps, [*files, *samples])
            else:
                names = _NAMES["imitation"]
                facts, request = self.plan_imitation(steps, files=files, samples=samples, folder=Path(folder))
            facts |= _sampling_facts(groups)
            spec = make_training_spec(self._pipeline, step=steps.first_step, evidence={})
            schedules = {**horizon_metrics(self._pipeline, spec.max_turns), "temperature": spec.temperature}
            self._progress.on_phase(f"training from step {steps.first_step}")

            def write(values: Mapping[str, float]) -> None:
                nonlocal start_s
                seconds, start_s = time.perf_counter() - start_s, time.perf_counter()
                line = {names.get(key, key): value for key, value in values.items()}
                line |= {"step": steps.first_step + len(lines), "episodes": 0, "dropped": 0, **schedules}
                line |= {"seconds_rollout": 0.0, "seconds_update": seconds, "seconds": seconds}
                if not lines:  # the first step has the episodes, and what was selected from them
                    line |= facts
                    line |= {"seconds_rollout": seconds_rollout, "seconds": seconds + seconds_rollout}
                lines.append(line)
                self._progress.on_step(line)

            self._policy(steps.index).parent.mkdir(parents=True, exist_ok=True)
            train_apart(request, environment=environment_of(self._pipeline), on_step=write)
        file = self._folder / "metrics.jsonl"
        drop_steps_after(file, steps.first_step - 1)
        earlier = file.read_text() if file.exists() else ""
        write_atomically(file, earlier + "".join(json.dumps(line) + "\n" for line in lines))

    def plan_imitation(
        self, steps: TrainedRound, *, files: Sequence[Trajectory], samples: Sequence[Trajectory], folder: Path
    ) -> tuple[dict[str, float], SftRequest]:
        """What is imitated, in numbers and as a request; `folder` may be needed until it is carried out."""
        pipeline, algorithm = self._pipeline, self._algorithm
        assert isinstance(algorithm, Imitation)
        model, demonstrations, copies = self._start, list[Demonstration](), 1
        if algorithm.adds_to_original:
            model = pipeline.model
            if pipeline.warmup is not None:
                items = read_split(self._workspace, data=pipeline.data)
                self._progress.on_phase("playing the demonstrations")
                cloning = prepare_cloning(pipeline, items, folder=folder)
                model, demonstrations, copies = cloning.model, cloning.demonstrations, cloning.copies
        original = select(files, original=demonstrations, min_reward=algorithm.min_reward)
        selection = select(samples, original=original.rows, min_reward=algorithm.min_reward)
        if not selection.rows:
            raise WingspanError(
                f"there is nothing to imitate: none of {len(files) + len(samples)} episodes was good enough "
                f"(train.algorithm.min_reward {algorithm.min_reward}); lower it, or give a warm-up"
            )
        # The loss is a mean over the union of the original data and the good episodes, in which each has the
        # same weight: what has no renamings comes as often.
        num_renamed = len(demonstrations)
        rows = [*demonstrations, *(copies * selection.rows[num_renamed:])]
        request = SftRequest(**self._common(steps, model=model, rows=rows))
        facts: dict[str, float] = {
            "rows": len(rows),
            "rows_original": num_renamed + copies * (len(original.rows) - num_renamed),
            "chosen": original.chosen + selection.chosen,
            "duplicates": original.duplicates + selection.duplicates,
        }
        return facts, request

    def plan_preferences(
        self, steps: TrainedRound, trajectories: Sequence[Trajectory]
    ) -> tuple[dict[str, float], DpoRequest]:
        """The pairs, in numbers and as a request."""
        algorithm = self._algorithm
        assert isinstance(algorithm, Dpo)
        pairs = make_pairs(
            trajectories,
            win_threshold=algorithm.win_threshold,
            min_gap=algorithm.min_gap,
            pairs_per_item=algorithm.pairs_per_item,
        )
        if not pairs:
            raise WingspanError(
                f"there are no pairs: of {len(trajectories)} episodes, none has a reward of at least "
                f"{algorithm.win_threshold} and at least {algorithm.min_gap} more than another of its item; "
                "sample more (rollout.group_size), or lower train.algorithm.win_threshold"
            )
        rows: list[SupervisedRow] = []
        winners: list[list[int]] = []
        losers: list[list[int]] = []
        for pair in pairs:
            for numbers, trajectory in ((winners, pair.winner), (losers, pair.loser)):
                segments = rows_of(trajectory)
                numbers.append(list(range(len(rows), len(rows) + len(segments))))
                rows += segments
        return {"pairs": len(pairs)}, DpoRequest(
            **self._common(steps, model=self._start, rows=rows),
            winners=winners,
            losers=losers,
            beta=algorithm.beta,
        )

    def _common(self, steps: TrainedRound, *, model: str, rows: Sequence[SupervisedRow]) -> dict[str, Any]:
        pipeline, lora = self._pipeline, self._pipeline.train.lora
        return {
            **columns_of(rows),
            "model": model,
            "output": str(self._policy(steps.index)),
            "device": pipeline.backend.device,
            "seed": pipeline.seed,
            "steps": pipeline.train.steps_per_round,
            "batch_size": self._algorithm.batch_size,
            "lr": pipeline.train.lr,
            "micro_batch_tokens": pipeline.train.micro_batch_tokens,
            "lora": lora.model_dump(mode="json") if lora is not None else None,
        }


def _sampling_facts(groups: Sequence[Sequence[Trajectory]]) -> dict[str, float]:
    if not groups:
        return {}
    return {
        **summarise([trajectory for group in groups for trajectory in group]),
        "informative_groups": sum(map(is_informative, groups)) / len(groups),
    }
