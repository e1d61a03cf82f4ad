"""TransferQueue's two actors, with the patches of `tasks/verl/network.py`.

Ray sends a class that is decorated in its module by value, and its actor's imports begin with whatever that
refers to. The bases of what is sent here are found by name: an actor imports this module first, and with it
the patches.
"""

from typing import Any

import ray

from agents.process_memory import no_garbage_collection

with no_garbage_collection():
    import transfer_queue.controller
    import transfer_queue.interface
    import transfer_queue.storage.bootstrap.simple_storage_bootstrap as bootstrap
    import transfer_queue.storage.simple_storage

    import tasks.verl.network  # noqa: F401


def _undecorated(actor_class: Any) -> Any:
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


class TransferQueueController(_undecorated(transfer_queue.controller.TransferQueueController)):  # type: ignore[misc]
    """transfer_queue's."""


class SimpleStorageUnit(_undecorated(transfer_queue.storage.simple_storage.SimpleStorageUnit)):  # type: ignore[misc]
    """transfer_queue's."""


def apply() -> None:
    """Let transfer_queue start these."""
    as_actor = ray.remote(num_cpus=1)
    transfer_queue.interface.TransferQueueController = as_actor(TransferQueueController)
    bootstrap.SimpleStorageUnit = as_actor(SimpleStorageUnit)
