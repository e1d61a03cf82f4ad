"""TransferQueue's two actors, which start without torch's compiler: a third of their start-up.

Ray sends a class that is decorated in its module by value, and its actor's imports begin with whatever that
refers to. The bases of what is sent here are found by name: an actor imports this module first, and with it
the patches of `tasks/verl/network.py`.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

import ray

from agents.process_memory import no_garbage_collection

_COMPILER = "torch._dynamo"
F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def _no_compiler() -> Iterator[None]:
    """Import no compiler meanwhile: tensordict marks functions for it, and nothing here compiles them."""
    if _COMPILER in sys.modules:
        yield
        return

    def assume_constant_result(function: F) -> F:
        return function

    stand_in = ModuleType(_COMPILER)
    stand_in.assume_constant_result = assume_constant_result  # type: ignore[attr-defined]
    stand_in.graph_break = lambda: None  # type: ignore[attr-defined]  # called by what is compiled
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        del sys.modules[_COMPILER]


with no_garbage_collection(), _no_compiler():
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
