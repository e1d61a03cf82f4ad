"""Compares the memory that a pipeline needs on each device with what the device has, part by part.

A device is a GPU, or on `backend.device: cpu` a node. What does not fit is refused before anything starts:
the refusal names the parts, and the settings by any one of which it would fit. `tasks/config/capacity.py` has
the arithmetic of a GPU while the policy is updated; here are that of the samplers and of CPUs, and the
refusal.
"""

import os
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

from envs.cgroups import find_memory_limit
from envs.errors import ConfigError
from envs.requirements.detection import PROBE_TIMEOUT_S
from tasks.algorithms.distillation import Distillation, TeacherEndpoint
from tasks.cluster.address import cluster_address
from tasks.config.capacity import (
    CUDA_BYTES,
    ModelSize,
    read_model_size,
    state_bytes,
    supervised_bytes,
    supervised_parts,
    training_parts,
)
from tasks.config.offline import OfflineSettings
from tasks.config.pipelines import Pipeline

VLLM_TOKENS = 8192
"""Tokens of one forward pass of vLLM (verl's `max_num_batched_tokens`)."""
VLLM_BYTES = 1_000_000_000
"""vLLM's CUDA graphs and workspaces."""
ASLEEP_BYTES = 2_500_000_000
"""The memory that vLLM keeps on a GPU while it sleeps, its CUDA context included."""
PROCESSES_BYTES = 4_500_000_000
"""The memory of a run on one CPU node, whatever its model: Ray, verl, Prefect and Python's libraries
(measured)."""
VLLM_PROCESS_BYTES = 1_800_000_000
"""The memory of one vLLM process on a CPU, without weights, keys and values (measured)."""
CPU_CACHE_BYTES = 2_000_000_000
"""The most that a CPU sampler keeps of keys and values of episodes: half of `CpuEngine`'s `cache_gb`, and
all of vLLM's (`agents/samplers/vllm.py`)."""
CPU_LOGIT_BYTES = 16
"""Bytes per logit of a micro-batch on a CPU: the logits, their log-softmax, and the gradients of both, in
fp32."""
A_GPU = "a GPU of {place}"
THIS_MACHINE = "this machine"
USABLE = 0.95
"""Share of a node's memory from which on Ray ends processes."""


class Phase(StrEnum):
    """What a device needs its memory for."""

    TRAIN = "to train"
    """On a CPU, and with `train.async`, the samplers are there too."""
    TRAIN_SUPERVISED = "to train supervised"
    SAMPLE = "to sample"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What one device needs in one phase of a training step."""

    phase: Phase
    parts: Mapping[str, int]
    """Name → bytes, at the same time."""
    room: int
    """Bytes that the device has for them; 0 if that is unknown."""
    room_name: str
    """What has that room, with `{place}` for where it is."""
    remedy: str = "no setting alone makes it fit; use a smaller model, or more or larger devices"
    """Where the value of no setting makes it fit."""

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def largest_parts(self) -> list[tuple[str, int]]:
        """The parts of 50 MB and more, the largest first."""
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        return [(name, count) for name, count in parts if count >= 5e7]

    @property
    def fits(self) -> bool:
        """Whether the room is enough, or unknown."""
        return not self.room or self.total <= self.room


def memory_needs(
    pipeline: Pipeline,
    size: ModelSize,
    *,
    device_bytes: int = 0,
    nodes: int = 1,
    phases: Collection[Phase] = tuple(Phase),
) -> list[Need]:
    """What each device needs, by phase, those of `phases`.

    `device_bytes`: its memory, 0 if that is unknown; `nodes`: over which a CPU's workers are spread.
    """
    if pipeline.backend.device == "cpu":
        needs = _of_node(pipeline, size, memory=device_bytes, nodes=nodes, phases=phases)
    else:
        needs = _of_gpu(pipeline, size, gpu=device_bytes)
    return [need for need in needs if need.phase in phases]


def find_memory_needs(pipeline: Pipeline) -> list[Need]:
    """`memory_needs` on the smallest device of this machine, and on a cluster, where the memory is unknown;
    each `room_name` has its place. Empty if the size of the model is unknown."""
    size = read_model_size(pipeline.model)
    if size is None:
        return []
    here = phases_here(pipeline)
    smallest = min(device_memories(pipeline.backend.device), default=0)
    needs = [
        *((need, THIS_MACHINE) for need in memory_needs(pipeline, size, device_bytes=smallest, phases=here)),
        *((need, "the cluster") for need in memory_needs(pipeline, size, phases={*Phase} - {*here})),
    ]
    return [replace(need, room_name=need.room_name.format(place=place)) for need, place in needs]


def phases_here(pipeline: Pipeline) -> Collection[Phase]:
    """The phases for which this machine needs its memory: all, or with a cluster (`RAY_ADDRESS`) those of the
    command's own processes.

    These are supervised training and, on a CPU, the sampling of `tasks/evaluation/policy.py`: for the final
    evaluation and for offline algorithms.
    """
    if not cluster_address():
        return tuple(Phase)
    return (Phase.TRAIN_SUPERVISED, *((Phase.SAMPLE,) if pipeline.backend.device == "cpu" else ()))


def check_memory(pipeline: Pipeline) -> None:
    """Raise `ConfigError` if `pipeline` does not fit this machine.

    With a cluster, that is the part of `phases_here`: its nodes are checked when training connects to them.
    Nothing is checked for a model whose size is unknown.
    """
    check_devices(pipeline, device_memories(pipeline.backend.device), phases=phases_here(pipeline))


def check_devices(
    pipeline: Pipeline,
    memories: Sequence[int],
    *,
    nodes: int = 1,
    place: str = THIS_MACHINE,
    phases: Collection[Phase] = tuple(Phase),
) -> None:
    """Raise `ConfigError` if `pipeline` does not fit the smallest of the devices, which are of `place`.

    `memories`: bytes of each, as `device_memories` reads them; `nodes` and `phases` as for `memory_needs`.
    """
    size = read_model_size(pipeline.model) if memories else None
    if size is None:
        return
    smallest = min(memories)
    find_needs = partial(memory_needs, size=size, device_bytes=smallest, nodes=nodes, phases=phases)
    _check_needs(pipeline, size, find_needs=find_needs, place=place)


def check_sampling(pipeline: Pipeline, folder: Path, *, episodes: int, on_gpus: bool) -> None:
    """Raise `ConfigError` if this machine cannot sample the model in `folder` while nothing is trained.

    `episodes`: the most at the same time. `on_gpus`: whether vLLM samples there. Nothing is checked on the
    GPUs of a cluster, and for a model whose size is unknown.
    """
    memories = device_memories("cuda" if on_gpus else "cpu")
    size = read_model_size(str(folder)) if memories and not (on_gpus and cluster_address()) else None
    if size is None:
        return
    smallest = min(memories)

    def find_needs(pipeline: Pipeline) -> list[Need]:
        if on_gpus:
            return [_of_vllm(pipeline, size, gpu=smallest)]
        parts = _samplers_parts(pipeline, size, count=1, episodes=episodes)
        return [Need(phase=Phase.SAMPLE, parts=parts, room=int(USABLE * smallest), room_name="{place}")]

    sampled = pipeline.model_copy(update={"model": str(folder)})
    _check_needs(sampled, size, find_needs=find_needs, place=THIS_MACHINE)


def _check_needs(
    pipeline: Pipeline, size: ModelSize, *, find_needs: Callable[[Pipeline], list[Need]], place: str
) -> None:
    for need in find_needs(pipeline):
        if not need.fits:
            remedies = list(_remedies(pipeline, size, find_needs=find_needs))
            raise ConfigError(_refuse(need, remedies, model=pipeline.model, place=place))


def device_memories(device: str) -> list[int]:
    """Bytes of each GPU of this machine, or on `cpu` of its memory."""
    return gpu_memories() if device == "cuda" else [_node_memory()]


def gpu_memories() -> list[int]:
    """Bytes of each GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(line) * 2**20 for line in done.stdout.split() if line.isdigit()]


def _node_memory() -> int:
    """The memory of this machine, or of its container if that may use less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = find_memory_limit()
    return total if limit is None else min(total, limit)


def _of_gpu(pipeline: Pipeline, size: ModelSize, *, gpu: int) -> list[Need]:
    needs = []
    if _is_supervised(pipeline):
        parts = supervised_parts(pipeline, size)
        needs.append(_to_train_supervised(pipeline, parts, room=gpu, room_name=A_GPU))
    train = pipeline.train
    if not isinstance(train, OfflineSettings):
        training = training_parts(pipeline, size)
        vllm = {"vLLM's share": int(pipeline.backend.gpu_memory_utilization * gpu)}
        if train.async_ is not None:  # vLLM samples during the update, and never gives its share back
            needs.append(Need(phase=Phase.TRAIN, parts=training | vllm, room=gpu, room_name=A_GPU))
        else:
            state = {"weights, gradients and optimizer": state_bytes(pipeline, size)}
            beside_vllm = state | vllm | {"CUDA": CUDA_BYTES}
            while_training = training | {"vLLM asleep": ASLEEP_BYTES}
            needs.append(Need(phase=Phase.TRAIN, parts=while_training, room=gpu, room_name=A_GPU))
            needs.append(Need(phase=Phase.SAMPLE, parts=beside_vllm, room=gpu, room_name=A_GPU))
    return [*needs, _of_vllm(pipeline, size, gpu=gpu)]


def _is_supervised(pipeline: Pipeline) -> bool:
    """Whether something is trained in the process of `tasks/verl/sft.py`."""
    return pipeline.warmup is not None or isinstance(pipeline.train, OfflineSettings)


def _to_train_supervised(pipeline: Pipeline, parts: Mapping[str, int], *, room: int, room_name: str) -> Need:
    train, cause, other = pipeline.train, "the warm-up", ""
    if not isinstance(train, OfflineSettings):
        other = ", or set warmup: null"
    elif pipeline.warmup is None:
        cause, other = train.algorithm.name, ", or train.lora" if train.lora is None else ""
    return Need(
        phase=Phase.TRAIN_SUPERVISED,
        parts=parts,
        room=room,
        room_name=room_name,
        remedy=f"one process trains {cause}, whatever backend.workers is; use a smaller model, or a larger "
        f"device{other}",
    )


def _of_vllm(pipeline: Pipeline, size: ModelSize, *, gpu: int) -> Need:
    """What vLLM needs within its share of a GPU, in bf16."""
    backend = pipeline.backend
    activations = 2 * VLLM_TOKENS * (4 * size.width + 3 * size.mlp_width)
    logits = 12 * backend.max_sequences * size.vocabulary
    parts = {
        "weights": 2 * size.parameters // backend.tensor_parallel,
        # With more GPUs than heads of keys, each GPU has a copy of one.
        _episode(pipeline): 2
        * _numbers_per_token(size)
        * pipeline.rollout.context_length
        // min(backend.tensor_parallel, size.kv_heads),
        "activations and CUDA graphs": activations + logits + VLLM_BYTES,
    }
    share = int(backend.gpu_memory_utilization * gpu)
    name = f"vLLM's share of {A_GPU} (backend.gpu_memory_utilization {backend.gpu_memory_utilization})"
    return Need(phase=Phase.SAMPLE, parts=parts, room=share, room_name=name)


def _of_node(
    pipeline: Pipeline, size: ModelSize, *, memory: int, nodes: int, phases: Collection[Phase]
) -> list[Need]:
    """What one of so many nodes needs for its workers and samplers, in fp32; without gradient checkpointing.

    A node that trains by an online algorithm has samplers meanwhile, and is not asked for `Phase.SAMPLE`.
    """
    backend, train, rollout = pipeline.backend, pipeline.train, pipeline.rollout
    workers = backend.workers // nodes
    tokens, num_samplers = train.micro_batch_tokens, workers * backend.samplers
    has_reference = train.kl is not None and train.lora is None  # else it is the policy without adapters
    saved = 4 * tokens * size.layers * (8 * size.width + 2 * size.kv_width + 4 * size.mlp_width)
    logits = CPU_LOGIT_BYTES * tokens * size.vocabulary
    episodes = -(-rollout.items_per_step * rollout.group_size // (num_samplers * nodes))
    processes = {"processes": PROCESSES_BYTES}
    room, needs = int(USABLE * memory), []
    if _is_supervised(pipeline):
        parts = {
            "weights, gradients and optimizer": supervised_bytes(pipeline, size),
            "activations": saved,
            "logits": logits,
            **processes,
        }
        needs.append(_to_train_supervised(pipeline, parts, room=room, room_name="{place}"))
    if isinstance(train, OfflineSettings) or Phase.TRAIN not in phases:
        sampling = _samplers_parts(pipeline, size, count=1, episodes=backend.max_sequences) | processes
        needs.append(Need(phase=Phase.SAMPLE, parts=sampling, room=room, room_name="{place}"))
        return needs
    training = {
        "weights, gradients and optimizer": state_bytes(pipeline, size) * workers,
        "reference": 4 * size.parameters // nodes if has_reference else 0,
        "teacher": _teacher_bytes(pipeline, size),
        "activations": workers * saved,
        "logits": workers * logits,
    }
    sampling = _samplers_parts(pipeline, size, count=num_samplers, episodes=episodes) | processes
    needs.append(Need(phase=Phase.TRAIN, parts=training | sampling, room=room, room_name="{place}"))
    return needs


def _samplers_parts(pipeline: Pipeline, size: ModelSize, *, count: int, episodes: int) -> dict[str, int]:
    """What so many samplers on a CPU need, each with so many episodes at once."""
    backend = pipeline.backend
    of_one = 4 * _numbers_per_token(size) * pipeline.rollout.context_length
    cache = min(CPU_CACHE_BYTES, of_one * min(backend.max_sequences, episodes))
    return {
        "samplers' weights": count * 4 * size.parameters,
        "keys and values": count * cache,
        "vLLM's processes": count * VLLM_PROCESS_BYTES if backend.rollout == "vllm-cpu" else 0,
    }


def _teacher_bytes(pipeline: Pipeline, size: ModelSize) -> int:
    """The bytes of a teacher in the training process: its weights, and the logits of one episode three times
    over."""
    algorithm = pipeline.train.algorithm
    if not isinstance(algorithm, Distillation) or isinstance(algorithm.teacher_source, TeacherEndpoint):
        return 0
    folder = algorithm.teacher_source
    teacher = size if folder is None else read_model_size(folder)
    if teacher is None:
        return 0
    return 4 * teacher.parameters + 12 * pipeline.rollout.context_length * teacher.vocabulary


def _numbers_per_token(size: ModelSize) -> int:
    """Keys and values of one token in all layers."""
    return 2 * size.layers * size.kv_width


def _episode(pipeline: Pipeline) -> str:
    return f"keys and values of an episode of {pipeline.rollout.context_length:,} tokens"


def _refuse(need: Need, remedies: Sequence[str], *, model: str, place: str) -> str:
    listed = ", ".join(f"{name} {count / 1e9:.1f}" for name, count in need.largest_parts)
    remedy = f"set {' or '.join(remedies)}" if remedies else need.remedy
    return (
        f"{model} needs about {need.total / 1e9:.1f} GB {need.phase}, and "
        f"{need.room_name.format(place=place)} has {need.room / 1e9:.1f} GB ({listed}); {remedy}"
    )


def _remedies(
    pipeline: Pipeline, size: ModelSize, *, find_needs: Callable[[Pipeline], list[Need]]
) -> Iterator[str]:
    """`key value` of each setting that alone makes `pipeline` fit, by its smallest change."""
    for key, values in _changes(pipeline, size).items():
        block, name = key.split(".")
        for value in values:
            settings = getattr(pipeline, block).model_copy(update={name: value})
            changed = pipeline.model_copy(update={block: settings})
            if all(need.fits for need in find_needs(changed)):
                yield f"{key} {value}"
                break


def _changes(pipeline: Pipeline, size: ModelSize) -> dict[str, Sequence[object]]:
    """Values to try, by key: each further from the pipeline's own. The other settings allow each of them."""
    backend, train, rollout = pipeline.backend, pipeline.train, pipeline.rollout
    halves = [tokens for tokens in _halves(train.micro_batch_tokens) if tokens > rollout.context_length]
    fewer_tokens = [*halves, rollout.context_length]  # the fewest that an episode fits into
    if backend.device == "cpu":
        return {
            "train.micro_batch_tokens": fewer_tokens,
            "backend.samplers": list(range(backend.samplers - 1, 0, -1)),
            "backend.max_sequences": _halves(backend.max_sequences),
        }
    percent = round(100 * backend.gpu_memory_utilization)
    nearest = sorted(range(5, 96), key=lambda other: abs(other - percent))
    return {
        "train.micro_batch_tokens": fewer_tokens,
        "backend.gpu_memory_utilization": [other / 100 for other in nearest],
        "backend.workers": [backend.workers * 2**k for k in range(1, 8)],
        "backend.tensor_parallel": [
            gpus
            for gpus in (2, 4, 8)
            if gpus > backend.tensor_parallel and backend.workers % gpus == 0 and size.fits_engine(gpus)
        ],
        "rollout.context_length": [
            tokens for tokens in _halves(rollout.context_length) if tokens > rollout.max_tokens_per_turn
        ],
    }


def _halves(number: int) -> list[int]:
    return [number >> k for k in range(1, number.bit_length())]
