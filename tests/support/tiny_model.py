"""Small random models in Hugging Face format: for tests that need any model."""

import json
import struct
from pathlib import Path


def save_small_base(folder: Path) -> Path:
    """Write an untrained base model of two layers, with its tokenizer, to `folder`, and return the folder."""
    from tasks.base_model.model import make_model, make_tokenizer

    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    make_model(tokenizer, layers=2, width=128, seed=0).save_pretrained(folder)
    return folder


def save_tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """Write a Llama with the toy tokenizer (100k parameters, float32) to `folder`, and return the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.support.toy import toy_tokenizer

    tokenizer = toy_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.08,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def claim_parameters(folder: Path, count: int) -> None:
    """Write a header of weights with `count` parameters, and no weights, to the model in `folder`."""
    entry = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    header = json.dumps({"model.embed_tokens.weight": entry}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
