"""verl's own FSDP2 engine, as the configuration of a GPU pipeline asks for it, on the CPU in fp32.

In place of torch's kernels for GPUs it has `varlen_on_cpu.py`.

A process of its own, `python -m tests.support.gpu_engine FOLDER`: verl's chunked log-probs replace the
forward of a
model's class. Prints how far log-probs, entropy and gradients of a packed row of three sequences are from
those of the sequences one by one, as one JSON line for tied and one for untied embeddings; one for adapters;
and one for the values of a critic.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.verl import cpu as verl_cpu
from tasks.verl.config import verl_config
from tasks.verl.gpu import model as gpu_model
from tasks.verl.local_worker import join_process_group
from tests.support import varlen_on_cpu

if TYPE_CHECKING:
    import torch
    from tensordict import TensorDict
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

TEMPERATURE = 1.3
RANK, ALPHA = 4, 12
ENTROPY_WEIGHT = 0.5


def save_model(folder: Path, *, is_tied: bool) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tests.support.toy import toy_tokenizer

    tokenizer = toy_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=is_tied,
        initializer_range=0.2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)


def make_engine(
    folder: Path, *, critic: bool = False, lora: dict[str, object] | None = None
) -> "tuple[FSDPEngine, str]":
    """The engine of `textcraft-qwen2.5-3b` for another model, in fp32, or that of its critic; and the
    attention it asks for. `lora`: the block `train.lora`."""
    from omegaconf import open_dict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

    pipeline = load_pipeline("textcraft-qwen2.5-3b").model_dump(mode="json", exclude_unset=True)
    if critic:
        pipeline["train"]["algorithm"] = "ppo"
    pipeline["train"]["lora"] = lora
    config = verl_config(Pipeline.model_validate(pipeline), model=folder, checkpoints=folder)
    role = config.critic if critic else config.actor_rollout_ref.actor
    with open_dict(config):
        engine_options = role.fsdp if critic else role.fsdp_config
        engine_options.use_torch_compile = False
        names = ("param_dtype", "reduce_dtype", "buffer_dtype")
        engine_options.mixed_precision = dict.fromkeys(names, "fp32")
    model_options = config.critic.model if critic else config.actor_rollout_ref.model
    model, settings = omega_conf_to_dataclass(model_options), omega_conf_to_dataclass(role)
    model.model_type = "value_model" if critic else "language_model"
    settings.engine.use_dynamic_bsz = True
    settings.engine.infer_max_token_len_per_gpu = settings.engine.max_token_len_per_gpu = 512
    engine_class = FSDPEngineWithValueHead if critic else FSDPEngineWithLMHead
    engine = engine_class(
        model_config=model,
        engine_config=settings.engine,
        optimizer_config=settings.optim,
        checkpoint_config=settings.checkpoint,
    )
    engine.initialize()
    return engine, model_options.override_config.attn_implementation


def make_batch(sequences: "list[torch.Tensor]") -> "TensorDict":
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def as_nested(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(values, layout=torch.jagged)

    batch = TensorDict(
        {
            "input_ids": as_nested(sequences),
            "position_ids": as_nested([torch.arange(len(s)) for s in sequences]),
            "loss_mask": as_nested([torch.ones(len(s), dtype=torch.long) for s in sequences]),
        },
        batch_size=len(sequences),
    )
    tu.assign_non_tensor(
        batch,
        temperature=TEMPERATURE,
        # As verl's TrainingWorker passes them on.
        use_fused_kernels=gpu_model.gpu_model_options("")["use_fused_kernels"],
        use_remove_padding=True,
        calculate_entropy=True,
        use_dynamic_bsz=True,
        max_token_len_per_gpu=512,
        global_token_num=[len(s) for s in sequences],
        sp_size=1,
    )
    return batch


def compare(folder: Path, *, is_tied: bool) -> dict[str, object]:
    import torch
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(1)
    # Without the padding token, whose embedding verl keeps still.
    sequences = [torch.randint(4, 250, (length,)) for length in (9, 30, 17)]
    # Its parts, not its forward, which verl replaces for the class.
    reference = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager")
    log_probs, entropies, loss = [], [], torch.zeros(())
    for ids in sequences:
        states = reference.model(ids[None], use_cache=False).last_hidden_state[0]
        rows = (reference.lm_head(states) / TEMPERATURE).log_softmax(-1)  # [L, V]
        log_probs.append(rows[:-1].gather(1, ids[1:, None])[:, 0])
        entropies.append(-(rows.exp() * rows).sum(-1)[:-1])
        loss = loss + log_probs[-1].sum() + ENTROPY_WEIGHT * entropies[-1].sum()
    loss.backward()

    engine, attention = make_engine(folder)
    batch = make_batch(sequences)
    with engine.eval_mode():
        output = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]

    def loss_of(
        model_output: dict[str, torch.Tensor], data: "TensorDict", dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, object]]:
        sums = [
            weight * row[:-1].sum()
            for name, weight in (("log_probs", 1.0), ("entropy", ENTROPY_WEIGHT))
            for row in model_output[name].unbind()
        ]
        return torch.stack(sums).sum(), {}

    with engine.train_mode():
        engine.forward_backward_batch(batch, loss_of, forward_only=False)
        gradients = {name: p.grad.full_tensor() for name, p in engine.module.named_parameters()}
    return {
        "tied": is_tied,
        "asked_attention": attention,
        "loaded_attention": engine.module.config._attn_implementation,
        "log_probs": rows_distance(output["log_probs"], log_probs),
        "entropy": rows_distance(output["entropy"], entropies),
        "gradients": max(
            distance(gradients[name], p.grad) / float(p.grad.abs().max())
            for name, p in reference.named_parameters()
        ),
    }


def compare_adapters(folder: Path) -> dict[str, object]:
    """Log-probs, and the gradients of B, against the model with the weights that vLLM is given."""
    import torch
    from transformers import Qwen2ForCausalLM

    engine, _ = make_engine(folder, lora={"rank": RANK, "alpha": ALPHA})
    parameters = dict(engine.module.named_parameters())
    with torch.no_grad():
        for name, parameter in parameters.items():
            if "lora_B" in name:
                parameter.to_local().normal_(std=0.1)
    weights, adapter = engine.get_per_tensor_param(layered_summon=False, base_sync_done=True)
    base = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager")
    reference = Qwen2ForCausalLM.from_pretrained(folder, attn_implementation="eager")
    reference.load_state_dict(dict(weights))
    ids = torch.randint(4, 250, (30,))
    hidden = reference.model(ids[None], use_cache=False).last_hidden_state[0]
    rows = (reference.lm_head(hidden) / TEMPERATURE).log_softmax(-1)
    expected = rows[:-1].gather(1, ids[1:, None])[:, 0]
    expected.sum().backward()
    batch = make_batch([ids])
    with engine.eval_mode():
        found = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]

    def loss_of(
        model_output: dict[str, torch.Tensor], data: "TensorDict", dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, object]]:
        return model_output["log_probs"].unbind()[0][:-1].sum(), {}

    with engine.train_mode():
        engine.forward_backward_batch(batch, loss_of, forward_only=False)
        gradients = {n: p.grad.full_tensor() for n, p in parameters.items() if p.grad is not None}
    gaps = []
    for name, merged in reference.named_parameters():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.default.weight" in parameters:
            a = parameters[f"{module}.lora_A.default.weight"].full_tensor()
            gradient = ALPHA / RANK * merged.grad @ a.T
            found_gradient = gradients[f"{module}.lora_B.default.weight"]
            gaps.append(distance(found_gradient, gradient) / float(gradient.abs().max()))
    changed = [n for n, p in base.named_parameters() if not torch.equal(p, reference.get_parameter(n))]
    return {
        "whole_weights": adapter is None,
        "log_probs": rows_distance(found["log_probs"], [expected]),
        "gradients": max(gaps),
        "adapted": len(gaps),
        "changed": len(changed),
        "trained": len(gradients),
    }


def compare_values(folder: Path) -> dict[str, object]:
    import torch
    from transformers import Qwen2ForTokenClassification
    from verl.utils import tensordict_utils as tu

    sequences = [torch.randint(4, 250, (length,)) for length in (9, 30, 17)]
    reference = Qwen2ForTokenClassification.from_pretrained(folder, num_labels=1, attn_implementation="eager")
    engine, attention = make_engine(folder, critic=True)
    for ours, theirs in zip(engine.module.score.parameters(), reference.score.parameters(), strict=True):
        assert not ours.to_local().any(), "a critic starts at 0"
        ours.to_local().data.copy_(theirs.data)
    values = [reference(ids[None]).logits[0, :, 0] for ids in sequences]
    torch.cat(values).square().sum().backward()
    batch = make_batch(sequences)
    tu.assign_non_tensor(batch, use_fused_kernels=False)

    def loss_of(
        model_output: dict[str, torch.Tensor], data: "TensorDict", dp_group: object = None
    ) -> tuple[torch.Tensor, dict[str, object]]:
        return model_output["values"].values().square().sum(), {}

    with engine.eval_mode():
        output = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]["values"]
    with engine.train_mode():
        engine.forward_backward_batch(batch, loss_of, forward_only=False)
        gradients = {name: p.grad.full_tensor() for name, p in engine.module.named_parameters()}
    return {
        "asked_attention": attention,
        "loaded_attention": engine.module.config._attn_implementation,
        "values": max(distance(a, b) for a, b in zip(output.unbind(), values, strict=True)),
        "gradients": max(
            distance(gradients[name], p.grad) / float(p.grad.abs().max())
            for name, p in reference.named_parameters()
        ),
    }


def rows_distance(output: "torch.Tensor", references: "list[torch.Tensor]") -> float:
    """The last token of a row has no next one, whose log-prob could be compared."""
    return max(distance(a[:-1], b) for a, b in zip(output.unbind(), references, strict=True))


def distance(a: "torch.Tensor", b: "torch.Tensor") -> float:
    return float((a - b).abs().max())


def main(folder: Path) -> None:
    plugins = (verl_cpu.PLUGIN_ENV, gpu_model.PLUGIN_ENV)
    modules = ",".join(plugin["VERL_USE_EXTERNAL_MODULES"] for plugin in plugins)
    os.environ |= {**verl_cpu.PLUGIN_ENV, "VERL_USE_EXTERNAL_MODULES": modules}
    join_process_group()
    from verl.utils.distributed import initialize_global_process_group

    initialize_global_process_group()
    varlen_on_cpu.register()
    for is_tied in (True, False):
        subfolder = folder / ("tied" if is_tied else "untied")
        save_model(subfolder, is_tied=is_tied)
        print(json.dumps(compare(subfolder, is_tied=is_tied)), flush=True)
    print(json.dumps(compare_adapters(folder / "untied")), flush=True)
    print(json.dumps(compare_values(folder / "untied")), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
