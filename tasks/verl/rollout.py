"""verl's rollout manager, over the project's own episodes.

It samples a step's groups (`tasks/rollout/step.py`) through whatever server verl runs, and puts the episodes
that are trained on into verl's TransferQueue. Unlike verl's own, it runs all episodes in one event loop, and
returns when the last one has ended. `tasks/verl/rows.py` turns episodes into rows for the trainer.
"""

import asyncio
import logging
import math
import pickle
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import Dataset

from agents.prompting.images import decode_image
from agents.samplers.sampler import Sampler
from agents.types import Completion, FinishReason, SamplingParams, Trajectory
from envs.errors import ConfigError, SamplerFailed, describe
from envs.runtime.metrics import PoolMetrics
from envs.types import Image, Item
from tasks.config.pipelines import Pipeline
from tasks.data.trajectories import is_fresh, is_informative, is_usable
from tasks.errors import Diverged, NoEpisodes, SamplerDied, actor_deaths, names_dead_engine
from tasks.rollout.current_episode import EpisodeWriter
from tasks.rollout.history import History
from tasks.rollout.runner import make_runner
from tasks.rollout.served_policy import ServedAt, ServedPolicy
from tasks.rollout.spec import RolloutSpec
from tasks.rollout.step import Group, StepSample, StepSampler
from tasks.verl.config import needs_uncut_conversations
from tasks.verl.cpu.flops import Work, count_work
from tasks.verl.rows import TrainingRow, fields_of, observation_tokens, parent_key, rows_of, tag_of, trainable

if TYPE_CHECKING:
    from tensordict import TensorDict
    from transformers import PreTrainedTokenizerBase, ProcessorMixin
    from verl.workers.rollout.llm_server import LLMServerClient

T = TypeVar("T")

_AHEAD = "ahead.pickle"
"""The file in a checkpoint with the `StepSample` of the next step, where `train.async` has sampled it
ahead."""

_log = logging.getLogger(__name__)


class ItemNumbers(Dataset[dict[str, int]]):
    """verl's `data.custom_cls`: a row is its own number, and stands for one group of a step.

    Which item it is, `StepSampler` decides, so that none travels through verl. verl counts prompts by
    `raw_prompt`.
    """

    def __init__(self, *, max_samples: int, **_: object) -> None:
        self._count = max_samples

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, int]:
        return {"raw_prompt": number}


class VerlSampler:
    """A `Sampler` over verl's client of vLLM's servers."""

    def __init__(self, client: "LLMServerClient") -> None:
        self._client = client

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """One completion; raises `SamplerDied` if the server or its engine died, which no retry can fix."""
        from ray.exceptions import RayError

        try:
            output = await self._client.generate(
                episode_id,
                # As the model sees them; verl's server folds what stands for an image into one token again.
                prompt_ids=list(prompt_ids),
                image_data=[decode_image(image) for image in images] or None,
                sampling_params={
                    "max_tokens": params.max_tokens,
                    "temperature": params.temperature,
                    "top_p": params.top_p,
                    "top_k": params.top_k or -1,
                    "stop_token_ids": list(params.stop_token_ids),
                    "stop": list(params.stop),
                    "repetition_penalty": 1.0,
                    "logprobs": True,
                },
            )
        except actor_deaths() as error:
            raise SamplerDied(f"the sampler died: {type(error).__name__}") from error
        except RayError as error:
            if names_dead_engine(error):
                raise SamplerDied("the sampler's engine died: EngineDeadError") from error
            raise
        if not output.token_ids or output.log_probs is None:
            raise SamplerFailed(f"{episode_id}: no tokens came back ({output.stop_reason})")
        ids = list(output.token_ids)
        return Completion(
            token_ids=tuple(ids),
            logprobs=tuple(output.log_probs),
            # A stop text is none of the tokens: who asked for it finds it (`agents/samplers/stop_texts.py`).
            finish_reason=FinishReason.STOP if ids[-1] in params.stop_token_ids else FinishReason.LENGTH,
            # Servers that no trainer has given weights to have no step.
            policy_version=output.extra_fields["global_steps"] or 0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRollout:
    """What was played for one training step."""

    sample: StepSample
    trained: Mapping[str, Trajectory]
    """The trajectories that were handed to the trainer, by the key of their rows without the segment's
    number."""
    num_rows: int
    """The number of their segments."""
    observation_tokens: int
    """The tokens that the environment wrote in the trajectories that were handed to the trainer."""
    work: Work
    """The work of one pass over what was handed to the trainer."""
    greedy_rewards: Mapping[str, float]
    """`sample.greedy_rewards`, by the group's uid."""
    num_informative: int
    """The number of `sample.groups` with rewards that differ."""
    environments: Mapping[str, PoolMetrics]
    """The environments by name, at the end of the rollout."""


class RolloutManager:
    """Plays episodes for verl's trainer, in the trainer's process."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        items: Sequence[Item],
        sampler: Sampler,
        tokenizer: "PreTrainedTokenizerBase",
        processor: "ProcessorMixin | None" = None,
        history: History,
        episode_file: Path | None = None,
    ) -> None:
        """`items`, `history`: as `StepSampler` takes them; `processor`: of a vision-language model, as
        `verl_processor` loads it; `episode_file`: where an `EpisodeWriter` writes, for a terminal. Raises
        `ConfigError` for a tokenizer by which an observation loss cannot be computed."""
        if pipeline.train.observation_loss > 0 and getattr(tokenizer, "backend_tokenizer", None) is None:
            raise ConfigError(
                f"train.observation_loss {pipeline.train.observation_loss}: {type(tokenizer).__name__} does "
                "not say which characters a token has, so observations cannot be told from the chat "
                "template; use a model with a fast tokenizer (tokenizer.json)"
            )
        self._pipeline = pipeline
        self._sampler = sampler
        self._tokenizer = tokenizer
        self._processor = processor
        self._runner = make_runner(pipeline, sampler=sampler, tokenizer=tokenizer, processor=processor)
        self._writer = None if episode_file is None else EpisodeWriter(episode_file, pipeline)
        self._step_sampler = StepSampler(pipeline, items, self._play, history=history)
        self._server: ServedPolicy | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True).start()
        self._ahead: Future[StepSample] | None = None
        self.last: StepRollout | None = None
        self._warming = self._warm_up()

    def generate_sequences(self, prompts: "TensorDict") -> None:
        """Play a step's groups and put them into TransferQueue; returns when all is there.

        `prompts`: verl's batch, with a `uid` for each row and one `global_steps`.
        Raises `NoEpisodes` if every episode failed, `Diverged` if a log-prob is not a number, `SamplerDied`
        if the sampler is gone, and `ConfigError` as `check_uncut`.
        """
        import transfer_queue as tq

        step = int(prompts["global_steps"])
        uids = [str(uid) for uid in prompts["uid"]]
        sample = self._take_sample(step)
        if self._pipeline.train.async_ is None and self._server is not None:
            self._run(self._server.pause())  # the trainer goes on with the sampler asleep
        trajectories = [t for group in (*sample.groups, *sample.batch) for t in group]
        if not any(map(is_usable, trajectories)):
            raise NoEpisodes(f"step {step}: {why_none(trajectories)}")
        check_log_probs(sample.batch, step=step, lr=self._pipeline.train.lr)
        train, context_length = self._pipeline.train, self._pipeline.rollout.context_length
        oldest_version = step - 1 - (train.async_.staleness if train.async_ else 0)
        greedy_rewards = {
            uid: reward for uid, reward in zip(uids, sample.greedy_rewards, strict=True) if reward is not None
        }
        trained_groups = [
            trainable(
                [t for t in group if is_fresh(t, oldest_version=oldest_version)],
                train,
                context_length=context_length,
            )
            if uid in greedy_rewards or not train.online_algorithm.needs_greedy
            else []
            for uid, group in zip(uids, sample.batch, strict=True)
        ]
        rows = [row for uid, group in zip(uids, trained_groups, strict=True) for row in rows_of(uid, group)]
        if needs_uncut_conversations(self._pipeline):
            check_uncut(rows, loss=train.online_algorithm.loss.name)
        if rows:
            tq.kv_batch_put(
                keys=[row.key for row in rows],
                fields=fields_of(rows, self._processor, with_observations=train.observation_loss > 0),
                tags=[tag_of(row, step=step) for row in rows],
                partition_id="train",
            )
        tq.kv_batch_put(keys=uids, partition_id="train", tags=[{"status": "finished"} for _ in uids])
        self.last = StepRollout(
            sample=sample,
            trained={parent_key(row.key): row.trajectory for row in rows},
            num_rows=len(rows),
            observation_tokens=observation_tokens(rows),
            work=count_work(rows),
            greedy_rewards=greedy_rewards,
            num_informative=sum(map(is_informative, sample.groups)),
            environments=self._runner.environments,
        )
        if train.async_ is not None and step < train.steps:
            self._ahead = asyncio.run_coroutine_threadsafe(self._step_sampler.sample(step + 1), self._loop)
        else:
            self._warming = self._warm_up()  # while the trainer computes

    def _take_sample(self, step: int) -> StepSample:
        """The episodes of `step`: those that were sampled ahead, or new ones."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return self._run(self._step_sampler.sample(step))
        sample = ahead.result()
        assert sample.step == step
        return sample

    def finish_ahead(self) -> None:
        """Wait for the episodes that are sampled ahead, and hold back the requests of others; to be called
        before the sampler sleeps or its weights change.

        An episode is therefore sampled by one policy, and which one is a function of its step. Raises
        `SamplerDied` if the sampler is gone.
        """
        if self._ahead is not None:
            self._ahead.result()
        if self._server is not None:
            self._run(self._server.pause())

    def save_ahead(self, folder: Path) -> None:
        """Write the episodes that were sampled ahead to a checkpoint's `folder`, whose policy is newer than
        theirs."""
        if self._ahead is not None:
            (folder / _AHEAD).write_bytes(pickle.dumps(self._ahead.result()))

    def restore_ahead(self, folder: Path) -> None:
        """Go on with the episodes that `save_ahead` wrote, if it did, and if they were drawn by this seed: a
        training that was rewound to here draws others, with the policy of the checkpoint."""
        if self._pipeline.train.async_ is not None and (folder / _AHEAD).exists():
            sample: StepSample = pickle.loads((folder / _AHEAD).read_bytes())
            if sample.seed != self._pipeline.seed:
                return
            self._step_sampler.continue_after(sample)
            self._ahead = Future()
            self._ahead.set_result(sample)

    def run_rollout(self, items: Sequence[Item], spec: RolloutSpec) -> list[Group]:
        """`RolloutRunner.run`, for callers that wait."""
        return self._run(self._play(items, spec))

    async def _play(self, items: Sequence[Item], spec: RolloutSpec) -> list[Group]:
        if self._writer is None:
            return await self._runner.run(items, spec)
        return await self._runner.run(items, spec, self._writer.callbacks(spec))

    def serve(self, address: ServedAt) -> None:
        """Serve the policy to others, too, but for the time from a step's last episode to `on_new_weights`.

        Raises `ConfigError` where that address cannot be had.
        """
        server = ServedPolicy(
            self._pipeline,
            sampler=self._sampler,
            tokenizer=self._tokenizer,
            address=address,
            processor=self._processor,
        )
        self._run(server.start())
        self._server = server

    def on_new_weights(self) -> None:
        """Serve the policy again: called when a step has ended and the sampler has its weights."""
        if self._server is not None:
            self._run(self._server.resume())

    def close(self) -> None:
        """Close the environments and end the event loop."""
        if self._server is not None:
            self._run(self._server.close())
        self._warming.cancel()
        if self._ahead is not None:
            self._ahead.cancel()
        self._run(self._runner.close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _warm_up(self) -> Future[None]:
        warming = asyncio.run_coroutine_threadsafe(self._runner.warm_up(), self._loop)
        warming.add_done_callback(_log_failure)
        return warming

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def why_none(trajectories: Sequence[Trajectory]) -> str:
    """Why none of a step's episodes can be trained on, with the remedy where there is one here."""
    errors = [t.error for t in trajectories if t.error is not None]
    if errors:
        return f"no episode was played to its end; {len(errors)} failed, the first of them by {errors[0]}"
    shortest = min(len(t.prompt_ids) for t in trajectories)
    reasons = ", ".join(sorted({t.stop_reason for t in trajectories}))
    return (
        f"the policy had no turn in any of {len(trajectories)} episodes ({reasons}): their prompts have "
        f"{shortest} tokens or more; raise rollout.context_length"
    )


def check_log_probs(groups: Iterable[Group], *, step: int, lr: float) -> None:
    """Raise `Diverged` if a sampled token's log-prob is NaN or infinite."""
    for trajectory in chain.from_iterable(groups):
        for turn in trajectory.turns:
            for value in turn.completion.logprobs:
                if not math.isfinite(value):
                    raise Diverged(
                        f"step {step}: the log-prob of a sampled token is {value} "
                        f"({trajectory.where}); lower train.lr ({lr:g})"
                    )


def check_uncut(rows: Iterable[TrainingRow], *, loss: str) -> None:
    """Raise `ConfigError` for a conversation of several segments. `check_pipeline` refuses what is known to
    cut them; this is for tools whose annotations do not say that they return a `Summary`."""
    for row in rows:
        if row.number > 0:
            raise ConfigError(
                f"train.algorithm.loss {loss}: its ratio is that of a whole conversation, and that of "
                f"{row.trajectory.where}, was cut into segments, which fall into different mini-batches; "
                "leave out the tool that returns a Summary, use another loss, or on a CPU mini_batches: 1 "
                "and workers: 1"
            )


def _log_failure(warming: Future[None]) -> None:
    """Log the failure, which is no episode's yet: the next to need an environment meets the same failure, and
    counts it."""
    if not warming.cancelled() and (error := warming.exception()) is not None:
        _log.warning("environments cannot be started ahead: %s", describe(error))
