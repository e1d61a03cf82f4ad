"""What a training listens on, and what somebody without its token can do there: attacks on a real one."""

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tasks.errors import Diverged
from tasks.rollout.spec import RolloutSpec
from tasks.stages.train import TrainSession
from tasks.verl import checkpoints
from tests.support.sockets import SocketWatch, is_loopback, listening
from tests.support.verl_runs import prepare_toy_run
from tests.support.verl_toy import toy_items, toy_pipeline

pytestmark = pytest.mark.slow

LIMIT_S = 120

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
    """The training that is attacked is also one that diverges: a start of verl takes half a minute. What two
    workers listen on is looked at in `test_cluster.py`.
    """
    model = prepare_toy_run(monkeypatch, tmp_path)
    pipeline = toy_pipeline(model, train__entropy_coef=3e38, train__save_every=1)
    spec = RolloutSpec(name="first", max_turns={"parity": 4}, num_samples=1, temperature=1.0)
    with SocketWatch() as watch, TrainSession(pipeline, tmp_path) as session:
        session.run_rollout(toy_items(2), spec)  # all processes are up
        watch.note()
        attack_from_outside()
        attack_queue(tmp_path)
        attack_ray(tmp_path)
        assert find_token_in_files_and_commands() == []
        check_divergence(session)
    assert checkpoints.complete_steps(tmp_path / "train" / "checkpoints") == []
    for program in (
        "Trainer",
        "TransferQueueController",
        "SimpleStorageUnit",
        "WorkerDict",
        "DashboardAgent",
    ):
        assert watch.has_seen(program)
    assert watch.open_to_others == {}
    assert "RAY_AUTH_TOKEN" not in os.environ


def check_divergence(session: TrainSession) -> None:
    """A gradient that is no number ends the run before its weights go anywhere."""
    with pytest.raises(Diverged, match=r"^step 1: the gradient norm is (nan|inf); lower train\.lr") as error:
        session.train_round(0)
    assert not set(str(error.value)) & {"\n", "\x1b"}
