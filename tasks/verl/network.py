"""Secures the sockets of verl's processes: TransferQueue asks for Ray's token, torch binds to one address.

verl imports this module at the end of `import verl` if `VERL_USE_EXTERNAL_MODULES` names it. It patches
transfer_queue and torch, which have no options for this; `tests/tasks/test_network.py` attacks the result.
"""

import ipaddress
import os
import socket
from importlib import import_module
from typing import Any

import psutil
import zmq

from agents.process_memory import no_garbage_collection
from tasks.cluster.network import queue_keys

with no_garbage_collection():  # the queue's actors import little else
    import transfer_queue.controller
    import transfer_queue.storage.managers.base
    import transfer_queue.storage.simple_storage
    import transfer_queue.utils.zmq_utils as zmq_utils
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

_create_zmq_socket = zmq_utils.create_zmq_socket


def apply() -> None:
    """Patch this process. The actors of TransferQueue import this module, too (`queue_actors.py`)."""
    # The package has a function with the module's name, which `import ... as` would find.
    rendezvous = import_module("torch.distributed.rendezvous")
    rendezvous.TCPStore = bound_store  # type: ignore[attr-defined]
    for module in (
        zmq_utils,
        transfer_queue.controller,
        transfer_queue.storage.simple_storage,
        transfer_queue.storage.managers.base,
    ):
        module.create_zmq_socket = create_zmq_socket


def create_zmq_socket(
    ctx: zmq.Context[zmq.Socket[bytes]], socket_type: int, ip: str, identity: bytes | None = None
) -> zmq.Socket[bytes]:
    """TransferQueue's function, with CURVE: encrypted, and only for clients that have Ray's token.

    TransferQueue unpickles what it receives. If Ray asks for no token, its sockets are not changed.
    """
    queue_socket: zmq.Socket[bytes] = _create_zmq_socket(ctx, socket_type, ip, identity)
    keys = queue_keys()
    if keys is not None:
        queue_socket.curve_publickey, queue_socket.curve_secretkey = keys
        if socket_type == zmq.ROUTER:
            queue_socket.curve_server = True
        else:
            queue_socket.curve_serverkey = keys[0]
    return queue_socket


def bound_store(*, host_name: str, port: int, is_master: bool, **options: Any) -> TCPStore:
    """torch's store, whose server listens on `host_name` alone instead of on every interface.

    gloo uses the interface of the same network, and so does NCCL if that is loopback, unless
    `GLOO_SOCKET_IFNAME` and `NCCL_SOCKET_IFNAME` name others.
    """
    family, _, _, _, address = socket.getaddrinfo(host_name, port, type=socket.SOCK_STREAM)[0]
    interface, own_address = _interface_towards(family, address)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    if ipaddress.ip_address(own_address).is_loopback:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    if is_master:
        server = socket.create_server(address[:2], family=family, backlog=socket.SOMAXCONN)
        options["master_listen_fd"] = server.detach()  # now owned by the store
    return TCPStore(host_name=host_name, port=port, is_master=is_master, **options)


def _interface_towards(family: int, address: tuple[object, ...]) -> tuple[str, str]:
    """The network interface by which this machine reaches `address`: its name, and its address."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)  # sends nothing
        own_address: str = probe.getsockname()[0]
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == own_address for entry in entries):
            return name, own_address
    raise OSError(f"no network interface has the address {own_address}")


apply()
