"""Places the training processes on the fewest nodes of the Ray cluster that fit, the same number on each, and
checks the memory there.

verl asks Ray for a placement group per node and waits for it without a time limit, so workers that cannot be
placed are refused here. GPUs of a CPU cluster are logical.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envs.errors import ConfigError
from tasks.cluster.memory import Phase, check_devices, device_memories, phases_here
from tasks.cluster.python_path import ROOT
from tasks.config.pipelines import Pipeline
from tasks.config.training import BackendSettings
from tasks.errors import describe_remote

WORKER_CPUS = 3
"""CPUs that verl reserves for each worker, besides its GPU (`ResourcePoolManager.max_colocate_count`)."""
QUEUE_CPUS = 2
"""CPUs that TransferQueue's two actors reserve, on any node."""
FREE_TIMEOUT_S = 60.0
"""Ray takes a while to free the resources of a process that has died."""
MEMORY_TIMEOUT_S = 120.0
"""The time in which every node must say how much it has; a new Python process has to start there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where the `backend.workers` run."""

    nodes: int
    workers_per_node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The free resources of a node, or all of its resources."""

    address: str
    gpus: int
    cpus: int

    @property
    def room(self) -> int:
        """Workers that fit."""
        return min(self.gpus, max(0, self.cpus - QUEUE_CPUS) // WORKER_CPUS)

    def __str__(self) -> str:
        few = f" and {self.cpus} CPUs" if self.room < self.gpus else ""
        return f"{self.gpus} GPU{'s' * (self.gpus != 1)}{few} on {self.address}"


def place_workers(backend: BackendSettings) -> Placement:
    """The placement on the free resources of the cluster that this process is connected to.

    Raises `ConfigError` if there is none: at once if even an idle cluster has no room, else after
    `FREE_TIMEOUT_S`.
    """
    if _find_placement(backend, cluster_nodes(free=False)) is None:
        raise _refusal(backend, cluster_nodes(free=False))
    deadline = time.monotonic() + FREE_TIMEOUT_S
    while True:
        nodes = cluster_nodes(free=True)
        if placement := _find_placement(backend, nodes):
            return placement
        if time.monotonic() > deadline:
            raise _refusal(backend, nodes)
        time.sleep(1)


def cluster_nodes(*, free: bool) -> list[Node]:
    """The live nodes of the cluster, with their free resources if `free`, else with all of them."""
    import ray
    from ray._private.state import available_resources_per_node

    available = available_resources_per_node()
    nodes = []
    for node in ray.nodes():
        if node["Alive"]:
            resources = available.get(node["NodeID"], {}) if free else node["Resources"]
            gpus, cpus = (int(resources.get(kind, 0)) for kind in ("GPU", "CPU"))
            nodes.append(Node(address=node["NodeManagerAddress"], gpus=gpus, cpus=cpus))
    return nodes


def check_nodes(pipeline: Pipeline, placement: Placement, *, environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` if `pipeline` does not fit one of the nodes that Ray may place its workers on.

    This process is connected to the cluster; `environment`: variables by which a process of the cluster finds
    this project.
    """
    import ray

    memories = node_memories(pipeline.backend.device, environment=environment)
    for node in ray.nodes():
        name = node["NodeManagerAddress"]
        if node["NodeID"] in memories and node["Resources"].get("GPU", 0) >= placement.workers_per_node:
            check_devices(
                pipeline,
                memories[node["NodeID"]],
                nodes=placement.nodes,
                place=f"node {name}",
                phases={*Phase} - {*phases_here(pipeline)},
            )


def node_memories(device: str, *, environment: Mapping[str, str]) -> dict[str, list[int]]:
    """What `device_memories` finds on each live node, by Ray's id of the node.

    Raises `ConfigError` for a node that does not say it.
    """
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    read = ray.remote(num_cpus=0, runtime_env={"env_vars": dict(environment)})(device_memories)
    nodes = [node for node in ray.nodes() if node["Alive"]]
    places = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    answers = [read.options(scheduling_strategy=place).remote(device) for place in places]
    deadline = time.monotonic() + MEMORY_TIMEOUT_S
    memories = {}
    for node, answer in zip(nodes, answers, strict=True):
        try:
            memories[node["NodeID"]] = ray.get(answer, timeout=max(0.0, deadline - time.monotonic()))
        except RayError as error:
            raise ConfigError(
                f"node {node['NodeManagerAddress']} of the Ray cluster does not say how much memory it has "
                f"({describe_remote(error)}); it needs this checkout at {ROOT}, and its Python environment"
            ) from error
    return memories


def _find_placement(backend: BackendSettings, nodes: Sequence[Node]) -> Placement | None:
    return placement(backend.workers, tensor_parallel=backend.tensor_parallel, rooms=[n.room for n in nodes])


def placement(workers: int, *, tensor_parallel: int, rooms: Sequence[int]) -> Placement | None:
    """Place `workers` on the fewest of the nodes with `rooms` (workers that fit); None if they do not fit.

    All nodes get the same number, a multiple of `tensor_parallel`: an engine's GPUs are on one node.
    """
    for nodes in range(1, len(rooms) + 1):
        share, rest = divmod(workers, nodes)
        if rest or share % tensor_parallel:
            continue
        if sum(room >= share for room in rooms) >= nodes:
            return Placement(nodes=nodes, workers_per_node=share)
    return None


def _refusal(backend: BackendSettings, nodes: Sequence[Node]) -> ConfigError:
    rooms = [node.room for node in nodes]
    fitting = [
        count
        for count in range(1, sum(rooms) + 1)
        if placement(count, tensor_parallel=backend.tensor_parallel, rooms=rooms)
    ]
    near = [c for c in fitting if c < backend.workers][-1:] + [c for c in fitting if c > backend.workers][:1]
    remedy = f"set it to {' or '.join(map(str, near))}" if near else "add nodes, or free some"
    return ConfigError(
        f"backend.workers {backend.workers} cannot be placed: free are {', '.join(map(str, nodes))}; "
        f"a worker needs a GPU and {WORKER_CPUS} CPUs, and all nodes take the same number, "
        f"a multiple of backend.tensor_parallel {backend.tensor_parallel}; {remedy}"
    )
