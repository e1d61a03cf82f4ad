"""verl's rollout backends `cpu` and `vllm-cpu`: the samplers' actors, their replica, the transfer of weights.

verl asks a load balancer for a server at every turn. Here an episode stays on one server, which the process
that runs all episodes chooses itself: this saves an actor and two calls per turn.
"""

import asyncio
import os
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from typing import Any

import ray
import torch
from cachetools import LRUCache
from ray.exceptions import RayTaskError
from verl.workers.rollout import base as verl_rollout
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from agents.types import SamplingParams
from tasks.errors import SamplerDied
from tasks.verl.config import MAX_EPISODES

BACKENDS = ("cpu", "vllm-cpu")
_MAX_OPENINGS = 1_024
"""Of a client; a step has one for each of its items."""


def register() -> None:
    """Make `rollout.name=cpu` and `rollout.name=vllm-cpu` known to verl."""
    for backend in BACKENDS:
        verl_rollout._ROLLOUT_REGISTRY[(backend, "async")] = f"{__name__}.CpuRollout"
        RolloutReplicaRegistry.register(backend, lambda: CpuReplica)
    LLMServerManager._init_global_load_balancer = init_load_balancer
    LLMServerManager.get_client = get_client


def _samplers(replica_rank: int, config: Any) -> list[str]:
    """The names of a replica's sampler actors."""
    count = config.engine_kwargs["cpu"]["samplers"]
    return [f"wingspan_cpu_sampler_{replica_rank}_{index}" for index in range(count)]


def _get_sampler(name: str) -> Any:
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
        options: dict[str, Any] = {}
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

    async def start_profile(self, **options: Any) -> None: ...

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
        **_: Any,
    ) -> None:
        """Send the full weights, of policy version `global_steps`.

        Raises `SamplerDied`, or Ray's `RayActorError`, if a sampler is gone.
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


class CpuServerClient(LLMServerClient):  # type: ignore[misc]
    """Calls the samplers directly. All turns of an episode go to the same sampler, which has their KV cache,
    as do all episodes with the same prompt, which it computes once."""

    def __init__(self, config: Any, servers: list[Any]) -> None:
        super().__init__(config)
        self._next_server = cycle(servers)
        self._server_of: LRUCache[str, Any] = LRUCache(MAX_EPISODES)
        self._server_of_opening: LRUCache[tuple[int, ...], Any] = LRUCache(_MAX_OPENINGS)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        """verl's method; `request_id` is the episode's. Raises what the sampler raised."""
        if request_id not in self._server_of:
            opening = tuple(prompt_ids)
            if opening not in self._server_of_opening:
                self._server_of_opening[opening] = next(self._next_server)
            self._server_of[request_id] = self._server_of_opening[opening]
        answer = self._server_of[request_id].sample.remote(
            prompt_ids,
            params=SamplingParams(
                max_tokens=sampling_params["max_tokens"],
                temperature=sampling_params["temperature"],
                top_p=sampling_params["top_p"],
                top_k=max(0, sampling_params["top_k"]),
                stop_token_ids=tuple(sampling_params["stop_token_ids"]),
                stop=tuple(sampling_params["stop"]),
            ),
            episode_id=request_id,
        )
        try:
            completion = await answer
        except asyncio.CancelledError:
            ray.cancel(answer)  # else the sampler would finish it
            raise
        except RayTaskError as error:
            raise error.cause from None  # Ray's message is a coloured traceback of the sampler's process
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.logprobs,
            stop_reason="completed",
            extra_fields={"global_steps": completion.policy_version},
        )


verl_init_load_balancer = LLMServerManager._init_global_load_balancer
verl_get_client = LLMServerManager.get_client


async def init_load_balancer(self: LLMServerManager) -> None:
    if self.rollout_config.name not in BACKENDS:
        await verl_init_load_balancer(self)


def get_client(self: LLMServerManager, client_cls: type | None = None, **kwargs: Any) -> LLMServerClient:
    if self.rollout_config.name not in BACKENDS:
        return verl_get_client(self, client_cls, **kwargs)
    samplers = [sampler for replica in self.rollout_replicas for sampler in replica.servers]
    return CpuServerClient(self.config, samplers)
