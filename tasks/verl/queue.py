"""TransferQueue's processes, without which the training process cannot go on: it ends when one of them dies.

Its clients would wait for a dead controller forever, and for a dead storage unit 200 s.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tasks.errors import actor_deaths

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from ray.actor import ActorHandle

POLL_S = 1.0

_log = logging.getLogger(__name__)


def start_queue(config: "DictConfig") -> "ActorWatch":
    """Start TransferQueue as its `config` says, and watch its actors: this process ends if one of them dies.

    `queue_actors.apply` comes first, while no other thread imports anything.
    """
    import ray
    import transfer_queue as tq

    try:
        tq.init(config)
    except actor_deaths():  # if `init` were called again, it would wait for the end of this one
        _end_process()
    count = config.backend.SimpleStorage.num_data_storage_units
    storage_units = [ray.get_actor(f"TransferQueueStorageUnit#{number}") for number in range(count)]
    controller = ray.get_actor("TransferQueueController", namespace="transfer_queue")
    return ActorWatch([controller, *storage_units], on_death=_end_process)


def _end_process() -> None:
    os._exit(1)


class ActorWatch:
    """Calls `on_death` in a thread when one of Ray's `actors` has died; it is noticed within seconds."""

    def __init__(self, actors: Sequence["ActorHandle"], *, on_death: Callable[[], object]) -> None:
        self._actors = actors
        self._on_death = on_death
        self._is_stopped = threading.Event()
        threading.Thread(target=self._watch, name="actor-watch", daemon=True).start()

    def stop(self) -> None:
        """No longer watch them: they are about to be ended."""
        self._is_stopped.set()

    def _watch(self) -> None:
        import ray

        while not self._is_stopped.wait(POLL_S):
            try:
                ray.get([actor.__ray_ready__.remote() for actor in self._actors])
            except actor_deaths() as error:
                if not self._is_stopped.is_set():
                    _log.error("an actor that this process needs has died: %s", error)
                    self._on_death()
                return
