"""A training process that is a function."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from agents.types import Trajectory
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.rollout.spec import RolloutSpec
from tasks.verl import checkpoints
from tasks.verl.actor import StepRecord
from tests.support.report_toy import make_failure


class ScriptedProcess:
    """Its steps have the metrics that `script` has for them, and its checkpoints nothing in them."""

    def __init__(self, script: Callable[[int], Mapping[str, float]]) -> None:
        self.is_launched = False
        self.step = 0
        self.calls: list[str] = []
        """The names of the calls that train."""
        self.steps_with_seeds: list[tuple[int, int]] = []
        """(step, seed) in order."""
        self.most_checkpoints = 0
        self._script = script

    def launch(self, pipeline: Pipeline, *, model: str, checkpoints: Path, episode_file: Path | None) -> None:
        self.is_launched = True
        self._seed = pipeline.seed
        self._folder = checkpoints

    def start(self, items: Sequence[Item]) -> None:
        self.step = max(checkpoints.complete_steps(self._folder), default=0)

    def run_step(self, *, save: bool, steps_to_keep: Collection[int]) -> StepRecord:
        self.calls.append("run_step")
        metrics = dict(self._script(self.step + 1))
        self.step += 1
        self.steps_with_seeds.append((self.step, self._seed))
        record = StepRecord(step=self.step, metrics=metrics, trajectories=[], updates=[])
        if save:
            self._save(record, steps_to_keep)
        return record

    def save_step(self, *, steps_to_keep: Collection[int]) -> None:
        self.calls.append("save_step")
        metrics = dict(self._script(self.step))
        record = StepRecord(step=self.step, metrics=metrics, trajectories=[], updates=[])
        self._save(record, steps_to_keep)

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        """Failures that name the step and the seed of the policy."""
        error = f"Scripted: step {self.step}, seed {self._seed}"
        return [[make_failure(item, error=error)] * spec.num_samples for item in items]

    def end(self, *, graceful: bool) -> None:
        self.is_launched = False

    def close(self) -> None: ...

    def _save(self, record: StepRecord, steps_to_keep: Collection[int]) -> None:
        folder = checkpoints.checkpoint_folder(self._folder, step=record.step)
        (folder / "actor" / "huggingface").mkdir(parents=True)
        (folder / "actor" / "huggingface" / "model.safetensors").write_text(f"{record.step} {self._seed}")
        record.write(folder)
        self.most_checkpoints = max(self.most_checkpoints, 1 + len(checkpoints.complete_steps(self._folder)))
        checkpoints.mark_complete(self._folder, step=record.step, steps_to_keep=steps_to_keep)
