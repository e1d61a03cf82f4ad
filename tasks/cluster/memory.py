"""Asks the nodes of the Ray cluster for their memory, before training starts on them."""

from collections.abc import Mapping

from tasks.cluster.placement import Placement
from tasks.config.memory import check_devices, device_memories
from tasks.config.pipelines import Pipeline

TIMEOUT_S = 120.0
"""Until every node has answered; a new Python process has to start there."""


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
            check_devices(pipeline, memories[node["NodeID"]], nodes=placement.nodes, place=f"node {name}")


def node_memories(device: str, *, environment: Mapping[str, str]) -> dict[str, list[int]]:
    """What `device_memories` finds on each live node, by Ray's id of the node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    read = ray.remote(num_cpus=0, runtime_env={"env_vars": dict(environment)})(device_memories)
    answers = {
        node["NodeID"]: read.options(
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        ).remote(device)
        for node in ray.nodes()
        if node["Alive"]
    }
    return dict(zip(answers, ray.get(list(answers.values()), timeout=TIMEOUT_S), strict=True))
