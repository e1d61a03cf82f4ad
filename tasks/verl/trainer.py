"""verl's synchronous trainer, one training step a call.

What it changes of verl's own: advantages are those of `tasks/algorithms`, which sees whole conversations; a
step's segments are cut into equal mini-batches, however many segments there are (verl's have a fixed size,
and are filled up with padding), and a step with none to learn from is passed over. The loss
(`tasks/verl/loss.py`) is divided by what was *played*: episodes that are left out have gradient 0.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.debug import marked_timer
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.skip import SkipManager
from verl.workers.utils.padding import response_from_nested

from tasks.algorithms.algorithm import ActorCritic
from tasks.config.pipelines import Pipeline
from tasks.config.training import TrainSettings
from tasks.data.trajectories import sampled_tokens
from tasks.errors import Diverged
from tasks.rollout.spec import training_temperature
from tasks.rollout.teacher import Teacher
from tasks.verl import checkpoints
from tasks.verl.advantages import JoinedRows, estimate_advantages, rollout_weights
from tasks.verl.cpu.engine import WHOLE_CONVERSATIONS
from tasks.verl.loss import (
    DRAWS_SEED,
    OBSERVATION_TOKENS,
    PLAYED_EPISODES,
    PLAYED_TOKENS,
    TRAINED_TOKENS,
    set_critic_loss,
    set_loss,
)
from tasks.verl.rollout import RolloutManager, StepRollout
from tasks.verl.rows import count_mini_batches
from tasks.verl.step_update import StepUpdate

if TYPE_CHECKING:
    from omegaconf import DictConfig

_MUST_BE_FINITE = {
    "actor/pg_loss": "loss",
    "actor/kl_loss": "KL to the reference",
    "actor/entropy_loss": "entropy",
    "actor/observation_loss": "loss of observations",
    "actor/grad_norm": "gradient norm",
    "critic/vf_loss": "critic's loss",
    "critic/grad_norm": "critic's gradient norm",
}
"""The metrics that must be finite, by verl's names."""


class StepTrainer(PPOTrainerSync):  # type: ignore[misc]
    """`init()`, `attach()`, then `run_step()` again and again; `global_steps` counts finished steps."""

    def __init__(self, config: "DictConfig", pipeline: Pipeline) -> None:
        super().__init__(config)
        self._pipeline = pipeline
        self.curr_step_profile = False
        self.update: StepUpdate | None = None
        """Of the last step; None if it trained on nothing."""

    def init(self) -> None:
        """Start verl's processes, and load the last checkpoint if there is one."""
        super().init()
        pipeline = self._pipeline
        set_loss(self.actor_rollout_wg, pipeline.train, context_length=pipeline.rollout.context_length)
        if self.use_critic:
            set_critic_loss(self.critic_wg, pipeline.train, context_length=pipeline.rollout.context_length)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        # verl has set it to all steps of the training, and the schedule is of those that train the policy.
        self.config.actor_rollout_ref.actor.optim.total_training_steps = self._pipeline.train.policy_steps

    def attach(self, manager: RolloutManager, teacher: Teacher | None) -> None:
        """Play episodes through `manager`, and have them scored by `teacher`, if the algorithm has one;
        needed before the first step."""
        self.agent_loop_manager = manager
        self._teacher = teacher
        SkipManager.init(self.config)

    def run_step(
        self, *, save: bool, steps_to_keep: Collection[int] = ()
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Rollout, update, checkpoint if `save` (as `save` does), weights to the sampler.

        Returns (metrics, seconds), by verl's names. Raises `Diverged` if the update's loss or gradient is not
        finite, before the checkpoint and before the sampler has the weights.
        """
        self.global_steps += 1
        SkipManager.set_step(self.global_steps)
        # Log-probs are those of the distribution that was sampled from.
        rollout = self.config.actor_rollout_ref.rollout
        rollout.temperature = training_temperature(self._pipeline, step=self.global_steps)
        self.update = None
        metrics: dict[str, float] = {}
        self.timing_raw: dict[str, float] = {}
        batch = self.step(metrics, self.timing_raw)
        check_update(metrics, self._pipeline.train, step=self.global_steps)
        with marked_timer("ahead", self.timing_raw):
            self.agent_loop_manager.finish_ahead()
        if save:
            with marked_timer("save_checkpoint", self.timing_raw):
                self.save(steps_to_keep=steps_to_keep)
        self.on_step_end()
        if batch.keys:
            tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)
        return metrics, self.timing_raw

    def save(self, *, steps_to_keep: Collection[int] = ()) -> None:
        """Write verl's checkpoint of the last step; those of `steps_to_keep` are not deleted to make room."""
        folder = Path(self.config.trainer.default_local_dir)
        model = self.config.actor_rollout_ref.model.path
        checkpoints.make_room(folder, model=model, train=self._pipeline.train, steps_to_keep=steps_to_keep)
        self._save_checkpoint()

    def on_sample_end(self) -> None:
        if self._pipeline.train.async_ is None:  # else the servers are sampling ahead, and have no sleep
            super().on_sample_end()

    @property
    def _rollout(self) -> StepRollout:
        """The rollout of this step."""
        rollout: StepRollout | None = self.agent_loop_manager.last
        assert rollout is not None
        return rollout

    def _step_once(
        self, metrics: dict[str, object], timing_raw: dict[str, float], sample_batch_size: int
    ) -> object:
        if not self._rollout.trained:
            if keys := list((tq.kv_list("train") or {}).get("train", {})):  # the prompts of the step
                tq.kv_clear(keys=keys, partition_id="train")
            return KVBatchMeta(partition_id="train", keys=[], tags=[])
        return super()._step_once(metrics, timing_raw, sample_batch_size)

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return dp_size * count_mini_batches(
            self._rollout.num_rows, most=self._pipeline.train.mini_batches, workers=dp_size
        )

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, object]) -> KVBatchMeta:
        needs_squares = self._pipeline.train.online_algorithm.needs_sum_pi_squared
        batch.extra_info["calculate_sum_pi_squared"] = needs_squares
        batch = super()._compute_old_log_prob(batch, metrics)
        if needs_squares:
            if self.config.algorithm.rollout_correction.bypass_mode:  # verl has computed nothing
                temperature = self.config.actor_rollout_ref.rollout.temperature
                batch.extra_info.update({"compute_loss": False, "temperature": temperature})
                self.actor_rollout_wg.compute_log_prob(batch)
            fields = ["sum_pi_squared", "response_mask"]
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
            data["sum_pi_squared"] = response_from_nested(data["sum_pi_squared"], data["response_mask"])
            squares = data.select("sum_pi_squared")
            tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=squares)
        batch.extra_info["calculate_sum_pi_squared"] = False
        return batch

    def _compute_ref_log_prob(self, batch: KVBatchMeta, metrics: dict[str, object]) -> KVBatchMeta:
        batch = super()._compute_ref_log_prob(batch, metrics)
        # With adapters, the reference is the policy without them; all that follows is computed with them.
        batch.extra_info.pop("no_lora_adapter", None)
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, object]) -> KVBatchMeta:
        rollout = self._rollout
        fields = ["response_mask", "old_log_probs", "rollout_log_probs", "ref_log_prob", "values"]
        if self._pipeline.train.online_algorithm.needs_sum_pi_squared:
            fields.append("sum_pi_squared")
        has_trainers_log_probs = not self.config.algorithm.rollout_correction.bypass_mode
        if has_trainers_log_probs:
            fields.append("entropy")
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        output: dict[str, object] = {}
        rows = JoinedRows(batch.keys, data, rollout.trained)
        correction = self._pipeline.train.rollout_correction
        if correction is not None:
            output["rollout_is_weights"], correction_metrics = rollout_weights(correction, rows)
            metrics.update(correction_metrics)
        estimate = estimate_advantages(
            self._pipeline.train,
            rows,
            trajectories=rollout.trained,
            greedy_rewards=rollout.greedy_rewards,
            teacher_scores=self._ask_teacher(),
            num_played=rollout.sample.num_played,
            context_length=self._pipeline.rollout.context_length,
        )
        metrics.update(estimate.metrics)
        self.update = StepUpdate.collect(
            rows, estimate, trained=rollout.trained, has_trainers_log_probs=has_trainers_log_probs
        )
        fields_of_rows = TensorDict(output | estimate.fields, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields_of_rows)

    def _ask_teacher(self) -> dict[str, list[float]] | None:
        if self._teacher is None:
            return None
        temperature = self.config.actor_rollout_ref.rollout.temperature
        return self._teacher.score(self._rollout.trained, temperature=temperature)

    def _update_critic(self, batch: KVBatchMeta, metrics: dict[str, object]) -> KVBatchMeta:
        algorithm = self._pipeline.train.algorithm
        assert isinstance(algorithm, ActorCritic)
        batch.extra_info.update(self._options_of(batch) | {"epochs": algorithm.critic.epochs})
        output = self.critic_wg.train_mini_batch(batch).get()["metrics"]
        metrics.update(reduce_metrics(rename_dict(output, "critic/")))
        return batch

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, object]) -> KVBatchMeta:
        batch.extra_info.update(self._options_of(batch))
        output = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        metrics.update(reduce_metrics(output))
        return batch

    def _options_of(self, batch: KVBatchMeta) -> dict[str, object]:
        return update_options(
            self._pipeline,
            rows=len(batch.keys),
            played_tokens=self._rollout.sample.played_tokens,
            trained_tokens=sum(map(sampled_tokens, self._rollout.trained.values())),
            observation_tokens=self._rollout.observation_tokens,
            step=self.global_steps,
            temperature=self.config.actor_rollout_ref.rollout.temperature,
        )


def check_update(metrics: Mapping[str, float], train: TrainSettings, *, step: int) -> None:
    """Raise `Diverged` if a loss or gradient of the step is NaN or infinite; `metrics` by verl's names."""
    for key, name in _MUST_BE_FINITE.items():
        value = metrics.get(key, 0.0)
        if not math.isfinite(value):
            remedy = f"train.lr ({train.lr:g})"
            if isinstance(train.algorithm, ActorCritic) and key.startswith("critic/"):
                remedy = f"train.algorithm.critic.lr ({train.algorithm.critic.lr:g})"
            raise Diverged(
                f"step {step}: the {name} is {value}; lower {remedy}. "
                "Neither a checkpoint nor the sampler has the weights of this step"
            )


def update_options(
    pipeline: Pipeline,
    *,
    rows: int,
    played_tokens: int,
    trained_tokens: int,
    observation_tokens: int,
    step: int,
    temperature: float,
) -> dict[str, object]:
    """What verl's worker is told beside the `rows` of a step, by verl's names.

    `rows` are a multiple of the mini-batches; `played_tokens` were sampled in the step, in episodes that are
    not trained on, too; `trained_tokens` of the rows are the policy's, `observation_tokens` the
    environment's; `temperature` is the one that the policy's were sampled at.
    """
    train, rollout = pipeline.train, pipeline.rollout
    mini_batches = count_mini_batches(rows, most=train.mini_batches, workers=pipeline.backend.workers)
    return {
        "calculate_entropy": train.entropy_coef > 0,
        "distillation_use_topk": False,
        "distillation_only": False,
        PLAYED_EPISODES: rollout.items_per_step * rollout.group_size / mini_batches,
        PLAYED_TOKENS: played_tokens / mini_batches,
        TRAINED_TOKENS: trained_tokens / mini_batches,
        OBSERVATION_TOKENS: observation_tokens / mini_batches,
        WHOLE_CONVERSATIONS: train.online_algorithm.loss.needs_whole_conversations,
        "mini_batch_size": rows // mini_batches,
        "epochs": train.epochs,
        "seed": pipeline.seed + step,
        DRAWS_SEED: pipeline.seed + step,
        "dataloader_kwargs": {"shuffle": False},
        "temperature": temperature,
    }
