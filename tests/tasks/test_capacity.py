"""How much memory and disk a model takes, by its own files; and room for checkpoints."""

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from envs.errors import WingspanError
from tasks.cluster.memory import memory_needs
from tasks.config import capacity
from tasks.config.capacity import (
    ModelSize,
    checkpoint_bytes,
    disk_bytes,
    read_model_size,
    state_bytes,
    training_parts,
)
from tasks.config.lora import LoraSettings
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.verl import checkpoints
from tests.support.tiny_model import save_tiny_model
from tests.support.verl_toy import toy_pipeline

# By their model cards and config.json.
QWEN_3B = ModelSize(
    parameters=3_085_938_688,
    vocabulary=151_936,
    width=2048,
    mlp_width=11_008,
    layers=36,
    heads=16,
    kv_heads=2,
    kv_width=256,
    tied=True,
)
QWEN_7B = ModelSize(
    parameters=7_615_616_512,
    vocabulary=152_064,
    width=3584,
    mlp_width=18_944,
    layers=28,
    heads=28,
    kv_heads=4,
    kv_width=512,
    tied=False,
)
QWEN_05B = ModelSize(
    parameters=494_032_768,
    vocabulary=151_936,
    width=896,
    mlp_width=4864,
    layers=24,
    heads=14,
    kv_heads=2,
    kv_width=128,
    tied=True,
)
GPU = 80 * 10**9


def test_the_size_is_the_models(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = save_tiny_model(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder)
    size = read_model_size(folder)
    assert size is not None
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert (size.width, size.mlp_width, size.layers, size.tied) == (64, 128, 2, True)
    assert (size.heads, size.kv_heads) == (model.config.num_attention_heads, model.config.num_key_value_heads)
    # In several files, with an index.
    model.save_pretrained(folder, max_shard_size="100KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert read_model_size(folder) == size


def test_vllm_spreads_heads_evenly() -> None:
    """By vLLM's rules: attention heads are divided by the GPUs (`ModelConfig.verify_with_parallel_config`),
    heads of keys too, or each of several GPUs has a copy of one (`Qwen2Attention`)."""
    sizes = (QWEN_05B, QWEN_3B, QWEN_7B)
    fitting = [[gpus for gpus in range(1, 17) if size.fits_engine(gpus)] for size in sizes]
    assert fitting == [[1, 2, 14], [1, 2, 4, 8, 16], [1, 2, 4]]


def test_a_size_that_cannot_be_known_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = save_tiny_model(tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:20])
    assert read_model_size(folder) is None
    weights.unlink()
    assert read_model_size(folder) is None
    assert read_model_size("nobody/such-model") is None


def test_a_model_in_the_hubs_cache_is_read_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    snapshot = cache / "models--some--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    save_tiny_model(snapshot)
    (cache / "models--some--model" / "refs").mkdir()
    (cache / "models--some--model" / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    assert read_model_size("some/model") == read_model_size(snapshot)


def test_checkpoints_and_disk_by_hand() -> None:
    pipeline = load_pipeline("searchqa-qwen2.5-7b")
    with_critic = with_train(pipeline, algorithm="ppo")
    assert round(checkpoint_bytes(QWEN_3B, pipeline.train) / 1e9) == 49
    assert round(checkpoint_bytes(QWEN_7B, pipeline.train) / 1e9) == 122
    # A critic has no lm_head, and no copy in Hugging Face format.
    assert checkpoint_bytes(QWEN_7B, with_critic.train) == 28 * 7_615_616_512 - 12 * 152_064 * 3584
    # Three checkpoints, and the trained policy here, in DVC's cache and in MLflow.
    assert disk_bytes(pipeline, QWEN_7B, checkpoints=3) == (3 * 16 + 4 * 4) * 7_615_616_512
    assert disk_bytes(with_critic, QWEN_3B, checkpoints=3) == (3 * 28 + 4 * 4) * 3_085_938_688


def with_train(pipeline: Pipeline, **changes: Any) -> Pipeline:
    values = pipeline.model_dump(mode="json", exclude_unset=True)
    return Pipeline.model_validate(values | {"train": values["train"] | changes})


def test_adapters_are_what_is_trained_of_a_policy_by_hand(tmp_path: Path) -> None:
    pipeline = with_train(load_pipeline("searchqa-qwen2.5-7b"), lora={"rank": 16})
    # Each of 28 layers: q and o, k and v of four heads of 128, and three of the MLP.
    adapters = 16 * 28 * (2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18_944))
    assert pipeline.train.lora is not None
    assert QWEN_7B.adapter_parameters(pipeline.train.lora) == adapters
    assert checkpoint_bytes(QWEN_7B, pipeline.train) == 4 * 7_615_616_512 + 16 * adapters
    assert state_bytes(pipeline, QWEN_7B) == (4 * 7_615_616_512 + 16 * adapters) // 8
    full = training_parts(load_pipeline("searchqa-qwen2.5-7b"), QWEN_7B)["gathered layers"]
    assert training_parts(pipeline, QWEN_7B)["gathered layers"] == full // 2  # without gradients
    some = LoraSettings(rank=4, targets=("self_attn.q_proj", "down_proj", "layers.0.mlp.up_proj"))
    assert QWEN_7B.adapter_parameters(some) == 4 * (28 * (7168 + 22_528) + 22_528)
    with_critic = with_train(pipeline, algorithm="ppo")
    critic = 7_615_616_512 - 152_064 * 3584
    assert checkpoint_bytes(QWEN_7B, with_critic.train) == 4 * 7_615_616_512 + 16 * adapters + 12 * critic
    assert training_parts(with_critic, QWEN_7B)["gathered layers"] == full


def test_the_adapters_of_a_model_are_counted_exactly(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    size = read_model_size(tmp_path)
    assert size is not None
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=5, target_modules="all-linear"))
    trained, _ = model.get_nb_trainable_parameters()
    assert size.adapter_parameters(LoraSettings(rank=5)) == trained


def test_memory_by_hand() -> None:
    pipeline = load_pipeline("searchqa-qwen2.5-7b")
    parts = training_parts(pipeline, QWEN_7B)
    assert state_bytes(pipeline, QWEN_7B) == 2 * 7_615_616_512  # 16 bytes a parameter over 8 GPUs
    assert state_bytes(with_train(pipeline, algorithm="ppo"), QWEN_3B) == 4 * 3_085_938_688
    # Whole distributions are not computed in chunks.
    of_all_tokens = training_parts(with_train(pipeline, algorithm="optimal_token_baseline"), QWEN_7B)
    assert of_all_tokens["logits"] == 24 * pipeline.train.micro_batch_tokens * 152_064
    assert parts["logits"] == 24 * 512 * 152_064
    beside_vllm = memory_needs(pipeline, QWEN_7B, device_bytes=GPU)[1].parts
    assert beside_vllm["vLLM's share"] == 48 * 10**9


def test_the_peak_of_an_update_is_what_an_h200_held() -> None:
    """`bench.gpu_update` on one GPU, 16,384 tokens, with `--adamw foreach`. Of 0.5B the peak was a pass; of
    3B it was the optimizer's step, with 4 bytes per parameter on top of weights, gradients and moments."""
    pipeline = load_pipeline("textcraft-qwen2.5-3b", overrides={"backend.workers": 1})
    parts = training_parts(pipeline, QWEN_05B)
    forecast = sum(parts.values()) - parts["CUDA"]
    assert forecast / 1e9 == pytest.approx(11.04, rel=0.15)
    in_step = state_bytes(pipeline, QWEN_3B) + 4 * QWEN_3B.parameters
    assert in_step / 1e9 == pytest.approx(61.79, rel=0.01)


class Usage(NamedTuple):
    """What `shutil.disk_usage` returns."""

    total: int
    used: int
    free: int


class Disk:
    """A disk of so many bytes, of which the files in `folder` take their part."""

    def __init__(self, folder: Path, size: int) -> None:
        self._folder, self._size = folder, size

    def usage(self, path: Path) -> Usage:
        used_bytes = sum(file.stat().st_size for file in self._folder.rglob("*") if file.is_file())
        return Usage(self._size, used_bytes, self._size - used_bytes)


def write_checkpoint(folder: Path, step: int) -> None:
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (actor / "model.pt").write_bytes(bytes(1000))
    checkpoints.mark_complete(folder, step=step)


def test_room_for_a_checkpoint_is_made_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, train = Disk(tmp_path, 2500), toy_pipeline(tmp_path).train
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    for step in (1, 2):
        write_checkpoint(tmp_path, step)
    checkpoints.make_room(tmp_path, model="m", train=train)  # 500 are free, and the next needs 1000
    assert checkpoints.complete_steps(tmp_path) == [2]
    (tmp_path / "else").write_bytes(bytes(600))
    with pytest.raises(WingspanError) as error:
        checkpoints.make_room(tmp_path, model="m", train=train)
    assert str(tmp_path) in str(error.value)
    assert "needs 1.04e-06 GB, and 8.63e-07 GB are free" in str(error.value)
    assert checkpoints.complete_steps(tmp_path) == [2]  # the last whole one is never given up


def test_the_first_checkpoint_is_measured_by_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_tiny_model(tmp_path / "model")
    size = read_model_size(model)
    assert size is not None
    folder, train = tmp_path / "checkpoints", toy_pipeline(model).train
    monkeypatch.setattr(shutil, "disk_usage", Disk(folder, capacity.CHECKPOINT_BYTES * size.parameters).usage)
    checkpoints.make_room(folder, model=str(model), train=train)
    monkeypatch.setattr(shutil, "disk_usage", Disk(folder, 1000).usage)
    with pytest.raises(WingspanError, match="the next checkpoint in"):
        checkpoints.make_room(folder, model=str(model), train=train)
