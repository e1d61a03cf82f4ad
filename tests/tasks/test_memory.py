"""What a device needs and has: by hand for Qwen2.5, against what PyTorch saves, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError
from tasks.cluster import memory
from tasks.cluster.memory import (
    Need,
    Phase,
    check_devices,
    check_memory,
    device_memories,
    find_memory_needs,
    memory_needs,
)
from tasks.config.capacity import ModelSize, read_model_size
from tasks.config.pipelines import Pipeline, load_pipeline, pipeline_names
from tasks.config.training import AsyncSettings
from tasks.verl.config import check_pipeline
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline
from tests.tasks.test_capacity import GPU, QWEN_05B, QWEN_3B, QWEN_7B

SIZES = {"3b": QWEN_3B, "7b": QWEN_7B}
GPUS = {"device": "cuda", "rollout": "vllm"}
WARMUP = {"demonstrations": 100, "noise": 0.0, "steps": 10, "batch_size": 8, "lr": 1e-5}
OFFLINE = {"algorithm": "dpo", "steps": 20, "lr": 1e-6, "micro_batch_tokens": 16_384}


def needs(pipeline: Pipeline, size: ModelSize, *, device_bytes: int = GPU) -> list[Need]:
    return memory_needs(pipeline, size, device_bytes=device_bytes)


def test_vllm_by_hand() -> None:
    """Keys and values in bf16: 7B has 28 layers of 4 heads of 128 numbers, 3B 36 of 2 heads."""
    pipeline = load_pipeline("searchqa-qwen2.5-7b")  # 9,216 tokens
    *_, of_7b = needs(pipeline, QWEN_7B)
    assert of_7b.parts["weights"] == 2 * 7_615_616_512
    assert of_7b.parts["keys and values of an episode of 9,216 tokens"] == 9216 * (28 * 2 * 4 * 128 * 2)
    assert of_7b.room == 48 * 10**9  # .6 of 80 GB
    *_, of_3b = needs(load_pipeline("textcraft-qwen2.5-3b"), QWEN_3B)
    assert of_3b.parts["keys and values of an episode of 10,752 tokens"] == 10_752 * (36 * 2 * 2 * 128 * 2)
    # Activations of 8,192 tokens in bf16, and three copies in fp32 of the logits of 256 sequences.
    other_bytes = 8192 * 2 * (4 * 2048 + 3 * 11_008) + 256 * 151_936 * 12 + 10**9
    assert of_3b.total == 2 * 3_085_938_688 + 10_752 * 36_864 + other_bytes
    backend = pipeline.backend.model_copy(update={"tensor_parallel": 2})
    *_, of_half = needs(pipeline.model_copy(update={"backend": backend}), QWEN_7B)
    assert of_half.parts["weights"] == 7_615_616_512
    # On four GPUs, 3B has a copy of one of its two heads of keys on each.
    overrides = {"backend.tensor_parallel": 4}
    *_, of_quarter = needs(load_pipeline("textcraft-qwen2.5-3b", overrides=overrides), QWEN_3B)
    assert of_quarter.parts["weights"] == 2 * 3_085_938_688 // 4
    keys = of_quarter.parts["keys and values of an episode of 10,752 tokens"]
    assert keys == 10_752 * (36 * 2 * 1 * 128 * 2)


def test_a_gpu_by_hand() -> None:
    """AgentGym-RL's 7B on 8 GPUs: 15.2 GB of state, and 8.4 + 6.2 + 1.9 + 5 GB while it is updated."""
    training, sampling, of_vllm = needs(load_pipeline("searchqa-qwen2.5-7b"), QWEN_7B)
    phases = [need.phase for need in (training, sampling, of_vllm)]
    assert phases == [Phase.TRAIN, Phase.SAMPLE, Phase.SAMPLE]
    assert training.total / 1e9 == pytest.approx(15.23 + 8.42 + 6.22 + 1.87 + 5, abs=0.02)
    assert sampling.total / 1e9 == pytest.approx(15.23 + 48 + 2.5, abs=0.02)


def test_vllm_that_samples_during_the_update_keeps_its_share() -> None:
    pipeline = load_pipeline("searchqa-qwen2.5-7b")
    in_turns, *_ = needs(pipeline, QWEN_7B)
    both, of_vllm = needs(with_blocks(pipeline, train={"async_": AsyncSettings()}), QWEN_7B)
    assert both.phase == Phase.TRAIN
    assert both.parts.keys() - in_turns.parts.keys() == {"vLLM's share"}
    assert in_turns.parts.keys() - both.parts.keys() == {"vLLM asleep"}  # it never sleeps
    assert both.total / 1e9 == pytest.approx(15.23 + 8.42 + 6.22 + 1.87 + 2.5 + 48, abs=0.02)
    assert of_vllm.phase == Phase.SAMPLE


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"warmup": WARMUP}, "one process trains the warm-up, .* or set warmup: null"),
        ({"train": OFFLINE}, "one process trains dpo, .* larger device, or train.lora"),
        ({"train": OFFLINE, "warmup": WARMUP}, "one process trains the warm-up, .* larger device"),
        # Of 7B, only the adapters are trained.
        ({"train": OFFLINE | {"lora": {"rank": 16}}}, ""),
        # The warm-up trains all weights.
        (
            {"train": OFFLINE | {"lora": {"rank": 16}}, "warmup": WARMUP},
            "one process trains the warm-up, .* device",
        ),
    ],
)
def test_supervised_training_has_one_gpu_whatever_the_workers(
    changes: dict[str, Any], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process group of `tasks/verl/sft.py` has one member: 16 bytes a parameter are not divided by 8."""
    monkeypatch.setattr(memory, "read_model_size", lambda _: QWEN_7B)
    pipeline = load_pipeline("textcraft-qwen2.5-7b", overrides=changes)
    assert pipeline.backend.workers == 8
    supervised, *others = needs(pipeline, QWEN_7B)
    assert supervised.phase is Phase.TRAIN_SUPERVISED
    state = supervised.parts["weights, gradients and optimizer"]
    if not remedy:
        assert state < 5 * 7_615_616_512
        check_devices(pipeline, [GPU])
        return
    assert state == 16 * 7_615_616_512
    assert all(need.fits for need in others)
    with pytest.raises(ConfigError, match=rf"140.9 GB to train supervised, .*; {remedy}$"):
        check_devices(pipeline, [GPU])
    check_devices(pipeline, [141 * 10**9])


def test_a_warm_up_on_a_cpu_trains_all_weights_on_one_node() -> None:
    overrides = {"train.lora": {"rank": 4}, "backend.workers": 2}
    pipeline = load_pipeline("textcraft-cpu", overrides=overrides)
    supervised, online = memory_needs(pipeline, QWEN_3B, nodes=2)
    assert supervised.parts["weights, gradients and optimizer"] == 16 * 3_085_938_688
    assert online.parts["weights, gradients and optimizer"] < 3 * 3_085_938_688
    training, sampling = needs(load_pipeline("textcraft-dpo-cpu"), QWEN_3B)
    assert (training.phase, sampling.phase) == (Phase.TRAIN_SUPERVISED, Phase.SAMPLE)
    assert "samplers' weights" not in training.parts, "they have ended"
    assert sampling.parts["samplers' weights"] == 4 * 3_085_938_688


def test_a_cpu_node_by_hand() -> None:
    pipeline = load_pipeline("textcraft-cpu", overrides={"warmup": None})
    [need] = needs(pipeline, QWEN_3B, device_bytes=64 * 10**9)
    tokens = pipeline.train.micro_batch_tokens
    samplers = pipeline.backend.samplers
    assert need.parts == {
        "weights, gradients and optimizer": 16 * 3_085_938_688,
        "reference": 0,
        "teacher": 0,
        "activations": 4 * tokens * 36 * (8 * 2048 + 2 * 256 + 4 * 11_008),
        "logits": 16 * tokens * 151_936,
        "samplers' weights": samplers * 4 * 3_085_938_688,
        "keys and values": samplers * 2 * 10**9,
        "vLLM's processes": 0,
        "processes": 4_500_000_000,
    }
    by_vllm = load_pipeline("textcraft-cpu", overrides={"backend.rollout": "vllm-cpu"})
    _, of_vllm = needs(by_vllm, QWEN_3B)
    assert of_vllm.parts == {**need.parts, "vLLM's processes": samplers * 1_800_000_000}
    with_reference = load_pipeline("textcraft-cpu", overrides={"train.kl": {"coef": 0.01}})
    _, need = needs(with_reference, QWEN_3B)
    assert need.parts["reference"] == 4 * 3_085_938_688
    # Over two nodes, each has half of the workers and of what is sharded.
    with_teacher = load_pipeline("textcraft-cpu", overrides={"train.algorithm": "self_distill"})
    _, of_teacher = needs(with_teacher, QWEN_3B)
    assert of_teacher.parts["teacher"] == 4 * 3_085_938_688 + 12 * 1280 * QWEN_3B.vocabulary
    two = with_reference.backend.model_copy(update={"workers": 2})
    _, half = memory_needs(with_reference.model_copy(update={"backend": two}), QWEN_3B, nodes=2)
    assert half.parts["weights, gradients and optimizer"] == 8 * 3_085_938_688
    assert half.parts["activations"] == need.parts["activations"]


@pytest.mark.parametrize(("width", "mlp_width", "kv_heads"), [(128, 352, 4), (256, 352, 1), (128, 1024, 2)])
def test_activations_on_a_cpu_are_what_autograd_saves(width: int, mlp_width: int, kv_heads: int) -> None:
    import torch
    from transformers import AttentionInterface, LlamaConfig, LlamaModel

    from tasks.verl.cpu.packed_row import ATTENTION, PromptBlock, packed_attention

    AttentionInterface.register(ATTENTION, packed_attention)

    def saved_bytes(layers: int) -> int:
        config = LlamaConfig(
            hidden_size=width,
            intermediate_size=mlp_width,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            vocab_size=64,
            attn_implementation=ATTENTION,
        )
        model = LlamaModel(config)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        saved_tensors: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if (address := tensor.untyped_storage().data_ptr()) not in weights:
                saved_tensors[address] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(
                torch.zeros(1, 200, dtype=torch.long),
                attention_mask=None,
                blocks=(PromptBlock(0, 100, (60, 40)),),
            )
        return sum(tensor.untyped_storage().nbytes() for tensor in saved_tensors.values())

    pipeline = load_pipeline("textcraft-cpu", overrides={"warmup": None})
    pipeline = pipeline.model_copy(
        update={"train": pipeline.train.model_copy(update={"micro_batch_tokens": 200})}
    )
    size = ModelSize(
        parameters=0,
        vocabulary=64,
        width=width,
        mlp_width=mlp_width,
        layers=2,
        heads=4,
        kv_heads=kv_heads,
        kv_width=width // 4 * kv_heads,
        tied=True,
    )
    [need] = needs(pipeline, size)
    assert saved_bytes(4) - saved_bytes(2) == pytest.approx(need.parts["activations"], rel=0.005)


@pytest.mark.parametrize(
    "name", [name for name in pipeline_names() if load_pipeline(name).backend.device == "cpu"]
)
def test_shipped_cpu_pipelines_fit_8_gb(name: str) -> None:
    pipeline = load_pipeline(name)
    size = read_model_size(pipeline.model)
    assert size is not None
    assert all(need.fits for need in needs(pipeline, size, device_bytes=8 * 10**9))


@pytest.mark.parametrize(
    "name", [name for name in pipeline_names() if load_pipeline(name).backend.device == "cuda"]
)
def test_shipped_gpu_pipelines_fit_80_gb(name: str) -> None:
    pipeline = load_pipeline(name)
    size = next((size for key, size in SIZES.items() if key in name), None) or read_model_size(pipeline.model)
    assert size is not None
    assert all(need.total < 0.9 * need.room for need in needs(pipeline, size))


def with_blocks(pipeline: Pipeline, **blocks: dict[str, Any]) -> Pipeline:
    changed_blocks = {
        name: getattr(pipeline, name).model_copy(update=values) for name, values in blocks.items()
    }
    return pipeline.model_copy(update=changed_blocks)


REFUSED: list[tuple[dict[str, dict[str, Any]], int, str, str]] = [
    # (changes, GB of a GPU, what is said of the need, the remedies)
    ({"backend": {"workers": 1}}, 80, "143.4 GB to train, and a GPU of this machine has 80.0 GB (weights, "
     "gradients and optimizer 121.8, activations 8.4", "set backend.workers 8"),
    ({}, 40, "41.7 GB to sample, and a GPU of this machine has 40.0 GB (vLLM's share 24.0",
     "set backend.gpu_memory_utilization 0.55 or backend.workers 16"),
    ({"backend": {"gpu_memory_utilization": 0.2}}, 80, "18.4 GB to sample, and vLLM's share of a GPU of this "
     "machine (backend.gpu_memory_utilization 0.2) has 16.0 GB (weights 15.2",
     "set backend.gpu_memory_utilization 0.23 or backend.tensor_parallel 2"),
    ({"train": {"micro_batch_tokens": 131_072}}, 80, "95.7 GB to train",
     "set train.micro_batch_tokens 65536"),
    ({}, 24, "36.7 GB to train",
     "no setting alone makes it fit; use a smaller model, or more or larger devices"),
    ({"train": {"async_": AsyncSettings()}}, 80, "82.2 GB to train, and a GPU of this machine has 80.0 GB "
     "(vLLM's share 48.0", "set train.micro_batch_tokens 9216 or backend.gpu_memory_utilization 0.57 or "
     "backend.workers 16"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "tokens", "utilization", "remedy"),
    [
        # Weights and keys in a share of 8 GB: a quarter of them fits, half does not.
        (3, 512, 0.1, "set backend.gpu_memory_utilization 0.23"),
        (4, 512, 0.1, "set backend.gpu_memory_utilization 0.23 or backend.tensor_parallel 4"),
        # In 18.2 GB the keys of half a context fit, which must have room for a turn.
        (1, 512, 0.228, "set backend.gpu_memory_utilization 0.23 or rollout.context_length 4608"),
        (1, 5000, 0.228, "set backend.gpu_memory_utilization 0.23"),
    ],
)
def test_what_would_fit_is_no_setting_that_is_refused_next(
    workers: int, tokens: int, utilization: float, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "read_model_size", lambda _: QWEN_7B)
    settings = {
        "backend.workers": workers,
        "backend.gpu_memory_utilization": utilization,
        "rollout.max_tokens_per_turn": tokens,
        "train.lora.rank": 8,
    }
    with pytest.raises(ConfigError) as error:
        check_devices(load_pipeline("searchqa-qwen2.5-7b", overrides=settings), [GPU])
    assert str(error.value).endswith(f"; {remedy}")
    for setting in remedy.removeprefix("set ").split(" or "):
        key, value = setting.split()
        check_pipeline(load_pipeline("searchqa-qwen2.5-7b", overrides=settings | {key: float(value)}))


def test_more_gpus_than_the_model_can_be_spread_over_are_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.5B has 14 attention heads: two GPUs can share them, four cannot, though its weights would fit."""
    monkeypatch.setattr(memory, "read_model_size", lambda _: QWEN_05B)
    small_gpu = 16 * 10**9
    for utilization, remedy in ((0.15, "0.19 or backend.tensor_parallel 2"), (0.14, "0.19")):
        overrides = {"backend.workers": 4, "backend.gpu_memory_utilization": utilization}
        pipeline = load_pipeline("textcraft-qwen2.5-3b", overrides=overrides)
        with pytest.raises(ConfigError, match=rf"; set backend\.gpu_memory_utilization {remedy}$"):
            check_devices(pipeline, [small_gpu])


@pytest.mark.parametrize(("changes", "gigabytes", "need", "remedy"), REFUSED)
def test_a_refusal_names_the_parts_and_what_would_fit(
    changes: dict[str, dict[str, Any]],
    gigabytes: int,
    need: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "read_model_size", lambda _: QWEN_7B)
    pipeline = with_blocks(load_pipeline("searchqa-qwen2.5-7b"), **changes)
    with pytest.raises(ConfigError) as error:
        check_devices(pipeline, [GPU, gigabytes * 10**9])
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith(f"Qwen/Qwen2.5-7B-Instruct needs about {need}")
    assert text.endswith(f"; {remedy}")
    if not remedy.startswith("set "):
        return
    for setting in remedy.removeprefix("set ").split(" or "):  # each of them alone is enough
        key, value = setting.split()
        block, name = key.split(".")
        number = float(value) if "." in value else int(value)
        check_devices(with_blocks(pipeline, **{block: {name: number}}), [gigabytes * 10**9])


@pytest.mark.parametrize(
    ("backend", "tokens", "megabytes", "message"),
    [
        ({}, 1024, 6000, None),
        ({}, 3_000_000, 6000, "15.0 GB to train, and a GPU of this machine has 6.3 GB"),
        ({"gpu_memory_utilization": 0.9}, 1024, 6000, "8.2 GB to sample"),
        ({}, 3_000_000, None, None),  # no GPU here to compare with
    ],
)
def test_what_does_not_fit_this_machines_gpus_is_refused(
    backend: dict[str, Any],
    tokens: int,
    megabytes: int | None,
    message: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    if megabytes is not None:
        program = programs / "nvidia-smi"
        program.write_text(f"#!/bin/sh\necho 81559\necho {megabytes}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    pipeline = toy_pipeline(
        save_tiny_model(tmp_path / "model"), backend={**GPUS, **backend}, train__micro_batch_tokens=tokens
    )
    if message is None:
        check_memory(pipeline)
        return
    with pytest.raises(ConfigError) as error:
        check_memory(pipeline)
    assert message in str(error.value)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    check_memory(pipeline)  # the cluster's nodes are others


def test_beside_a_cluster_this_machine_needs_the_memory_of_the_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    pipeline = load_pipeline("textcraft-cpu", overrides={"train.micro_batch_tokens": 10**9})
    with pytest.raises(ConfigError, match=r"to train supervised, and this machine has .*; set train\.micro"):
        check_memory(pipeline)
    check_memory(pipeline.model_copy(update={"warmup": None}))  # the rest is for the nodes
    places = [(need.phase, need.room_name, need.room > 0) for need in find_memory_needs(pipeline)]
    assert places == [
        (Phase.TRAIN_SUPERVISED, "this machine", True),
        (Phase.SAMPLE, "this machine", True),
        (Phase.TRAIN, "the cluster", False),
    ]


def test_beside_a_cluster_this_machine_needs_the_memory_to_sample_for_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """3B in fp32 and 4.5 GB of processes are 16.8 GB; keys and values have up to 2 GB more."""
    memories = [17 * 10**9]
    monkeypatch.setattr(memory, "read_model_size", lambda _: QWEN_3B)
    monkeypatch.setattr(memory, "device_memories", lambda _: memories)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:6379")
    pipeline = load_pipeline("textcraft-cpu", overrides={"warmup": None, "backend.samplers": 4})
    sampling, training = find_memory_needs(pipeline)
    assert (sampling.phase, training.phase) == (Phase.SAMPLE, Phase.TRAIN)
    episodes = 4 * 2 * 36 * 256 * pipeline.rollout.context_length * pipeline.backend.max_sequences
    assert sampling.total == 4 * 3_085_938_688 + min(2 * 10**9, episodes) + 4_500_000_000
    with pytest.raises(ConfigError, match=r"GB to sample, and this machine has 16\.1 GB"):
        check_memory(pipeline)
    memories[:] = [20 * 10**9]
    check_memory(pipeline)  # the nodes train

    offline = find_memory_needs(load_pipeline("textcraft-dpo-cpu"))
    assert [need.room_name for need in offline] == ["this machine", "this machine"]
    assert offline[1].total == sampling.total


def test_this_machines_memory_is_that_of_its_container() -> None:
    import psutil

    [device_bytes] = device_memories("cpu")
    assert 0 < device_bytes <= psutil.virtual_memory().total
    pipeline = load_pipeline("textcraft-cpu", overrides={"train.micro_batch_tokens": 10**9})
    with pytest.raises(ConfigError, match=r"and this machine has .*\(activations .*; set train.micro_batch"):
        check_memory(pipeline)
