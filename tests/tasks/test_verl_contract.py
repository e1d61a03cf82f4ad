"""What this project takes from verl 0.9.1 is there and has the expected shape; imports the real verl.

Every name that `tasks/verl/cpu`, `tasks/verl/trainer.py`, `tasks/verl/rollout.py`, `tasks/verl/sft.py`
and `tasks/verl/dpo.py` replace or rely on without verl promising it. A failure here after an upgrade says
where to look.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from omegaconf import OmegaConf

from envs.errors import ConfigError
from tasks.cluster.memory import VLLM_TOKENS
from tasks.config.pipelines import Pipeline, load_pipeline, pipeline_names
from tasks.config.training import AsyncSettings
from tasks.verl.config import check_pipeline, verl_config
from tasks.verl.gpu.model import VARLEN_ATTENTION
from tasks.verl.process import environment_of
from tests.support.verl_toy import toy_pipeline


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def calls_and_strings(function: Any) -> list[str]:
    """What the function calls, as `self.step`, and the texts in it, in the order of its source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    positions = [
        (node.lineno, node.col_offset, ast.unparse(node.func))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
    ]
    positions += [
        (node.lineno, node.col_offset, node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return [text for _, _, text in sorted(positions)]


def test_the_platform_answers_and_is_never_found_by_probing(verl: ModuleType) -> None:
    from verl.plugin.platform import get_platform
    from verl.plugin.platform.platform_base import PlatformBase

    from tasks.verl.cpu.platform import PlatformCpu

    assert isinstance(get_platform(), PlatformCpu)
    assert not PlatformCpu.__abstractmethods__
    assert PlatformCpu().is_platform_available(use_smi_check=True) is False
    assert issubclass(PlatformCpu, PlatformBase)


def test_patches_reached_the_modules_that_use_them(verl: ModuleType) -> None:
    import verl.utils.distributed as distributed
    import verl.utils.model as model
    from verl.single_controller.ray import RayWorkerGroup
    from verl.workers import engine_workers
    from verl.workers.engine.fsdp import transformer_impl

    from tasks.verl.cpu import engine, patches

    assert RayWorkerGroup._get_master_addr_port is patches.master_address
    assert parameters(patches.verl_master_address) == parameters(patches.master_address)
    assert "self._get_master_addr_port" in calls_and_strings(RayWorkerGroup)
    assert engine_workers.initialize_global_process_group_ray is patches.init_process_group_ray
    assert distributed.initialize_global_process_group is patches.init_process_group
    assert transformer_impl.CPUOffloadPolicy is patches.UnpinnedOffloadPolicy
    assert transformer_impl.prepare_micro_batches is engine.split_by_prompt
    assert "load_valuehead_model" in calls_and_strings(transformer_impl.FSDPEngine._build_module)
    assert parameters(model.load_valuehead_model)[:3] == ["local_path", "torch_dtype", "model_config"]


def test_the_class_of_a_model_is_the_one_that_verl_chooses(verl: ModuleType) -> None:
    from transformers import LlamaConfig, Qwen2_5_VLConfig, Qwen2Config

    from tasks.verl.cpu.patches import auto_model_class, verl_auto_model_class

    configs = [
        LlamaConfig(architectures=["LlamaForCausalLM"]),
        Qwen2Config(architectures=["Qwen2ForCausalLM"]),
        Qwen2Config(architectures=["Qwen2ForTokenClassification"]),
        Qwen2_5_VLConfig(architectures=["Qwen2_5_VLForConditionalGeneration"]),
    ]
    classes = [auto_model_class(hf_config=config) for config in configs]
    assert classes == [verl_auto_model_class(hf_config=config) for config in configs]
    assert len(set(classes)) == 3


def test_engine_is_chosen_for_the_cpu_and_overrides_what_exists(verl: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    from tasks.verl.cpu.engine import CpuTrainingEngine

    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is CpuTrainingEngine
    for method in ("initialize", "prepare_model_inputs", "prepare_model_outputs"):
        assert parameters(getattr(CpuTrainingEngine, method)) == parameters(
            getattr(FSDPEngineWithLMHead, method)
        )


def test_rollout_backend_has_every_method_that_verl_calls(verl: ModuleType) -> None:
    from verl.workers.rollout.base import BaseRollout, get_rollout_class
    from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager
    from verl.workers.rollout.replica import RolloutReplica, get_rollout_replica_class

    from tasks.verl.cpu import rollout

    for backend in ("cpu", "vllm-cpu"):
        assert get_rollout_class(backend) is rollout.CpuRollout
        assert get_rollout_replica_class(backend) is rollout.CpuReplica
    assert not rollout.CpuReplica.__abstractmethods__
    assert not rollout.CpuRollout.__abstractmethods__
    assert {"weights", "wire_format"} <= set(parameters(BaseRollout.update_weights))
    assert LLMServerManager._init_global_load_balancer is rollout.init_load_balancer
    assert parameters(LLMServerManager.get_client)[:2] == ["self", "client_cls"]
    assert parameters(LLMServerClient.generate)[:4] == ["self", "request_id", "prompt_ids", "sampling_params"]
    assert {"wake_up", "sleep", "clear_kv_cache", "max_concurrency"} <= set(dir(RolloutReplica))


def test_what_gpus_need_of_verl_is_where_it_is_replaced(verl: ModuleType) -> None:
    from verl.utils import fsdp_utils
    from verl.workers.rollout.llm_server import LLMServerClient

    assert parameters(fsdp_utils._select_fsdp2_wrap_targets) == [
        "model",
        "fsdp_transformer_layer_cls_to_wrap",
    ]
    assert "_select_fsdp2_wrap_targets" in calls_and_strings(fsdp_utils.apply_fsdp2)
    calls = calls_and_strings(LLMServerClient.generate)
    assert calls.index("self._acquire_server") < calls.index("server.generate.remote")


def test_k3_has_no_gradient_beyond_10(verl: ModuleType) -> None:
    """As docs/algorithms.md says."""
    import torch
    from verl.trainer.ppo.core_algos import kl_penalty

    for estimator, gradients in (("k3", [-12.5, 0.0, 0.0]), ("k3+", [-2.603, -2.620, 11.1])):
        log_ratios = torch.tensor([2.603, 2.620, -11.1])  # of the reference; their exp is 13.50, 13.74 and 0
        log_probs = torch.zeros(3, requires_grad=True)
        values = kl_penalty(log_probs, log_ratios, estimator)
        values.sum().backward()
        assert log_probs.grad is not None
        assert values.tolist() == pytest.approx([13.50 - 2.603 - 1, 10.0, 10.0], abs=0.01)
        assert log_probs.grad.tolist() == pytest.approx(gradients, abs=0.01)


def test_trainer_overrides_what_exists(verl: ModuleType) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from tasks.verl.trainer import StepTrainer, update_options

    for method in (
        "init",
        "_init_dataloader",
        "_step_once",
        "_get_required_batch_multiple",
        "_compute_old_log_prob",
        "_compute_advantage",
        "_update_critic",
        "_update_actor",
    ):
        assert parameters(getattr(StepTrainer, method)) == parameters(getattr(PPOTrainer, method))
    assert parameters(PPOTrainer.step) == ["self", "metrics", "timing_raw"]
    assert parameters(PPOTrainerSync.on_step_end) == ["self"]
    # The order in which `run_step` and the rollout manager rely on them.
    calls = calls_and_strings(PPOTrainer.step)
    assert calls.index("self.prepare_step") < calls.index("self._step_once")
    submission = calls_and_strings(PPOTrainer._submit_batch_to_rollout)
    assert "self.agent_loop_manager.generate_sequences" in submission
    # The fields that the overrides put and get by these names.
    assert "values" in calls_and_strings(PPOTrainer._compute_values)
    assert "log_probs" in calls_and_strings(PPOTrainer._compute_old_log_prob)
    keys = {"calculate_entropy", "distillation_use_topk", "distillation_only", "mini_batch_size"}
    assert keys <= set(calls_and_strings(PPOTrainer._update_actor))
    assert keys <= set(calls_and_strings(update_options))


def test_verl_writes_its_tracker_after_the_checkpoint(verl: ModuleType) -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    source = calls_and_strings(PPOTrainer._save_checkpoint)
    assert source.index("self.actor_rollout_wg.save_checkpoint") < source.index(
        "latest_checkpointed_iteration.txt"
    )


def test_another_version_of_verl_is_refused(verl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.verl.cpu import plugin

    monkeypatch.setattr(plugin, "VERL_VERSION", "0.9.2")
    with pytest.raises(ConfigError, match=r"verl 0\.9\.1 is installed.*0\.9\.2"):
        plugin.activate()


ON_GPUS = [name for name in pipeline_names() if load_pipeline(name).backend.device == "cuda"]


@pytest.mark.parametrize("name", ["textcraft-cpu", *ON_GPUS])
def test_shipped_pipelines_make_configurations_that_verl_accepts(
    verl: ModuleType, name: str, tmp_path: Any
) -> None:
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    pipeline = load_pipeline(name)
    config = verl_config(pipeline, model="some/model", checkpoints=tmp_path / "checkpoints")
    with_reference = pipeline.train.kl is not None
    validate_config(config, use_reference_policy=with_reference, use_critic=False)
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    assert config.actor_rollout_ref.ref.log_prob_max_token_len_per_gpu == pipeline.train.micro_batch_tokens
    omega_conf_to_dataclass(config.algorithm)
    assert rollout.name == pipeline.backend.rollout
    assert rollout.max_model_len == pipeline.rollout.context_length
    assert actor.engine.strategy == "fsdp2"
    assert actor.optim.lr == pipeline.train.lr
    assert actor.use_kl_loss == with_reference
    assert actor.ppo_max_token_len_per_gpu == pipeline.train.micro_batch_tokens
    assert config.trainer.n_gpus_per_node == pipeline.backend.workers


def test_the_gpu_pipeline_runs_vllm_in_bf16_over_packed_rows(tmp_path: Any) -> None:
    config = verl_config(load_pipeline("textcraft-qwen2.5-3b"), model="m", checkpoints=tmp_path)
    model, rollout = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout
    assert (rollout.name, rollout.dtype, rollout.tensor_model_parallel_size) == ("vllm", "bfloat16", 1)
    assert model.use_remove_padding
    assert model.enable_gradient_checkpointing
    assert model.override_config.attn_implementation == VARLEN_ATTENTION
    assert model.use_fused_kernels
    assert not config.algorithm.rollout_correction.bypass_mode
    assert rollout.free_cache_engine
    assert rollout.max_num_batched_tokens == VLLM_TOKENS  # what its memory is counted for


def test_vllm_may_not_read_more_than_the_models_positions_where_the_rope_is_scaled(verl: ModuleType) -> None:
    """What `flows/plan.py` refuses on GPUs."""
    from transformers import Qwen2Config
    from verl.workers.rollout.utils import get_max_position_embeddings

    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0}
    config = Qwen2Config(max_position_embeddings=4096, rope_parameters=rope)
    assert get_max_position_embeddings(config) == 4096


def test_vllm_keeps_its_memory_where_it_samples_ahead(verl: ModuleType, tmp_path: Any) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    pipeline = load_pipeline("textcraft-gpu")
    train = pipeline.train.model_copy(update={"async_": AsyncSettings()})
    config = verl_config(pipeline.model_copy(update={"train": train}), model="m", checkpoints=tmp_path)
    assert not omega_conf_to_dataclass(config.actor_rollout_ref.rollout).free_cache_engine
    # Sampled by the policy of a step earlier: what it would do now is computed by the trainer.
    assert not config.algorithm.rollout_correction.bypass_mode


@pytest.mark.parametrize("name", ["textcraft-cpu", "textcraft-gpu"])
def test_all_processes_speak_to_the_queue_in_the_same_way(verl: ModuleType, name: str) -> None:
    """The queue's actors always do as `tasks.verl.network` says; others would wait for them forever."""
    modules = environment_of(load_pipeline(name))["VERL_USE_EXTERNAL_MODULES"].split(",")
    assert modules[0] == "tasks.verl.network"


def test_the_logits_of_whole_distributions_are_not_fused_away(tmp_path: Any) -> None:
    """verl refuses Σπ² with fused kernels, in the first step."""
    values = load_pipeline("textcraft-qwen2.5-3b").model_dump(mode="json", exclude_unset=True)
    values["train"]["algorithm"] = "optimal_token_baseline"
    settings = Pipeline.model_validate(values)
    assert not verl_config(
        settings, model="m", checkpoints=tmp_path
    ).actor_rollout_ref.model.use_fused_kernels


@pytest.mark.parametrize("algorithm", ["optimal_token_baseline", "grpo"])
def test_the_distributions_of_a_policy_that_is_gone_are_refused(algorithm: str, tmp_path: Any) -> None:
    settings = toy_pipeline(tmp_path, train__algorithm=algorithm, train__async={"staleness": 1})
    if algorithm == "grpo":
        check_pipeline(settings)
        return
    with pytest.raises(ConfigError, match=r"train\.async: optimal_token_baseline needs the whole distr"):
        check_pipeline(settings)


def test_verl_numbers_the_training_items_in_their_order(verl: ModuleType, tmp_path: Any) -> None:
    from torch.utils.data import DataLoader
    from verl.trainer.ppo.utils import create_rl_dataset, create_rl_sampler
    from verl.utils.dataset.rl_dataset import collate_fn

    pipeline = load_pipeline("textcraft-cpu")
    config = verl_config(pipeline, model="m", checkpoints=tmp_path).data
    size = pipeline.rollout.items_per_step
    dataset = create_rl_dataset("", config, None, None, max_samples=config.train_max_samples)
    sampler = create_rl_sampler(config, dataset)
    loader = DataLoader(dataset, config.train_batch_size, sampler=sampler, collate_fn=collate_fn)
    steps = [list(batch["raw_prompt"]) for batch in loader]
    assert steps == [list(range(i * size, (i + 1) * size)) for i in range(pipeline.train.steps)]


ADDED_OPTIONS = {
    # Fields of verl's dataclasses that its YAML leaves out.
    "actor_rollout_ref.actor.checkpoint.save_lora_only",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "critic.fsdp.mixed_precision",
    "critic.ppo_infer_max_token_len_per_gpu",
    # Blocks that verl hands on as they are.
    "actor_rollout_ref.model.override_config.attn_implementation",
    "actor_rollout_ref.rollout.engine_kwargs.cpu",  # read by `tasks.verl.cpu.rollout`
    "critic.model.override_config.attn_implementation",
}


def added_options(ours: dict[str, Any], verls: dict[str, Any], *, prefix: str = "") -> Iterator[str]:
    """The options of `ours` in blocks of verl's that do not have them."""
    for name, value in ours.items():
        if name not in verls:
            yield prefix + name
        elif isinstance(value, dict) and isinstance(verls[name], dict):
            yield from added_options(value, verls[name], prefix=f"{prefix}{name}.")


def test_every_option_is_one_that_verl_knows(verl: ModuleType, tmp_path: Path) -> None:
    """`verl_config` may add options: one that an upgrade renames would be set, and nothing would read it."""
    from hydra import compose, initialize_config_dir

    folder = Path(str(verl.__file__)).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        verls = OmegaConf.to_container(compose("ppo_trainer"))
    assert isinstance(verls, dict)
    cosine = {"schedule": "cosine", "warmup_steps": 2}
    most = {"algorithm": "ppo", "lora": {"rank": 8}, "kl": {"coef": 0.1}, "optimizer": cosine}
    muon = {"name": "muon", "matrix_lr": 0.01}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("textcraft-cpu", most),
        ("textcraft-cpu", {"optimizer": muon}),
        ("textcraft-gpu", most),
        ("textcraft-gpu", {"algorithm": "optimal_token_baseline"}),
    ]
    added: set[str] = set()
    for name, train in cases:
        pipeline = load_pipeline(name, overrides={f"train.{key}": value for key, value in train.items()})
        config = OmegaConf.to_container(verl_config(pipeline, model=pipeline.model, checkpoints=tmp_path))
        assert isinstance(config, dict)
        added |= set(added_options(config, verls))
    assert added == ADDED_OPTIONS
