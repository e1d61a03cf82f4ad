"""What `tasks/verl/network.py` replaces in transfer_queue and torch: all uses of it, and to what effect."""

import hashlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).parents[2]
LOAD_ACTORS = """
import pickle, sys
for actor in pickle.load(sys.stdin.buffer):
    [create] = {
        method.__globals__["create_zmq_socket"]
        for parent in actor.__mro__
        for method in vars(parent).values()
        if "create_zmq_socket" in getattr(method, "__globals__", ())
    }
    print(actor.__name__, create.__module__)
"""


def key_pair(name: bytes) -> tuple[bytes, bytes]:
    import zmq
    from zmq.utils import z85

    secret = z85.encode(hashlib.blake2b(name, digest_size=32).digest())
    return zmq.curve_public(secret), secret


def test_every_user_of_what_is_replaced_got_the_replacement(verl: ModuleType) -> None:
    import transfer_queue  # noqa: F401

    from tasks.verl import network as verl_network

    users = {
        name: module.create_zmq_socket
        for name, module in list(sys.modules.items())
        if name.startswith("transfer_queue") and hasattr(module, "create_zmq_socket")
    }
    assert len(users) >= 4
    assert set(users.values()) == {verl_network.create_zmq_socket}
    assert sys.modules["torch.distributed.rendezvous"].TCPStore is verl_network.bound_store


def test_the_actors_of_the_queue_start_patched(verl: ModuleType) -> None:
    """What Ray would send is loaded by another process, as by an actor's."""
    from ray import cloudpickle
    from transfer_queue import interface
    from transfer_queue.storage.bootstrap import simple_storage_bootstrap

    from tasks.verl import queue_actors

    queue_actors.apply()
    actors = (interface.TransferQueueController, simple_storage_bootstrap.SimpleStorageUnit)
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD_ACTORS],
        input=cloudpickle.dumps([actor.__ray_metadata__.modified_class for actor in actors]),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
    )
    assert loaded.stdout.decode().splitlines() == [
        "TransferQueueController tasks.verl.network",
        "SimpleStorageUnit tasks.verl.network",
    ]


def test_a_process_group_of_environment_variables_listens_on_its_address_alone(
    verl: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    before = _listening()
    dist.init_process_group("gloo")
    try:
        new_ports = _listening() - before
        assert ("127.0.0.1", port) in new_ports
        assert {address for address, _ in new_ports} == {"127.0.0.1"}
        [loopback] = [
            name
            for name, entries in psutil.net_if_addrs().items()
            if any(entry.address == "127.0.0.1" for entry in entries)
        ]
        assert os.environ["GLOO_SOCKET_IFNAME"] == loopback
        assert os.environ["NCCL_SOCKET_IFNAME"] == f"={loopback}"
    finally:
        dist.destroy_process_group()


def _listening() -> set[tuple[str, int]]:
    connections = psutil.Process().net_connections(kind="inet")
    return {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize(
    ("server_keys", "client_keys", "arrives"),
    [(b"token", b"token", True), (b"token", b"other", False), (b"token", None, False), (None, None, True)],
)
def test_the_queue_hears_only_who_has_the_token(
    verl: ModuleType,
    server_keys: bytes | None,
    client_keys: bytes | None,
    arrives: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import zmq

    from tasks.verl import network as verl_network

    def make_socket(kind: int, name: bytes | None) -> Any:
        monkeypatch.setattr(verl_network, "queue_keys", lambda: name and key_pair(name))
        return verl_network.create_zmq_socket(context, kind, "127.0.0.1")

    context = zmq.Context()
    server, client = make_socket(zmq.ROUTER, server_keys), make_socket(zmq.DEALER, client_keys)
    try:
        port = server.bind_to_random_port("tcp://127.0.0.1")
        client.connect(f"tcp://127.0.0.1:{port}")
        client.send(b"hello")
        assert bool(server.poll(10_000 if arrives else 1_000)) == arrives
    finally:
        context.destroy(linger=0)
