"""The `Sampler` over the servers that verl has started.

vLLM's are asked by verl's client, with two differences. It chooses the server itself: one process runs all
episodes here, so it knows where they are. verl asks an actor which server to take, and tells it when the
answer is there, so that a turn costs the process that runs the episodes 2 ms of CPU time in calls of Ray;
here it costs 1 ms.

A request that nobody waits for is aborted. verl leaves it running to its last token, and the servers' next
sleep waits for it. Cancelling the call in Ray cancels the server's coroutine, upon which vLLM aborts the
request. The server's own `abort_request` would drop the prefix cache of all others.
"""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

import ray
from cachetools import LRUCache
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from agents.samplers.sampler import Sampler
from tasks.verl.config import MAX_EPISODES
from tasks.verl.cpu.rollout import BACKENDS, ActorSampler
from tasks.verl.rollout import VerlSampler

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle


def make_sampler(servers: LLMServerManager) -> Sampler:
    """Samples on `servers`: those of a CPU are asked directly, vLLM's by `DirectClient`."""
    if servers.rollout_config.name in BACKENDS:
        return ActorSampler([sampler for replica in servers.rollout_replicas for sampler in replica.servers])
    return VerlSampler(servers.get_client(DirectClient, servers=servers.server_handles))


class DirectClient(LLMServerClient):  # type: ignore[misc]
    """A client that asks verl's servers directly: for `LLMServerManager.get_client`, with
    `servers=manager.server_handles`."""

    def __init__(
        self, config: "DictConfig", load_balancer_handle: object = None, *, servers: Sequence["ActorHandle"]
    ) -> None:
        """`load_balancer_handle`: verl's, which is not asked."""
        super().__init__(config, load_balancer_handle)
        self._servers = servers
        self._num_running = [0] * len(servers)
        # All turns of an episode go to one server, which has their keys and values.
        self._index_of: LRUCache[str, int] = LRUCache(MAX_EPISODES)

    async def _acquire_server(self, request_id: str, **_: object) -> tuple[int, SimpleNamespace]:
        if request_id not in self._index_of:
            least_loaded = min(range(len(self._servers)), key=self._num_running.__getitem__)
            self._index_of[request_id] = least_loaded
        index = self._index_of[request_id]
        self._num_running[index] += 1

        async def generate(**request: object) -> object:
            answer = self._servers[index].generate.remote(**request)
            try:
                return await answer
            except asyncio.CancelledError:
                ray.cancel(answer)
                raise

        return index, SimpleNamespace(generate=SimpleNamespace(remote=generate))

    def _release_server(self, server_id: int, request_id: str | None = None) -> None:
        self._num_running[server_id] -= 1
