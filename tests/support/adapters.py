"""A policy that was trained with `train.lora`, against peft."""

from pathlib import Path


def check_adapter(model: Path, policy: Path) -> None:
    """`policy` is `model` with the adapter in its folder, which has learned."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from tasks.verl.policies import ADAPTER

    base = AutoModelForCausalLM.from_pretrained(model)
    start = {name: value.clone() for name, value in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, policy / ADAPTER).merge_and_unload().state_dict()
    trained = AutoModelForCausalLM.from_pretrained(policy).state_dict()
    assert all(torch.equal(value, trained[name]) for name, value in merged.items())
    changed = {name for name, value in trained.items() if not torch.equal(value, start[name])}
    assert {name.split(".")[-2] for name in changed} == {
        *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    }
