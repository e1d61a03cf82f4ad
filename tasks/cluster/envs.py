"""Environments as Ray actors, spread over the nodes of a cluster."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from envs.errors import EnvCrashed, to_line
from envs.registry import EnvSpec
from envs.runtime.hosted import Host
from envs.runtime.worker import Answer, Worker
from envs.types import Environment
from tasks.errors import actor_deaths

if TYPE_CHECKING:
    from ray.actor import ActorHandle

CPUS = 0.05
"""CPUs that an actor reserves: environments mostly wait for the policy."""


def find_cluster_host() -> Callable[[EnvSpec], Host] | None:
    """Makes hosts on the cluster of this process; None unless the cluster has several nodes."""
    if "ray" not in sys.modules:  # importing it takes a second
        return None
    import ray

    if not ray.is_initialized() or sum(node["Alive"] for node in ray.nodes()) < 2:
        return None
    return lambda spec: RayHost(spec.make)


class RayHost:
    """Starts an actor for each instance that `make` makes, on the node with the fewest actors."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._make = make

    async def start(self) -> "RayChannel":
        """A new actor. Raises `EnvCrashed` if it does not come up."""
        import ray
        from ray.exceptions import ActorUnschedulableError, RuntimeEnvSetupError

        actor = (
            ray.remote(_Actor)
            .options(num_cpus=CPUS, scheduling_strategy="SPREAD", max_restarts=0)
            .remote(self._make)
        )
        try:
            return RayChannel(actor, pid=await actor.pid.remote())
        except (*actor_deaths(), ActorUnschedulableError, RuntimeEnvSetupError) as error:
            raise EnvCrashed(
                f"the actor of an environment did not start: {to_line(error, limit=160)}"
            ) from None

    async def close(self) -> None:
        """Nothing to do: an actor ends with its channel, or with this process."""


class RayChannel:
    """A `Channel` (`envs/runtime/hosted.py`) to one actor."""

    def __init__(self, actor: "ActorHandle", *, pid: int) -> None:
        self.pid = pid
        self._actor = actor
        self._life = asyncio.ensure_future(_until_dead(actor))
        self._is_lost = False  # a call may learn of the end before `_life` does

    @property
    def is_alive(self) -> bool:
        return not self._is_lost and not self._life.done()

    async def call(self, request: list[object]) -> Answer:
        try:
            answer: Answer = await self._actor.answer.remote(request)
        except actor_deaths() as error:
            self._is_lost = True
            raise EnvCrashed(f"the environment's actor died: {to_line(error, limit=160)}") from None
        return answer

    async def close(self) -> None:
        import ray

        ray.kill(self._actor)
        await self._life


class _Actor(Worker):
    """A worker (`envs/runtime/worker.py`) in an actor's process."""

    async def pid(self) -> int:
        import os

        return os.getpid()

    async def live(self) -> None:
        await asyncio.Event().wait()


async def _until_dead(actor: "ActorHandle") -> None:
    """Return when the actor has died: that ends its endless call."""
    with suppress(*actor_deaths()):
        await actor.live.remote()
