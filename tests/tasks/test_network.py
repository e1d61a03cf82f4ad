"""What a training listens on, and what somebody without its token can do there: attacks on a real one."""

import ipaddress
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tasks.errors import Diverged
from tasks.rollout.runner import RolloutSpec
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tests.support.verl_runs import prepare_toy_run
from tests.support.verl_toy import toy_items, toy_pipeline

pytestmark = pytest.mark.slow

LIMIT_S = 120
POLL_S = 0.3
TCP_LISTEN = "0A"
"""The state in /proc/net/tcp."""

QUEUE_ATTACK = """
import os, pickle, sys, time
import zmq

class Payload:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)

context, connections = zmq.Context(), []
seconds, *arguments = sys.argv[1:]
servers, folders = arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]
for server, folder in zip(servers, folders):
    connection = context.socket(zmq.DEALER)
    connection.identity = b"TQ_STORAGE_MANAGER_attack"
    if os.environ.get("RAY_AUTH_MODE") == "token":
        from tasks.cluster.network import queue_keys
        public, connection.curve_secretkey = queue_keys()
        connection.curve_publickey = connection.curve_serverkey = public
    connection.connect(server)
    connection.send_multipart([b"\\xc1\\xfe\\xed", pickle.dumps(Payload(folder))])
    connections.append(connection)
deadline = time.monotonic() + float(seconds)
while time.monotonic() < deadline and not all(map(os.path.exists, folders)):
    time.sleep(0.05)
context.destroy(linger=0)
"""
RAY_ATTACK = """
import os, sys
import ray

@ray.remote
def leave_trace(path):
    os.mkdir(path)

ray.init(address=sys.argv[1], log_to_driver=False)
ray.get(leave_trace.remote(sys.argv[2]))
"""


class SocketWatch(threading.Thread):
    """Notes every listening socket of this process and its descendants, from start to `stop`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listeners: dict[tuple[str, int], str] = {}
        self._is_over = threading.Event()

    def run(self) -> None:
        known = set[str]()
        while not self._is_over.wait(POLL_S):
            # To ask whose they are takes ten times as long as to read the machine's sockets.
            if (inodes := open_sockets()) - known:
                self.listeners |= {(address, port): name for name, address, port in listening()}
            known = inodes

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def open_sockets() -> set[str]:
    """Inodes of this machine's TCP sockets that listen, and of its UDP sockets."""
    lines = [
        (name, line.split())
        for name in ("tcp", "tcp6", "udp", "udp6")
        for line in Path("/proc/net", name).read_text().splitlines()[1:]
    ]
    return {fields[9] for name, fields in lines if name.startswith("udp") or fields[3] == TCP_LISTEN}


def listening() -> Iterator[tuple[str, str, int]]:
    """(program, address, port) of each TCP socket that listens, and of each open UDP socket."""
    this = psutil.Process()
    own = {process.pid: process for process in (this, *this.children(recursive=True))}
    for entry in psutil.net_connections(kind="inet"):
        if entry.pid not in own or not entry.laddr:
            continue
        if entry.status == psutil.CONN_LISTEN or entry.type == socket.SOCK_DGRAM:
            with suppress(psutil.Error):  # it has ended
                name = " ".join(own[entry.pid].cmdline()).strip()
                yield name, entry.laddr.ip, entry.laddr.port


def is_loopback(address: str) -> bool:
    bound_ip = ipaddress.ip_address(address)
    if isinstance(bound_ip, ipaddress.IPv6Address) and bound_ip.ipv4_mapped:
        return bound_ip.ipv4_mapped.is_loopback
    return bound_ip.is_loopback


def outer_addresses() -> list[str]:
    """This machine's IPv4 addresses that others may reach."""
    return [
        entry.address
        for entries in psutil.net_if_addrs().values()
        for entry in entries
        if entry.family == socket.AF_INET and not is_loopback(entry.address)
    ]


def attack(code: str, *arguments: str, environment: dict[str, str]) -> int:
    """Run `code` as another process, that knows nothing of the run but the arguments; its status."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    # Else Ray would take 127.0.0.1 for this machine's other address, where nothing listens.
    variables["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    variables["RAY_NUM_REDIS_GET_RETRIES"] = "2"  # for 20, a second each
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=variables | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    print(done.stderr)  # why it failed, where it should not have
    return done.returncode


def with_token() -> dict[str, str]:
    """What the run's own processes know, read as only its user can."""
    [raylet] = [p for p in psutil.Process().children(recursive=True) if p.name() == "raylet"]
    return {name: raylet.environ()[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}


def attack_queue(folder: Path) -> None:
    servers = {
        f"tcp://{address}:{port}"
        for name, address, port in listening()
        if "TransferQueueController" in name or "SimpleStorageUnit" in name
        if ":" not in address  # Ray's own sockets are IPv6
    }
    assert len(servers) == 3  # handshake, requests, data
    for seconds, environment, is_obeyed in (("3", {}, False), ("30", with_token(), True)):
        traces = [folder / f"queue-{is_obeyed}-{index}" for index in range(len(servers))]
        attack(QUEUE_ATTACK, seconds, *sorted(servers), *map(str, traces), environment=environment)
        assert [trace.exists() for trace in traces] == [is_obeyed] * len(servers)


def attack_ray(folder: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    guesses = [{}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}, with_token()]

    def attack_cluster(index: int, environment: dict[str, str]) -> tuple[bool, bool]:
        trace = folder / f"ray-{index}"
        return attack(RAY_ATTACK, address, str(trace), environment=environment) == 0, trace.exists()

    with ThreadPoolExecutor() as attackers:
        outcomes = list(attackers.map(attack_cluster, range(len(guesses)), guesses))
    refused, allowed = (False, False), (True, True)  # with the token it succeeds: else it is no attack
    assert outcomes == [refused, refused, allowed]


def attack_from_outside() -> None:
    ports = {port for _, _, port in listening()}
    for address in outer_addresses():
        for port in ports:
            with socket.socket() as connection:
                connection.settimeout(5)
                assert connection.connect_ex((address, port)) != 0, (address, port)


def find_token_in_files_and_commands() -> list[str]:
    import ray

    token = with_token()["RAY_AUTH_TOKEN"]
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [p for p in session.rglob("*") if p.is_file() and not p.is_symlink()]
    assert any(p.name == "raylet.out" for p in files)
    commands = psutil.process_iter(["cmdline"])
    return [str(p) for p in files if token in p.read_text(errors="replace")] + [
        str(p.pid) for p in commands if token in " ".join(p.info["cmdline"] or [])
    ]


def test_a_training_listens_on_loopback_and_obeys_nobody_without_its_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The training that is attacked is also one that diverges: a start of verl takes half a minute."""
    model = prepare_toy_run(monkeypatch, tmp_path)
    pipeline = toy_pipeline(model, train__entropy_coef=3e38, train__save_every=1, backend__workers=2)
    spec = RolloutSpec(name="first", max_turns={"parity": 4}, num_samples=1, temperature=1.0)
    watch = SocketWatch()
    watch.start()
    try:
        with TrainSession(pipeline, tmp_path) as session:
            session.run_rollout(toy_items(2), spec)  # all processes are up
            attack_from_outside()
            attack_queue(tmp_path)
            attack_ray(tmp_path)
            assert find_token_in_files_and_commands() == []
            check_divergence(session)
    finally:
        watch.stop()
    assert checkpoints.complete_steps(tmp_path / "train" / "checkpoints") == []
    names = " ".join(watch.listeners.values())
    for program in (
        "Trainer",
        "TransferQueueController",
        "SimpleStorageUnit",
        "WorkerDict",
        "DashboardAgent",
    ):
        assert f"ray::{program}" in names or f":{program}" in names
    assert {
        endpoint: name for endpoint, name in watch.listeners.items() if not is_loopback(endpoint[0])
    } == {}
    assert "RAY_AUTH_TOKEN" not in os.environ


def check_divergence(session: TrainSession) -> None:
    """A gradient that is no number ends the run before its weights go anywhere."""
    with pytest.raises(Diverged, match=r"^step 1: the gradient norm is (nan|inf); lower train\.lr") as error:
        session.train_round(0)
    assert not set(str(error.value)) & {"\n", "\x1b"}
