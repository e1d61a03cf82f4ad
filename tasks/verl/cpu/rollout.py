"""verl's rollout backends `cpu` and `vllm-cpu`: the samplers' actors, their replica, the transfer of weights.

The process that runs all episodes asks these actors itself. verl's client would ask a load balancer which one
to take, at every turn: an actor and two calls more.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import ray
import torch
from cachetools import LRUCache
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError
from verl.workers.rollout import base as verl_rollout
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from agents.types import Completion, SamplingParams
from envs.types import Image
from tasks.errors import SamplerDied, actor_deaths
from tasks.verl.config import MAX_EPISODES

if TYPE_CHECKING:
    from verl.workers.config import RolloutConfig

BACKENDS = ("cpu", "vllm-cpu")
_MAX_OPENINGS = 1_024
"""The most openings of a client; a step has one for each of its items."""


def register() -> None:
    """Make `rollout.name=cpu` and `rollout.name=vllm-cpu` known to verl."""
    for backend in BACKENDS:
        verl_rollout._ROLLOUT_REGISTRY[(backend, "async")] = f"{__name__}.CpuRollout"
        RolloutReplicaRegistry.register(backend, lambda: CpuReplica)
    LLMServerManager._init_global_load_balancer = init_load_balancer


def _samplers(replica_rank: int, config: "RolloutConfig") -> list[str]:
    """The names of a replica's sampler actors."""
    count = config.engine_kwargs["cpu"]["samplers"]
    return [f"wingspan_cpu_sampler_{replica_rank}_{index}" for index in range(count)]


def _get_sampler(name: str) -> ActorHandle:
    """The actor of this name. Raises `SamplerDied` if it is dead: Ray forgets its name then."""
    try:
        return ray.get_actor(name)
    except ValueError as error:
        raise SamplerDied(f"the sampler died: {name} is no actor") from error


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """`CpuSampler` or `VllmSampler` actors, one core each. They have no device memory to free, so they never
    sleep."""

    async def launch_servers(self) -> None:
        """Start the actors. Raises `ConfigError` for a model that vLLM does not support."""
        from agents.samplers.cpu import CpuSampler
        from agents.samplers.vllm import VllmSampler, find_python

        sampler_class: type[CpuSampler | VllmSampler] = CpuSampler
        options: dict[str, object] = {}
        if self.config.name == "vllm-cpu":
            sampler_class = VllmSampler
            # the actor dies with vLLM, and is then a dead sampler like any other
            options = {"python": find_python(), "on_death": partial(os._exit, 1)}
        for name in _samplers(self.replica_rank, self.config):
            sampler = (
                ray.remote(sampler_class)
                .options(name=name, max_concurrency=self.max_concurrency, num_cpus=0)
                .remote(
                    self.model_config["path"],
                    max_sequences=self.config.max_num_seqs,
                    context_length=self.config.max_model_len,
                    seed=self.config.seed,
                    **options,
                )
            )
            self.servers.append(sampler)
        if self.config.name == "vllm-cpu":
            await asyncio.gather(*(sampler.start.remote() for sampler in self.servers))
        self._server_handle = self.servers[0]
        self._server_address = name

    async def wake_up(self) -> None: ...

    async def sleep(self) -> None: ...

    async def clear_kv_cache(self) -> None: ...

    async def start_profile(self, **options: object) -> None: ...

    async def stop_profile(self) -> None: ...


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """Sends the policy's weights from a training process to the samplers."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the samplers have released nothing."""

    async def release(self) -> None:
        """Do nothing: the samplers have no device memory."""

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **_: object,
    ) -> None:
        """Send the full weights, of policy version `global_steps`.

        Raises `SamplerDied`, or one of `actor_deaths`, if a sampler is gone.
        """
        if wire_format != "named_tensors":
            raise NotImplementedError(f"samplers on a CPU take named_tensors, not {wire_format!r}")
        # Every rank must exhaust the iterator: gathering a sharded tensor is a collective operation.
        state = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        rank = int(os.environ["RANK"])
        replica, shard = divmod(rank, self.config.tensor_model_parallel_size * self.config.data_parallel_size)
        if shard == 0:
            weights_of_step = ray.put(state)  # once for all samplers
            loads = [
                _get_sampler(name).load_weights.remote(weights_of_step, policy_version=global_steps or 0)
                for name in _samplers(replica, self.config)
            ]
            await asyncio.gather(*loads)


class ActorSampler:
    """A `Sampler` over the samplers' actors. All turns of an episode go to the same one, which has their KV
    cache, as do all episodes with the same prompt, which it computes once."""

    def __init__(self, samplers: Iterable[ActorHandle]) -> None:
        self._next_sampler = cycle(samplers)
        self._sampler_of: LRUCache[str, ActorHandle] = LRUCache(MAX_EPISODES)
        self._sampler_of_opening: LRUCache[tuple[int, ...], ActorHandle] = LRUCache(_MAX_OPENINGS)

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        """Raises what the sampler raised, and `SamplerDied` if it died, which no retry can fix."""
        if episode_id not in self._sampler_of:
            opening = tuple(prompt_ids)
            if opening not in self._sampler_of_opening:
                self._sampler_of_opening[opening] = next(self._next_sampler)
            self._sampler_of[episode_id] = self._sampler_of_opening[opening]
        answer = self._sampler_of[episode_id].sample.remote(
            list(prompt_ids), images=images, params=params, episode_id=episode_id
        )
        try:
            completion: Completion = await answer
        except asyncio.CancelledError:
            ray.cancel(answer)  # else the sampler would finish it
            raise
        except RayTaskError as error:
            raise error.cause from None  # Ray's message is a coloured traceback of the sampler's process
        except actor_deaths() as error:
            raise SamplerDied(f"the sampler died: {type(error).__name__}") from error
        return completion


verl_init_load_balancer = LLMServerManager._init_global_load_balancer


async def init_load_balancer(self: LLMServerManager) -> None:
    if self.rollout_config.name not in BACKENDS:
        await verl_init_load_balancer(self)
