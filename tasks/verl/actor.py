"""The training process: a Ray actor that holds verl's trainer, sampler and environments between calls.

Owns the order of a start-up and the names of the numbers of a step. What a round is, and what to do
when this process dies, is `tasks/stages/train.py`'s.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psutil

from agents import process_memory
from agents.huggingface.files import load_tokenizer
from agents.types import Trajectory
from envs.runtime.metrics import PoolMetrics
from envs.types import Item
from tasks.algorithms.algorithm import ActorCritic
from tasks.cluster.placement import Placement
from tasks.config.pipelines import Pipeline
from tasks.data.trajectories import read_trajectories, write_trajectories
from tasks.data.updates import TrajectoryUpdate, read_updates, write_updates
from tasks.rollout.history import History
from tasks.rollout.spec import RolloutSpec, horizon_metrics
from tasks.verl import checkpoints
from tasks.verl.queue import start_queue

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tasks.rollout.served_policy import ServedAt
    from tasks.verl.cpu.flops import CpuSpeed

SAMPLED_ITEMS = 2
"""Groups whose trajectories are kept of every step, to look at."""

_METRICS, _TRAJECTORIES, _UPDATES = "step.json", "trajectories.jsonl", "updates.jsonl"
"""The files in a checkpoint with the record of its step."""

VERL_METRICS = {
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "kl": "actor/ppo_kl",
    "kl_reference": "actor/kl_loss",
    "observation_loss": "actor/observation_loss",
    "clip_fraction": "actor/pg_clipfrac",
    "lr": "actor/lr",
    "entropy_exact": "actor/entropy",
    "value_loss": "critic/vf_loss",
    "value_clip_fraction": "critic/vf_clipfrac",
    "value_mean": "critic/values/mean",
    "explained_variance": "critic/vf_explained_var",
    "critic_grad_norm": "critic/grad_norm",
    "critic_lr": "critic/lr",
    "mfu": "actor/mfu",
    "rollout_probs_diff_mean": "training/rollout_probs_diff_mean",
    "rollout_probs_diff_max": "training/rollout_probs_diff_max",
    "importance_mean": "rollout_corr/mean",
    "importance_capped": "rollout_corr/capped",
    "importance_rejected": "rollout_corr/rejected",
    "distill/kl": "distill/kl",
    "distill/teacher_log_prob": "distill/teacher_log_prob",
    "distill/scored": "distill/scored",
}
_PHASES = {
    "update": ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor"),
    "weight_sync": ("update_weights",),
    "checkpoint": ("save_checkpoint",),
    "wait": ("ahead",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One training step, to be written down."""

    step: int
    metrics: dict[str, float]
    """`summarise`'s keys; `informative_groups` (share), `replaced_groups` (by dynamic sampling),
    `added_episodes`, `added_turns` and `added_tokens` (totals of the valid episodes that were sampled besides
    the first-drawn ones, by dynamic sampling or greedily), `added_dropped` and `added_dropped_<ErrorClass>`
    (of those of them that failed), `items_<pool>` (drawn from each pool of the
    curriculum), `trained` (episodes), `staleness` (of the policy that sampled, in steps), `entropy` (mean
    negative log-prob of the sampled tokens: unbiased, at the training temperature; none without a token),
    `loss`, `grad_norm`, `kl` (to the policy that sampled, nats) and `clip_fraction`, both means over the
    tokens that are trained on, `kl_reference`, `observation_loss` (nats per token of the environment), `lr`;
    `tokens_per_s` of the rollout; `horizon` and `horizon_<part>` (`horizon_metrics`), `temperature`,
    `policy_version`; `seconds` and `seconds_<phase>`; `idle_cores` (the share of the machine's core-seconds
    in which a core was idle), `mfu` (the share of the FLOPs that the machine could have done during the
    update that were needed for it; on GPUs verl's estimate). With a critic: `value_loss`,
    `value_clip_fraction` (tokens weighed by the algorithm's `return_weights`), `value_mean` and
    `explained_variance` (the share of the returns' variance that the values before the update explain),
    `critic_grad_norm`, `critic_lr`. With a teacher: `distill/kl` (the estimate of the KL of the policy that
    sampled from the teacher, nats per token), `distill/teacher_log_prob` (mean over the same tokens) and
    `distill/scored` (the share of the trained conversations that these are of). With vLLM or
    `train.rollout_correction`, where the trainer computes the log-probs of what was sampled once more, over
    the tokens that are trained on: `rollout_probs_diff_mean` and `_max`, between the trainer's and the
    sampler's probabilities; `importance_mean`, the weight of a token (`train.rollout_correction`),
    `importance_capped` and `importance_rejected`, the shares of tokens whose ratio was cut and set to 0;
    `entropy_exact`, of the policy's whole distributions (nats, mean over rows). Otherwise verl takes the
    sampler's log-probs as they are and computes none of these."""
    trajectories: list[Trajectory]
    """The groups of the step's first items."""
    updates: list[TrajectoryUpdate]
    """The updates of `trajectories`, in their order."""
    raise_reason: str = ""
    """The reason, as in `StepSample`."""

    @property
    def line(self) -> dict[str, object]:
        """The step's line in `train/metrics.jsonl`; `horizon_reason` is there if the horizon was raised."""
        reason = {"horizon_reason": self.raise_reason} if self.raise_reason else {}
        return {"step": self.step, **self.metrics, **reason}

    def write(self, folder: Path) -> None:
        """Write it to the step's checkpoint: who was to write it down may be gone before it has."""
        values = {"step": self.step, "metrics": self.metrics, "raise_reason": self.raise_reason}
        (folder / _METRICS).write_text(json.dumps(values))
        write_trajectories(folder / _TRAJECTORIES, self.trajectories)
        write_updates(folder / _UPDATES, self.updates)

    @classmethod
    def read(cls, folder: Path) -> "StepRecord":
        """What `write` wrote to a whole checkpoint."""
        values = json.loads((folder / _METRICS).read_text())
        trajectories = read_trajectories(folder / _TRAJECTORIES)
        return cls(**values, trajectories=trajectories, updates=read_updates(folder / _UPDATES))


class Trainer:
    """Runs as a Ray actor; `start` first."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        model: str,
        checkpoints: Path,
        placement: Placement,
        serve: "ServedAt | None" = None,
        episode_file: Path | None = None,
    ) -> None:
        """`model`: the policy to start from where there is no checkpoint; `serve`: where the policy is served
        to others while it is trained; `episode_file`: as `RolloutManager` takes it."""
        self._pipeline = pipeline
        self._placement = placement
        self._model = model
        self._checkpoints = checkpoints
        self._serve = serve
        self._episode_file = episode_file
        self._config: DictConfig | None = None
        self._record: StepRecord | None = None
        self._cpu_speed: CpuSpeed | None = None

    def prepare(self) -> None:
        """The part of a start-up that needs no model: imports, and TransferQueue's processes."""
        with process_memory.no_garbage_collection(), ThreadPoolExecutor(1) as side:
            import agents.huggingface.models  # noqa: F401  # before others import transformers
            from tasks.verl import queue_actors
            from tasks.verl.config import verl_config

            queue_actors.apply()
            config = verl_config(
                self._pipeline, model=self._model, checkpoints=self._checkpoints, placement=self._placement
            )
            # Its processes start while this one imports verl's trainer.
            queue = side.submit(start_queue, config.transfer_queue)
            import tasks.verl.rollout
            import tasks.verl.trainer  # noqa: F401

            self._queue_watch = queue.result()
        self._config = config

    def start(self, items: Sequence[Item]) -> int:
        """Start verl's processes and load the checkpoint that `checkpoints.resume` chose; returns its step, 0
        for none.

        `items`: as `StepSampler` takes them. Does what `prepare` has not done yet. From here on the model
        must exist.
        """
        if self._config is None:
            self.prepare()
        from verl.utils.config import validate_config

        from tasks.rollout.teacher import make_teacher
        from tasks.verl.client import make_sampler
        from tasks.verl.rollout import RolloutManager
        from tasks.verl.trainer import StepTrainer
        from tasks.verl.vision import verl_processor

        train, steps = self._pipeline.train, checkpoints.complete_steps(self._checkpoints)
        if not steps or steps[-1] < train.steps:
            # now, not after the steps up to it
            protected_steps = steps if train.watch.on_collapse == "rewind" else ()
            checkpoints.make_room(
                self._checkpoints, model=self._model, train=train, steps_to_keep=protected_steps
            )
        validate_config(
            self._config,
            use_reference_policy=train.kl is not None,
            use_critic=isinstance(train.algorithm, ActorCritic),
        )
        tokenizer = load_tokenizer(self._model)
        teacher = make_teacher(self._pipeline, model=self._model, tokenizer=tokenizer)
        self._trainer = StepTrainer(self._config, self._pipeline)
        self._trainer.init()
        self._manager = RolloutManager(
            self._pipeline,
            items=items,
            sampler=make_sampler(self._trainer.llm_server_manager),
            tokenizer=tokenizer,
            processor=verl_processor(self._model),
            history=self._read_history(),
            episode_file=self._episode_file,
        )
        self._trainer.attach(self._manager, teacher)
        if self._pipeline.backend.device == "cpu":
            from tasks.verl.cpu.engine import threads_per_process
            from tasks.verl.cpu.flops import CpuSpeed

            workers = self._pipeline.backend.workers
            threads = workers * threads_per_process(workers)
            self._cpu_speed = CpuSpeed.measure(Path(self._model), threads=threads)
        if step := int(self._trainer.global_steps):
            self._manager.restore_ahead(checkpoints.checkpoint_folder(self._checkpoints, step=step))
        if self._serve is not None:
            self._manager.serve(self._serve)
        return int(self._trainer.global_steps)

    def run_step(self, *, save: bool, steps_to_keep: Collection[int] = ()) -> StepRecord:
        """The next training step, with a checkpoint at its end if `save`.

        `steps_to_keep`: checkpoints that are kept besides the newest.
        """
        from tasks.verl.step_update import list_updates

        start_time, cores_before = time.perf_counter(), psutil.cpu_times()
        verl_metrics, verl_seconds = self._trainer.run_step(save=save, steps_to_keep=steps_to_keep)
        self._manager.on_new_weights()
        step = int(self._trainer.global_steps)
        rollout = self._manager.last
        assert rollout is not None
        metrics = rollout.sample.metrics | {
            "informative_groups": rollout.num_informative / len(rollout.sample.groups),
            "trained": len(rollout.trained),
            **horizon_metrics(self._pipeline, rollout.sample.spec.max_turns),
            **_environments(rollout.environments),
            "policy_version": step - 1,
            "seconds": time.perf_counter() - start_time,
        }
        metrics |= {
            name: float(verl_metrics[key]) for name, key in VERL_METRICS.items() if key in verl_metrics
        }
        metrics["idle_cores"] = _idle_share(cores_before, psutil.cpu_times())
        if self._cpu_speed is not None and (update_s := verl_seconds.get("update_actor")):
            passes = self._pipeline.train.epochs
            metrics["mfu"] = self._cpu_speed.utilization(rollout.work, passes=passes, seconds=update_s)
        for phase, parts in _PHASES.items():
            metrics[f"seconds_{phase}"] = sum(verl_seconds.get(part, 0.0) for part in parts)
        trajectories = [t for group in rollout.sample.groups[:SAMPLED_ITEMS] for t in group]
        record = StepRecord(
            step=step,
            metrics=metrics,
            trajectories=trajectories,
            updates=list_updates(self._trainer.update, trajectories),
            raise_reason=rollout.sample.raise_reason,
        )
        self._record = record
        if save:
            self._complete_checkpoint(steps_to_keep)
        return record

    def save_step(self, *, steps_to_keep: Collection[int] = ()) -> None:
        """Write the checkpoint of the last step, which was run without one; no step follows.

        `steps_to_keep` as for `run_step`.
        """
        self._manager.finish_ahead()
        self._trainer.on_sample_end()  # the sampler leaves its memory free, as when a step is saved
        self._trainer.save(steps_to_keep=steps_to_keep)
        self._complete_checkpoint(steps_to_keep)
        self._trainer.on_step_end()  # the policy's server answers the requests that were held back
        self._manager.on_new_weights()

    def _complete_checkpoint(self, steps_to_keep: Collection[int]) -> None:
        """Add to verl's checkpoint of the last step what is ours, and record that it is whole."""
        rollout, record = self._manager.last, self._record
        assert rollout is not None
        assert record is not None
        folder = checkpoints.checkpoint_folder(self._checkpoints, step=record.step)
        record.write(folder)
        rollout.sample.history.write(folder)
        self._manager.save_ahead(folder)
        checkpoints.mark_complete(self._checkpoints, step=record.step, steps_to_keep=steps_to_keep)

    def _read_history(self) -> History:
        step = int(self._trainer.global_steps)
        folder = checkpoints.checkpoint_folder(self._checkpoints, step=step)
        return History.read(folder) if step else History()

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[list[Trajectory]]:
        """`RolloutRunner.run` with the policy as it is; nothing is trained."""
        return self._manager.run_rollout(items, spec)

    def stop(self) -> None:
        """End the environments and TransferQueue; the rest ends with this process."""
        import transfer_queue as tq

        self._manager.close()
        self._queue_watch.stop()
        tq.close()


def _idle_share(before: NamedTuple, after: NamedTuple) -> float:
    """The share of idle time between two results of `psutil.cpu_times`."""
    spent = {name: getattr(after, name) - getattr(before, name) for name in after._fields}
    total = sum(spent.values())
    return (spent["idle"] + spent.get("iowait", 0.0)) / total if total > 0 else 0.0


def _environments(pools: Mapping[str, PoolMetrics]) -> dict[str, float]:
    return {
        f"{metric}/{name}": value
        for name, pool in pools.items()
        for metric, value in (
            ("envs_live", pool.live),
            ("envs_created", pool.created),
            ("envs_replaced", pool.replaced),
            ("env_step_seconds", pool.step.mean),
        )
    }
