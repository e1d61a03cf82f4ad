"""What `wingspan doctor` says: each thing that a pipeline may need, whether it is here, what installs it.

The checks are those that a run makes before it starts (`flows/plan.py`), and more: all are made, whatever
fails, and things are told that no run needs now. Nothing is started or changed.
"""

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from envs.errors import ConfigError, MissingDependency, WingspanError
from envs.registry import get_env, list_env_names
from envs.requirements.detection import APPLICATION, PROBE_TIMEOUT_S, Package, Requirement, UserNamespaces
from envs.retrieval.redis_server import Redis
from envs.sandbox.sandbox import BACKENDS

if TYPE_CHECKING:
    from tasks.config.settings import Pipeline

COLUMNS = ("state", "what", "found", "for", "remedy")
CONSTRAINTS = Path("constraints.txt")
MEMORY_GB = 7.0
"""A CPU run's; a machine sold with 8 GB has a little less."""


_Check = tuple[str, str, str, Callable[[], None]]
"""What, as it is found where all is well, what for, and the check."""


class State(StrEnum):
    """Where a thing stands."""

    OK = "ok"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line."""

    what: str
    state: State
    found: str
    purpose: str
    remedy: str = ""
    is_needed: bool = True
    """By the pipeline in question."""

    @property
    def row(self) -> Sequence[str]:
        """Its cells, by `COLUMNS`."""
        return (self.state, self.what, self.found, self.purpose, self.remedy)


def examine(name: str) -> list[Finding]:
    """All findings for the pipeline `name`; raises `ConfigError` if there is none of that name."""
    findings = [_python(), *_packages()]
    try:
        from tasks.config.pipelines import load_pipeline

        pipeline = load_pipeline(name)
    except ImportError:
        return findings  # they name the package already
    return [
        *findings,
        *_environments(pipeline),
        *_sandboxes(),
        _finding(Redis.name, Redis().find_remedy(), "a cache of searches", needed=False),
        _gpus(pipeline),
        _vllm(pipeline),
        *_gpu_model(pipeline),
        *_settings(name, pipeline),
        _memory(pipeline),
        _loopback(),
        _network(),
    ]


def _python() -> Finding:
    from packaging.specifiers import SpecifierSet

    purpose, found = "everything", f"{platform.python_version()}, {sys.executable}"
    try:
        wanted = metadata(APPLICATION)["Requires-Python"]
    except PackageNotFoundError:
        return Finding("Python", State.MISSING, f"{found}, without {APPLICATION}", purpose, "make install")
    fits = SpecifierSet(wanted).contains(platform.python_version())
    return Finding("Python", State.OK if fits else State.MISSING, f"{found}; wanted: {wanted}", purpose)


def _packages() -> Iterator[Finding]:
    """One line for all that are there, one for each that is not, or that must not be there."""
    names = _core_packages()
    lacks = {name: remedy for name in names if (remedy := Package(name).find_remedy()) is not None}
    for name, remedy in lacks.items():
        yield Finding(name, State.MISSING, "", "everything", remedy)
    here = len(names) - len(lacks)
    yield Finding(
        "packages", State.OK, f"{here} of {len(names)} that pyproject.toml asks for{_strays()}", "everything"
    )
    if Package("openai-agents").find_remedy() is None:
        told = "installed, and hides our package `agents`"
        yield Finding(
            "openai-agents", State.MISSING, told, "must not be there", "pip uninstall openai-agents"
        )


def _core_packages() -> list[str]:
    from packaging.requirements import Requirement as Declared

    try:
        declared = [Declared(line) for line in requires(APPLICATION) or []]
    except PackageNotFoundError:
        return []
    return [line.name for line in declared if line.marker is None]


def _strays() -> str:
    """Packages that we use in another version than the one that is tested."""
    if not CONSTRAINTS.exists():
        return ""
    lines = [line.partition("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line]
    tested = {name: pin.strip() for name, _, pin in lines}
    strays = []
    for name in _core_packages():
        with suppress(PackageNotFoundError):
            found = version(name).partition("+")[0]  # torch's builds: 2.13.0+cpu
            if name in tested and found != tested[name]:
                strays.append(f"{name} {found} for {tested[name]}")
    return f"; other than in {CONSTRAINTS}: {', '.join(strays)}" if strays else ""


def _environments(pipeline: "Pipeline") -> Iterator[Finding]:
    """What environments need beside the packages of every run."""
    from tasks.config.environments import needed_here

    used: dict[Requirement, list[str]] = {}
    core = _core_packages()
    here = needed_here(pipeline)
    for name in dict.fromkeys([*list_env_names(), *pipeline.data.envs]):
        for need in get_env(name).needs:
            if need.name not in core:
                used.setdefault(need, []).append(name)
    for need, names in used.items():
        purpose = f"environment {', '.join(names)}"
        yield _finding(need.name, need.find_remedy(), purpose, needed=need.name in here)


def _sandboxes() -> Iterator[Finding]:
    namespaces = UserNamespaces()
    yield _finding(
        namespaces.name, namespaces.find_remedy(), "bubblewrap, enroot, rootless podman", needed=False
    )
    for backend in BACKENDS.values():
        yield _finding(backend.name, backend.find_remedy(), "a sandbox for code", needed=False)


def _gpus(pipeline: "Pipeline") -> Finding:
    backend = pipeline.backend
    purpose = "pipelines on cuda"
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        count = len(done.stdout.splitlines())
    except (OSError, subprocess.SubprocessError):
        count = 0
    elsewhere = os.environ.get("RAY_ADDRESS")
    needed = backend.workers if backend.device == "cuda" and not elsewhere else 0
    found = f"{count} of {needed}" if needed else str(count)
    if count < needed:
        remedy = f"lower backend.workers, or name a cluster with {needed} in RAY_ADDRESS"
        return Finding("GPUs", State.MISSING, found, purpose, remedy)
    state = State.OK if count else State.NOT_NEEDED
    return Finding("GPUs", state, found, purpose, is_needed=needed > 0)


def _vllm(pipeline: "Pipeline") -> Finding:
    return _finding(
        "vllm", Package("vllm").find_remedy(), "pipelines on cuda", needed=pipeline.backend.rollout == "vllm"
    )


def _gpu_model(pipeline: "Pipeline") -> Iterator[Finding]:
    """How the pipeline's model is trained on GPUs, and the memory and disk that it takes."""
    if pipeline.backend.device == "cpu":
        return
    from tasks.config.capacity import check_memory, checkpoint_bytes, memory_plan, read_model_size
    from tasks.verl.checkpoints import KEPT
    from tasks.verl.gpu_model import flash_attention_version, gpu_model_options

    purpose = "pipelines on cuda"
    size = read_model_size(pipeline.model)
    plan = memory_plan(pipeline, size) if size is not None else None
    tokens = pipeline.train.micro_batch_tokens
    installed = flash_attention_version()
    if installed is not None:
        attention = f"flash-attn {installed}"
    else:
        mask = f", {plan.mask / 1e9:.1f} GB a GPU," if plan is not None else ""
        attention = f"sdpa, with a mask of {tokens} x {tokens} tokens{mask} that flash-attn saves"
    try:
        gpu_model_options(pipeline.model)
        yield Finding("attention", State.OK, attention, purpose)
    except MissingDependency as error:
        problem, _, remedy = str(error).partition("; ")
        yield Finding("attention", State.MISSING, problem, purpose, remedy)
    if size is None or plan is None:
        found = f"the size of {pipeline.model} is unknown"
        yield Finding("GPU memory", State.NOT_NEEDED, found, purpose, "download the model, then ask again")
        return
    kept = f"{KEPT + 1} checkpoints of {checkpoint_bytes(size) / 1e9:.0f} GB at once"
    found = f"about {plan.training / 1e9:.0f} GB a GPU while training, {kept}"
    try:
        check_memory(pipeline)
        yield Finding("GPU memory", State.OK, found, purpose)
    except ConfigError as error:
        problem, _, remedy = str(error).partition("; ")
        yield Finding("GPU memory", State.MISSING, problem, purpose, remedy)


def _settings(name: str, pipeline: "Pipeline") -> Iterator[Finding]:
    """What a run checks before it starts."""
    from flows.lineage import default_workspace
    from flows.plan import check_disk, check_model
    from flows.prefect_runs import check_server
    from tasks.config.episodes import check_agent
    from tasks.data.files import check_data
    from tasks.tracking.tracker import check_tracking, tracking_uri
    from tasks.verl.config import check_pipeline

    free = f"{shutil.disk_usage(Path()).free / 1e9:.0f} GB free"
    server = os.environ.get("PREFECT_API_URL") or "a temporary server"
    agent = pipeline.agent.program or pipeline.agent.format
    checks: list[_Check] = [
        ("settings", "they agree", f"pipeline {name}", lambda: check_pipeline(pipeline)),
        ("data", ", ".join(pipeline.data.parts), f"pipeline {name}", lambda: check_data(pipeline.data)),
        ("agent", agent, f"pipeline {name}", lambda: check_agent(pipeline)),
        ("model", pipeline.model, f"pipeline {name}", lambda: check_model(pipeline)),
        *_items(pipeline, purpose=f"pipeline {name}"),
        (
            "disk",
            free,
            "a run's files",
            lambda: check_disk(default_workspace(name), pipeline),
        ),
        ("Prefect", server, "orchestration; PREFECT_API_URL", check_server),
        ("MLflow", tracking_uri(), "the record; MLFLOW_TRACKING_URI", check_tracking),
    ]
    for what, found, purpose, check in checks:
        try:
            check()
        except WingspanError as error:
            problem, _, remedy = str(error).partition("; ")
            yield Finding(what, State.MISSING, problem, purpose, remedy)
        except ImportError:
            continue  # its package is named already
        else:
            yield Finding(what, State.OK, found, purpose)


def _items(pipeline: "Pipeline", *, purpose: str) -> Iterator[_Check]:
    """Whether they can be had and shown to the model; to be asked where both are there."""
    from flows.plan import check_items, check_model
    from tasks.config.environments import check_environments

    with suppress(WingspanError, ImportError):  # of which other lines tell
        check_environments(pipeline)
        check_model(pipeline)
        yield ("items", "they fit the model", purpose, lambda: check_items(pipeline))


def _memory(pipeline: "Pipeline") -> Finding:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    enough = total >= MEMORY_GB or pipeline.backend.device != "cpu"
    remedy = "" if enough else "use a machine with 8 GB"
    return Finding("memory", State.OK if enough else State.MISSING, f"{total:.1f} GB", "a CPU run", remedy)


def _loopback() -> Finding:
    purpose = "Ray, Prefect's temporary server"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            found = f"port {server.getsockname()[1]} could be had"
    except OSError as error:
        return Finding("127.0.0.1", State.MISSING, str(error), purpose, "let programs listen on 127.0.0.1")
    return Finding("127.0.0.1", State.OK, found, purpose)


def _network() -> Finding:
    """What a run opens to others, see docs/security.md."""
    from tasks.cluster.address import asks_for_token, check_ray_address, cluster_address

    what, purpose = "network", "Ray; RAY_ADDRESS"
    address = cluster_address()
    if address is None:
        found = "a Ray on this machine: listens on loopback only, asks for a token"
        return Finding(what, State.OK, found, purpose)
    try:
        check_ray_address()
        closed = asks_for_token()
    except WingspanError as error:
        problem, _, remedy = str(error).partition("; ")
        return Finding(what, State.MISSING, problem, purpose, remedy)
    if closed:
        return Finding(what, State.OK, f"the Ray cluster {address} asks for a token", purpose)
    found = f"OPEN: whoever reaches {address} runs code in the Ray cluster, it asks for no token"
    remedy = "start every node of it with RAY_AUTH_MODE=token (docs/security.md)"
    return Finding(what, State.OK, found, purpose, remedy)


def _finding(what: str, remedy: str | None, purpose: str, *, needed: bool) -> Finding:
    if remedy is None:
        return Finding(what, State.OK, "works", purpose, is_needed=needed)
    state = State.MISSING if needed else State.NOT_NEEDED
    return Finding(what, state, "", purpose, remedy, is_needed=needed)
