"""A pipeline against servers that somebody else runs, all at once: Prefect, MLflow, Ray, Redis, S3, a judge.

Each asks for its own secret, which comes from the environment. None of them may be in anything that the run
leaves, here or on a server.
"""

import base64
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from envs.retrieval.redis_server import find_program
from tests.support.chat_server import chat_server, says
from tests.support.http_server import serving_in_thread
from tests.support.prefect_server import START_TIMEOUT_S, prefect_client, prefect_server, program
from tests.support.project import NAME, RUN_TIMEOUT_S, Project
from tests.support.sockets import free_port
from tests.support.waiting import wait_until
from tests.support.yaml_files import edit_yaml

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

STEPS = 2


def _canary() -> str:
    return f"canary{secrets.token_hex(12)}"


@dataclass(frozen=True, slots=True)
class Canaries:
    """A secret for each server."""

    prefect: str = field(default_factory=_canary)
    mlflow: str = field(default_factory=_canary)
    ray: str = field(default_factory=lambda: secrets.token_hex(32))
    redis: str = field(default_factory=_canary)
    aws_key: str = field(default_factory=_canary)
    aws_secret: str = field(default_factory=_canary)
    judge: str = field(default_factory=_canary)

    def forms(self) -> dict[str, bytes]:
        """What no file may hold, by name: the secrets, and HTTP's form of those of a user."""
        texts = {each.name: getattr(self, each.name) for each in fields(self)}
        pairs = {f"{name} in base64": f"user:{texts[name]}" for name in ("prefect", "mlflow")}
        encoded = {name: base64.b64encode(pair.encode()) for name, pair in pairs.items()}
        return {name: text.encode() for name, text in texts.items()} | encoded


@contextmanager
def mlflow_server(folder: Path, *, password: str, environment: Mapping[str, str]) -> Iterator[str]:
    """MLflow's server, which keeps artifacts as well, behind a proxy that asks for user and password."""
    port = free_port()
    behind = f"http://127.0.0.1:{port}"
    folder.mkdir()
    stores = [
        *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    served = [*("--host", "127.0.0.1", "--port", str(port), "--workers", "1"), *stores]
    expected = "Basic " + base64.b64encode(f"user:{password}".encode()).decode()

    async def forward(request: Request) -> Response:
        if request.headers.get("Authorization") != expected:
            return Response(status_code=401)
        headers = {"Content-Type": request.headers.get("Content-Type", "")}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{behind}{request.url.path}?{request.url.query}"
            body = await request.body()
            answer = await client.request(request.method, url, content=body, headers=headers)
        kept = {"Content-Type": answer.headers.get("Content-Type", "")}
        return Response(answer.content, status_code=answer.status_code, headers=kept)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    proxy = Starlette(routes=[Route("/{path:path}", forward, methods=methods)])
    with (
        program(
            *(sys.executable, "-m", "mlflow", "server", *served),
            log=folder / "server.log",
            environment=environment,
            cwd=folder,
        ),
        serving_in_thread(proxy) as url,
    ):
        wait_until(lambda: _answers(f"{behind}/health"), timeout_s=START_TIMEOUT_S, poll_s=0.2)
        yield url


@contextmanager
def ray_cluster(folder: Path, *, cwd: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The address of a cluster of one node, with a logical GPU; its sessions are in `folder`."""
    address = f"127.0.0.1:{free_port()}"
    options = ["--head", "--block", "--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}"]
    resources = ["--num-cpus=8", "--num-gpus=1", "--include-dashboard=false", f"--temp-dir={folder}"]
    with program(
        *(sys.executable, "-m", "ray.scripts.scripts", "start", *options, *resources),
        log=cwd / "ray.log",
        environment=environment,
        cwd=cwd,
    ):
        log = cwd / "ray.log"
        wait_until(lambda: "Ray runtime started" in log.read_text(), timeout_s=START_TIMEOUT_S, poll_s=0.2)
        yield address


@contextmanager
def redis_server(folder: Path, *, password: str) -> Iterator[str]:
    redis, port = find_program(), free_port()
    assert redis is not None
    folder.mkdir()
    options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder)]
    log = folder / "redis.log"
    with program(
        *(str(redis), *options, "--requirepass", password), log=log, environment=os.environ, cwd=folder
    ):
        wait_until(lambda: "eady to accept connections" in log.read_text(), poll_s=0.1)
        yield f"redis://:{password}@127.0.0.1:{port}"


@contextmanager
def bucket(canaries: Canaries) -> Iterator["Bucket"]:
    """An empty bucket of a server that speaks S3's protocol, private to the keys of `canaries`."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        opened = Bucket("http://{}:{}".format(*server.get_host_and_port()), canaries=canaries)
        opened.client.create_bucket(Bucket=opened.name)
        yield opened
    finally:
        server.stop()


class Bucket:
    name = "wingspan"

    def __init__(self, endpoint: str, *, canaries: Canaries) -> None:
        self.endpoint = endpoint
        self.client: Any = pytest.importorskip("boto3").client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=canaries.aws_key,
            aws_secret_access_key=canaries.aws_secret,
        )

    def contents(self) -> dict[str, bytes]:
        """By key."""
        listed = self.client.list_objects_v2(Bucket=self.name)
        assert not listed["IsTruncated"]
        keys = [entry["Key"] for entry in listed["Contents"]]
        return {key: self.client.get_object(Bucket=self.name, Key=key)["Body"].read() for key in keys}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def write_pipeline(project: Project, *, judge_url: str) -> None:
    """The project's pipeline becomes one that searches, and asks a judge."""
    prompt = project.folder / "data" / "judge.md"
    prompt.write_text(
        "{final_response}\n\nEnd with a line `Score: ` and a number from {min_score} to {max_score}."
    )
    judge = {"url": judge_url, "model": "toy", "key_from": "JUDGE_API_KEY", "prompt": "data/judge.md"}
    with edit_yaml(project.folder / "pipelines.yaml") as document:
        pipeline = document["pipelines"][NAME]
        pipeline["data"] = {"split_seed": 0, "parts": {"searchqa-mini": {"where": {"hops": [3]}}}}
        pipeline["warmup"]["new_words"] = 16
        pipeline["agent"] |= {"reward": {"environment": 1.0, "clear": 0.1}, "judges": {"clear": judge}}
        pipeline["rollout"] |= {"max_live_envs": 16}
        pipeline["train"] |= {"steps": STEPS, "steps_per_round": STEPS}
        pipeline["horizon"] |= {"max_turns": [2], "steps_per_stage": STEPS}


def find_canaries(canaries: Canaries, contents: Mapping[str, bytes]) -> list[str]:
    """Where which secret is."""
    forms = canaries.forms()
    return [
        f"{name} in {where}"
        for where, content in contents.items()
        for name in forms
        if forms[name] in content
    ]


def files_in(*folders: Path) -> dict[str, bytes]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def test_a_run_uses_servers_of_all_kinds_and_leaves_none_of_their_secrets(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for package in ("moto.server", "dvc_s3"):
        pytest.importorskip(package)
    if find_program() is None:
        pytest.skip("no redis-server")
    canaries = Canaries()
    project = Project.make(tmp_path_factory.mktemp("project"))
    ray_folder = Path(f"/tmp/ray-{secrets.token_hex(4)}")  # sockets have short paths
    ray_access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": canaries.ray}
    base = project.environment
    with ExitStack() as stack:
        open_server = stack.enter_context
        stack.callback(subprocess.run, ["rm", "-rf", str(ray_folder)], check=True)
        judge = open_server(chat_server(lambda body: says("Score: 5"), key=canaries.judge))
        shared = open_server(bucket(canaries))
        auth = f"user:{canaries.prefect}"
        prefect_environment = {
            **base,
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "PREFECT_SERVER_API_AUTH_STRING": auth,
        }
        redis_url = open_server(redis_server(tmp_path / "redis", password=canaries.redis))
        # The trainer and the environments run on the cluster, with the variables of its nodes.
        ray_environment = {
            **base,
            **ray_access,
            "PYTHONPATH": str(project.folder),
            "WINGSPAN_REDIS": redis_url,
            "JUDGE_API_KEY": canaries.judge,
        }
        address = open_server(ray_cluster(ray_folder, cwd=project.folder, environment=ray_environment))
        mlflow_url = open_server(
            mlflow_server(
                tmp_path / "mlflow",
                password=canaries.mlflow,
                environment={**base, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            )
        )
        prefect_url = open_server(prefect_server(tmp_path, environment=prefect_environment))
        write_pipeline(project, judge_url=judge.url)
        environment = {
            **base,
            **ray_access,
            "PREFECT_API_URL": prefect_url,
            "PREFECT_API_AUTH_STRING": auth,
            "MLFLOW_TRACKING_URI": mlflow_url,
            "MLFLOW_TRACKING_USERNAME": "user",
            "MLFLOW_TRACKING_PASSWORD": canaries.mlflow,
            "RAY_ADDRESS": address,
            "WINGSPAN_REDIS": redis_url,
            "AWS_ACCESS_KEY_ID": canaries.aws_key,
            "AWS_SECRET_ACCESS_KEY": canaries.aws_secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "JUDGE_API_KEY": canaries.judge,
        }

        def run(*arguments: str) -> str:
            result = subprocess.run(
                arguments,
                cwd=project.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_TIMEOUT_S,
            )
            assert result.returncode == 0, result.stdout[-5000:]
            return result.stdout

        dvc = (sys.executable, "-m", "dvc")
        run(*dvc, "remote", "add", "-d", "shared", "s3://wingspan/runs")
        run(*dvc, "remote", "modify", "shared", "endpointurl", shared.endpoint)
        output = run("wingspan", "run", NAME)
        output += run(*dvc, "push", "--quiet", f"report@{NAME}")

        # Each of them was used.
        assert project.finished_steps() == list(range(1, STEPS + 1))
        with prefect_client(prefect_url, auth=auth) as client:
            (flow_run,) = client.read_flow_runs()
            assert flow_run.state is not None
            assert flow_run.state.is_completed()
        assert set(judge.keys) == {f"Bearer {canaries.judge}"}
        cached = redis_keys(redis_url)
        assert cached
        assert list(ray_folder.glob("session_*/logs/worker-*"))
        stored = shared.contents()
        report = (project.run_folder / "report" / "index.html").read_bytes()
        assert report in stored.values()
        assert find_canaries(canaries, cached) == []
        assert find_canaries(canaries, stored) == []
        assert find_canaries(canaries, {"output": output.encode()}) == []
        assert find_canaries(canaries, files_in(ray_folder)) == []
    found = files_in(project.folder, tmp_path)
    assert any("artifacts" in name for name in found)
    assert any(name.endswith("prefect.db") for name in found)
    assert find_canaries(canaries, found) == []


def redis_keys(url: str) -> dict[str, bytes]:
    """Values by key, as Redis moves them to another server."""
    import redis

    client: Any = redis.Redis.from_url(url)
    return {repr(key): key + client.dump(key) for key in client.scan_iter()}
