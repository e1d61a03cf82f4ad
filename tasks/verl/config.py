"""Translates a pipeline into verl's own configuration: the one place that knows verl's option names.

What a laptop and a cluster do differently is `_cpu` and `_cuda`; all else is the same for both.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from agents.prompting.images import has_vision
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.requirements.detection import pip_install
from tasks.algorithms.algorithm import ActorCritic, OnlineAlgorithm
from tasks.algorithms.builtin.self_distill import SelfDistill
from tasks.algorithms.distillation import Distillation, TeacherEndpoint
from tasks.cluster.memory import VLLM_TOKENS
from tasks.cluster.placement import Placement
from tasks.config.agent import AgentSettings
from tasks.config.environments import environments
from tasks.config.episodes import toolbox_of
from tasks.config.lora import LoraSettings, check_targets
from tasks.config.pipelines import Pipeline
from tasks.config.training import BackendSettings, TrainSettings
from tasks.verl.cpu import CPU_MODEL_OPTIONS
from tasks.verl.gpu.model import ADAMW_OPTIONS, gpu_model_options

if TYPE_CHECKING:
    from omegaconf import DictConfig


MAX_EPISODES = 65_536
"""The most episodes of one training step."""


def verl_config(
    pipeline: Pipeline, *, model: Path | str, checkpoints: Path, placement: Placement | None = None
) -> "DictConfig":
    """verl's PPO configuration for `pipeline`, composed and checked as far as no GPU is needed.

    `model`: the policy to start from; `checkpoints`: verl's folder; `placement`: of `backend.workers`, by
    default all on one node.
    Raises `ConfigError` for settings that contradict each other.
    """
    check_pipeline(pipeline)
    from importlib.util import find_spec

    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf, open_dict

    spec = find_spec("verl")  # found, not imported: verl takes many seconds
    if spec is None or spec.origin is None:
        raise MissingDependency(f"verl is not installed; {pip_install('verl')}")
    folder = Path(spec.origin).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        config = compose("ppo_trainer")
    options = _common(pipeline, model=str(model), checkpoints=str(checkpoints))
    placement = placement or Placement(nodes=1, workers_per_node=pipeline.backend.workers)
    options["trainer.nnodes"] = placement.nodes
    options["trainer.n_gpus_per_node"] = placement.workers_per_node
    options |= _cpu(pipeline) if pipeline.backend.device == "cpu" else _cuda(pipeline, model=str(model))
    options |= _lora(pipeline.train) | _critic(pipeline, model=str(model)) | _adamw(pipeline)
    OmegaConf.set_struct(config, True)
    with open_dict(config):
        for key, value in options.items():
            OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.resolve(config)
    return config


def _common(pipeline: Pipeline, *, model: str, checkpoints: str) -> dict[str, object]:
    rollout, train, backend = pipeline.rollout, pipeline.train, pipeline.backend
    actor = "actor_rollout_ref.actor"
    sampler = "actor_rollout_ref.rollout"
    return {
        "trainer.device": backend.device,
        "trainer.total_training_steps": train.steps,
        "trainer.default_local_dir": checkpoints,
        "trainer.resume_mode": "auto",
        "trainer.logger": ["console"],
        "trainer.val_before_train": False,
        "transfer_queue.enable": True,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "reward.num_workers": 0,  # rewards come with the episodes
        "data.custom_cls.path": "pkg://tasks.verl.rollout",
        "data.custom_cls.name": "ItemNumbers",
        "data.train_max_samples": rollout.items_per_step * train.steps,
        "data.val_max_samples": 1,  # verl requires some; evaluation is ours
        "data.shuffle": False,  # `tasks/data/items.py` has chosen the order
        "data.train_batch_size": rollout.items_per_step,
        "data.dataloader_num_workers": 0,
        "data.max_prompt_length": rollout.context_length,
        "data.max_response_length": rollout.context_length,
        "algorithm.use_kl_in_reward": train.kl is not None and train.kl.place == "reward",
        "actor_rollout_ref.model.path": model,
        f"{actor}.strategy": "fsdp2",
        # With the whole model in Hugging Face format: a checkpoint is a policy, too.
        f"{actor}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        f"{actor}.checkpoint.load_contents": ["model", "optimizer", "extra"],
        **{f"{actor}.optim.{name}": value for name, value in _optimizer(train).items()},
        f"{actor}.ppo_epochs": train.epochs,
        f"{actor}.ppo_mini_batch_size": rollout.items_per_step // train.mini_batches,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": train.micro_batch_tokens,
        # What verl starts depends on this; advantages and losses are those of `tasks/algorithms`.
        f"{actor}.use_kl_loss": train.kl is not None and train.kl.place == "loss",
        f"{actor}.data_loader_seed": pipeline.seed,
        f"{actor}.fsdp_config.seed": pipeline.seed,
        f"{sampler}.name": backend.rollout,
        f"{sampler}.n": rollout.group_size,
        f"{sampler}.seed": pipeline.seed,
        f"{sampler}.temperature": rollout.temperature,
        f"{sampler}.top_p": rollout.top_p,
        f"{sampler}.top_k": rollout.top_k or -1,
        f"{sampler}.max_model_len": rollout.context_length,
        f"{sampler}.max_num_seqs": backend.max_sequences,
        f"{sampler}.tensor_model_parallel_size": backend.tensor_parallel,
        f"{sampler}.calculate_log_probs": True,
    }


def _optimizer(train: TrainSettings) -> dict[str, object]:
    optimizer = train.optimizer
    options = {
        "lr": train.lr,
        "betas": list(optimizer.betas),
        "weight_decay": optimizer.weight_decay,
        "clip_grad": optimizer.grad_clip,
        "total_training_steps": train.policy_steps,
    }
    if optimizer.schedule == "cosine" or optimizer.warmup_steps:
        # With the last ratio 1, verl's cosine is constant. Its own schedule for that counts steps from 0: the
        # first would have no learning rate.
        options |= {
            "lr_scheduler_type": "cosine",
            "zero_indexed_step": False,
            "lr_warmup_steps": optimizer.warmup_steps,
            "min_lr_ratio": optimizer.last_ratio,
        }
    if optimizer.name == "muon":
        options["override_optimizer_config"] = {"matrix_lr": optimizer.matrix_lr}
    return options


def _adamw(pipeline: Pipeline) -> dict[str, object]:
    if pipeline.backend.device == "cpu":
        return {}
    names = ["critic.optim"] if isinstance(pipeline.train.algorithm, ActorCritic) else []
    if pipeline.train.optimizer.name == "adamw":
        names.append("actor_rollout_ref.actor.optim")
    return {f"{name}.override_optimizer_config": ADAMW_OPTIONS for name in names}


def _lora(train: TrainSettings) -> dict[str, object]:
    if train.lora is None:
        return {}
    return {
        **{f"actor_rollout_ref.model.{name}": value for name, value in train.lora.model_options.items()},
        # The weights beneath the adapters are those of the model that training starts from.
        "actor_rollout_ref.actor.checkpoint.save_lora_only": True,
    }


_CPU_ENGINE = {
    "use_torch_compile": False,
    "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
    "model_dtype": "fp32",
}


def _cpu(pipeline: Pipeline) -> dict[str, object]:
    options: dict[str, object] = {
        **{f"actor_rollout_ref.model.{name}": value for name, value in CPU_MODEL_OPTIONS.items()},
        # The CPU engine and the trainer compute the same numbers in fp32: the sampler's log-probs are the old
        # ones, unless the policy that sampled is to be corrected for. vLLM rounds otherwise.
        "algorithm.rollout_correction.bypass_mode": (
            pipeline.train.rollout_correction is None and pipeline.backend.rollout == "cpu"
        ),
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.rollout.dtype": "float32",
        "actor_rollout_ref.rollout.engine_kwargs.cpu": {"samplers": pipeline.backend.samplers},
    }
    for role in ("actor", "ref"):
        for name, value in _CPU_ENGINE.items():
            options[f"actor_rollout_ref.{role}.fsdp_config.{name}"] = value
    return options


def _cuda(pipeline: Pipeline, *, model: str) -> dict[str, object]:
    model_options = gpu_model_options(model)
    algorithm = pipeline.train.algorithm
    if isinstance(algorithm, OnlineAlgorithm) and algorithm.needs_sum_pi_squared:
        model_options["use_fused_kernels"] = False  # they never hold the logits of a token at once
    return {
        **{f"actor_rollout_ref.model.{name}": value for name, value in model_options.items()},
        # vLLM in bf16 and the trainer differ in the third digit: old log-probs are computed anew.
        "algorithm.rollout_correction.bypass_mode": False,
        "actor_rollout_ref.rollout.dtype": "bfloat16",
        "actor_rollout_ref.rollout.gpu_memory_utilization": pipeline.backend.gpu_memory_utilization,
        # Whether vLLM gives its memory to the trainer during an update; not while it samples ahead.
        "actor_rollout_ref.rollout.free_cache_engine": pipeline.train.async_ is None,
        # Log-probs after temperature; also after top-p and top-k, which `check_pipeline` therefore refuses.
        "actor_rollout_ref.rollout.logprobs_mode": "processed_logprobs",
    }


def _critic(pipeline: Pipeline, *, model: str) -> dict[str, object]:
    """The critic is trained as the policy is, in mini-batches of the same rows, but for what is its own."""
    train = pipeline.train
    if not isinstance(train.algorithm, ActorCritic):
        return {"critic.enable": False}
    settings = train.algorithm.critic
    options: dict[str, object] = {
        "critic.enable": True,
        # verl updates the policy from this step on.
        "trainer.critic_warmup": settings.warmup_steps + 1 if settings.warmup_steps else 0,
        "critic.strategy": "fsdp2",
        "critic.model.path": model,
        "critic.checkpoint.save_contents": ["model", "optimizer", "extra"],
        "critic.checkpoint.load_contents": ["model", "optimizer", "extra"],
        "critic.optim.lr": settings.lr,
        "critic.ppo_epochs": settings.epochs,
        "critic.use_dynamic_bsz": True,
        "critic.ppo_max_token_len_per_gpu": train.micro_batch_tokens,
        "critic.ppo_infer_max_token_len_per_gpu": train.micro_batch_tokens,  # verl trains with it, too
        "critic.data_loader_seed": pipeline.seed,
        "critic.fsdp.seed": pipeline.seed,
    }
    if pipeline.backend.device == "cpu":
        model_options: dict[str, object] = CPU_MODEL_OPTIONS
        options |= {f"critic.fsdp.{name}": value for name, value in _CPU_ENGINE.items()}
    else:  # without the policy's log-probs in chunks: a critic has no logits
        names = ("use_remove_padding", "enable_gradient_checkpointing", "override_config")
        model_options = {name: gpu_model_options(model)[name] for name in names}
    return options | {f"critic.model.{name}": value for name, value in model_options.items()}


def _check_turns(pipeline: Pipeline) -> None:
    """Every turn takes a token of the context at least."""
    turns = {
        "horizon.max_turns": max(pipeline.horizon.max_turns),
        "evaluate.max_turns": pipeline.evaluate.max_turns,
    }
    for name, part in pipeline.data.parts.items():
        turns[f"data.parts.{name}.horizon.max_turns"] = max(part.horizon.max_turns) if part.horizon else 0
        turns[f"data.parts.{name}.max_turns"] = part.max_turns or 0
    length = pipeline.rollout.context_length
    for key, count in turns.items():
        if count > length:
            raise ConfigError(
                f"{key}: {count} turns do not fit into rollout.context_length {length}, for a turn takes a "
                "token at least; lower it"
            )


def _check_algorithm(pipeline: Pipeline) -> None:
    algorithm, rollout, train = pipeline.train.algorithm, pipeline.rollout, pipeline.train
    if not isinstance(algorithm, OnlineAlgorithm):
        return  # `check_offline` checks it
    if algorithm.compares_group and rollout.group_size < 2:
        raise ConfigError(
            f"rollout.group_size {rollout.group_size}: {algorithm.name} compares the samples of an item with "
            "each other; give 2 or more"
        )
    if train.kl is not None and train.kl.place == "reward" and algorithm.unused_reward:
        raise ConfigError(
            f"train.kl.place reward: train.algorithm {algorithm.name} does not use the reward of the episode "
            f"({algorithm.unused_reward}); use place: loss"
        )
    if isinstance(algorithm, ActorCritic) and train.policy_steps < 1:
        raise ConfigError(
            f"train.algorithm.critic.warmup_steps {algorithm.critic.warmup_steps} leave none of train.steps "
            f"{train.steps} to the policy; lower it"
        )
    if isinstance(algorithm, ActorCritic) and has_vision(pipeline.model):
        raise ConfigError(
            f"train.algorithm {algorithm.name} needs a critic, and {pipeline.model} is a vision-language "
            "model, which none can be made of; choose an algorithm without one"
        )
    if algorithm.compares_states:
        _check_states(pipeline)
    if isinstance(algorithm, Distillation):
        _check_distillation(pipeline, algorithm)
    if algorithm.needs_sum_pi_squared and train.async_ is not None and pipeline.backend.device == "cpu":
        raise ConfigError(
            f"train.async: {algorithm.name} needs the whole distributions of the policy that sampled, which "
            "is gone when the trainer computes them; leave it out"
        )
    if needs_uncut_conversations(pipeline):
        _check_whole_conversations(pipeline.agent, where=f"train.algorithm.loss {algorithm.loss.name}")


def needs_uncut_conversations(pipeline: Pipeline) -> bool:
    """Whether the loss computes with whole conversations, and segments may be in different mini-batches."""
    train, backend = pipeline.train, pipeline.backend
    one_micro_batch = backend.device == "cpu" and backend.workers == 1 and train.mini_batches == 1
    return train.online_algorithm.loss.needs_whole_conversations and not one_micro_batch


def _check_whole_conversations(agent: AgentSettings, *, where: str) -> None:
    """Raise `ConfigError` for what may cut a conversation into segments."""
    context, toolbox = agent.context, toolbox_of(agent)
    tools = [] if toolbox is None else [tool.name for tool in toolbox.tools.values() if tool.returns_summary]
    causes = {
        f"agent.program {agent.program}": (agent.program is not None, "use another loss"),
        f"the tool {', '.join(tools)}": (bool(tools), "leave the tool out"),
        "agent.context": (
            context.when_full != "stop" or not context.keep_thoughts,
            "set when_full: stop and keep_thoughts: true",
        ),
    }
    for cause, (may_cut, remedy) in causes.items():
        if may_cut:
            raise ConfigError(
                f"{where}: its ratio is that of a whole conversation, which {cause} may cut into segments "
                f"that fall into different mini-batches; {remedy}, or on a CPU mini_batches: 1 and workers: 1"
            )


def _check_distillation(pipeline: Pipeline, algorithm: Distillation) -> None:
    where = f"train.algorithm {algorithm.name}"
    if has_vision(pipeline.model):
        raise ConfigError(
            f"{where}: {pipeline.model} is a vision-language model, and a teacher reads no images; choose "
            "another algorithm"
        )
    program = pipeline.agent.program
    if isinstance(algorithm, SelfDistill) and program is not None:
        raise ConfigError(
            f"{where}: a hint lists the actions of a turn, and agent.program {program} has none; use distill"
        )
    group_size = pipeline.rollout.group_size
    if isinstance(algorithm, SelfDistill) and algorithm.hint == "sibling" and group_size < 2:
        raise ConfigError(
            f"rollout.group_size {group_size}: train.algorithm.hint sibling is the solution of another "
            "sample of the item; give 2 or more"
        )
    if algorithm.reward_weight and group_size < 2:
        raise ConfigError(
            f"rollout.group_size {group_size}: reward_weight adds GRPO's advantage, which "
            "compares the samples of an item with each other; give 2 or more"
        )
    source = algorithm.teacher_source
    if pipeline.backend.device == "cuda" and not isinstance(source, TeacherEndpoint):
        raise ConfigError(
            f"{where}: the teacher {source or pipeline.model} would be computed on a CPU, beside a policy on "
            "backend.device cuda; serve it by vLLM on other GPUs, and give teacher: {url: …, model: …}"
        )
    rollout = pipeline.rollout
    if isinstance(source, TeacherEndpoint) and {rollout.temperature, rollout.final_temperature} - {1.0, None}:
        raise ConfigError(
            f"{where}: an endpoint's log-probs are those at temperature 1; set rollout.temperature and "
            "final_temperature to 1.0"
        )


def _check_observations(pipeline: Pipeline) -> None:
    where = f"train.observation_loss {pipeline.train.observation_loss}"
    if not pipeline.agent.context.keep_thoughts:
        raise ConfigError(
            f"{where}: with agent.context.keep_thoughts: false, observations are in prompts, which are not "
            "trained on; set keep_thoughts: true"
        )
    rollout = pipeline.rollout
    if pipeline.backend.device == "cuda" and {rollout.temperature, rollout.final_temperature} - {1.0, None}:
        raise ConfigError(
            f"{where}: on GPUs, verl divides the logits of observations by rollout.temperature, too; set "
            "temperature and final_temperature to 1.0"
        )


def _check_lora(lora: LoraSettings, pipeline: Pipeline) -> None:
    if has_vision(pipeline.model):
        raise ConfigError(
            f"train.lora: {pipeline.model} is a vision-language model, whose adapters are not merged here; "
            "leave it out"
        )
    if pipeline.train.optimizer.name == "muon":
        raise ConfigError(
            "train.optimizer.name muon is for whole matrices, and train.lora trains the two factors of a "
            "change; use adamw"
        )
    check_targets(lora, model=pipeline.model)


def _check_states(pipeline: Pipeline) -> None:
    algorithm = f"train.algorithm {pipeline.train.algorithm.name} compares turns of the same state"
    program = pipeline.agent.program
    if program is not None:
        raise ConfigError(f"{algorithm}; those of agent.program {program} have none; use another algorithm")
    for spec in environments(pipeline):
        if spec.has_states:
            continue
        if get_env(spec.name).has_states:
            raise ConfigError(
                f"{algorithm}; servers.{spec.name}.protocol agentgym cannot carry any; use protocol: wingspan"
            )
        raise ConfigError(
            f"{algorithm}; {spec.name} has none; use another algorithm, or give it a state_key "
            "and its EnvSpec has_states=True (docs/new-environment.md)"
        )


def check_pipeline(pipeline: Pipeline) -> None:
    """Raise `ConfigError` for settings that contradict each other; imports nothing heavy."""
    rollout, train, backend = pipeline.rollout, pipeline.train, pipeline.backend
    if (backend.device == "cpu") != (backend.rollout in ("cpu", "vllm-cpu")):
        raise ConfigError(
            f"backend.rollout {backend.rollout!r} does not run on backend.device {backend.device!r}; "
            "use cpu or vllm-cpu with cpu, vllm with cuda"
        )
    if backend.device == "cpu" and has_vision(pipeline.model):
        raise ConfigError(
            f"backend.device cpu: {pipeline.model} is a vision-language model, and the CPU backend trains "
            "text only; use device: cuda with rollout: vllm"
        )
    if rollout.max_tokens_per_turn >= rollout.context_length:
        raise ConfigError(
            f"rollout.max_tokens_per_turn {rollout.max_tokens_per_turn} leaves no room for a prompt in "
            f"rollout.context_length {rollout.context_length}; lower the one, or raise the other"
        )
    episodes = rollout.items_per_step * rollout.group_size
    if episodes > MAX_EPISODES:
        raise ConfigError(
            f"rollout.items_per_step {rollout.items_per_step} x rollout.group_size {rollout.group_size} are "
            f"{episodes:,} episodes a step, which one process holds in memory; at most {MAX_EPISODES:,} are "
            "allowed; lower one of them"
        )
    if pipeline.agent.context.when_full == "stop":
        _check_turns(pipeline)
    if train.micro_batch_tokens < rollout.context_length:
        raise ConfigError(
            f"train.micro_batch_tokens {train.micro_batch_tokens} is less than rollout.context_length "
            f"{rollout.context_length}: one episode must fit into a micro-batch; raise it"
        )
    _check_algorithm(pipeline)
    if train.observation_loss > 0:
        _check_observations(pipeline)
    if train.lora is not None:
        _check_lora(train.lora, pipeline)
    if backend.rollout == "cpu" and train.async_ is None and train.rollout_correction is not None:
        raise ConfigError(
            "train.rollout_correction is for vLLM, and for train.async: otherwise the CPU engine and the "
            "trainer compute the same log-probs; leave it out"
        )
    if backend.device == "cuda" and train.optimizer.name == "muon":
        raise ConfigError(
            "train.optimizer.name muon is for backend.device cpu: on GPUs, verl does not tell an optimizer "
            "which parameters are embeddings; use adamw"
        )
    if train.optimizer.warmup_steps > train.policy_steps:
        raise ConfigError(
            f"train.optimizer.warmup_steps {train.optimizer.warmup_steps} is more than the "
            f"{train.policy_steps} of train.steps {train.steps} that train the policy: train.lr would never "
            "be reached; lower it"
        )
    if train.mini_batches > rollout.items_per_step:
        raise ConfigError(
            f"train.mini_batches {train.mini_batches} is more than rollout.items_per_step "
            f"{rollout.items_per_step}: some would be empty; lower it"
        )
    if backend.device == "cpu":
        for key in ("tensor_parallel", "gpu_memory_utilization"):
            value = getattr(backend, key)
            if value != BackendSettings.model_fields[key].default:
                raise ConfigError(f"backend.{key} {value} is for backend.device cuda; leave it out")
    if backend.workers % backend.tensor_parallel:
        raise ConfigError(
            f"backend.workers {backend.workers} is no multiple of backend.tensor_parallel "
            f"{backend.tensor_parallel}, the GPUs of an engine; change one of them"
        )
    if backend.rollout == "vllm" and backend.samplers > 1:
        raise ConfigError(
            f"backend.samplers {backend.samplers} is for rollout: cpu; on GPUs raise backend.workers"
        )
    if backend.rollout == "vllm" and backend.max_sequences > VLLM_TOKENS:
        raise ConfigError(
            f"backend.max_sequences {backend.max_sequences}: vLLM computes {VLLM_TOKENS} tokens at a time, "
            f"at least one of each sequence; lower it to {VLLM_TOKENS} or less"
        )
    if backend.rollout != "cpu" and (rollout.top_p < 1.0 or rollout.top_k > 0):
        raise ConfigError(
            f"rollout.top_p {rollout.top_p} and rollout.top_k {rollout.top_k} cannot be trained with on "
            "vLLM: its log-probs are those of the filtered distribution; set top_p: 1.0 and top_k: 0"
        )
