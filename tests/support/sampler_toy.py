"""Small random models for the CPU engine, and Hugging Face's own forward to compare it with."""

import random
from collections.abc import Sequence
from typing import Any

import torch
import transformers

from agents.huggingface.models import AutoModelForCausalLM
from agents.samplers.cpu.engine import CpuEngine, SamplingRequest
from agents.samplers.cpu.llama import model_shape
from agents.types import Completion, SamplingParams

VOCAB = 97
CONTEXT = 256
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    # far from uniform, so that a wrong key or position shows
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
KINDS = ("mha-tied", "gqa-untied", "qwen2")


def make_model(kind: str, *, seed: int = 0) -> transformers.PreTrainedModel:
    torch.manual_seed(seed)
    if kind == "mha-tied":
        config = transformers.LlamaConfig(
            **SIZES, num_key_value_heads=4, tie_word_embeddings=True, rope_parameters=rope(1e6), head_dim=8
        )
    elif kind == "gqa-untied":
        config = transformers.LlamaConfig(
            **SIZES, num_key_value_heads=2, tie_word_embeddings=False, rope_parameters=rope(1e4)
        )
    else:
        config = transformers.Qwen2Config(
            **SIZES, num_key_value_heads=1, tie_word_embeddings=True, rope_parameters=rope(1e5)
        )
    model = AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        # gains and biases start at 1 and 0, where forgetting them goes unseen
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.eval()


def rope(theta: float) -> dict[str, object]:
    return {"rope_type": "default", "rope_theta": theta}


def make_engine(model: transformers.PreTrainedModel, **options: Any) -> CpuEngine:
    shape = model_shape(model.config, source="the test")
    return CpuEngine(shape, model.state_dict(), **{"context_length": CONTEXT, "max_sequences": 16} | options)


def complete(
    engine: CpuEngine, prompts: dict[str, list[int]], *, params: SamplingParams
) -> dict[str, Completion]:
    """One completion per episode, all at once."""
    episodes = list(prompts)
    for index, episode in enumerate(episodes):
        engine.submit(
            SamplingRequest(request_id=index, episode_id=episode, prompt_ids=prompts[episode], params=params)
        )
    results = []
    while engine.is_busy:
        results += engine.step()
    assert sorted(index for index, _ in results) == list(range(len(episodes)))
    return {episodes[index]: completion for index, completion in results}


def reference_logprobs(
    model: transformers.PreTrainedModel,
    prompt: Sequence[int],
    completion_ids: Sequence[int],
    *,
    temperature: float = 1.0,
) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion_ids]])).logits[0]
    logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)
    return logprobs[range(len(completion_ids)), [*completion_ids]].tolist()


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1, VOCAB) for _ in range(count)]


def groups(rng: random.Random) -> dict[str, list[int]]:
    """Prompts of 3 groups of 3, of different lengths, one of a single token."""
    prompts = [random_tokens(rng, length) for length in (1, 23, 40)]
    return {f"{g}-{c}": list(prompts[g]) for g in range(3) for c in range(3)}
