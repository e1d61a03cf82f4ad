"""An optimizer step of verl's engine on one GPU, as GPU pipelines train: time, memory, share of the peak.

    python -m bench.gpu_update                         # a model of the shape of Qwen2.5-0.5B
    python -m bench.gpu_update --shape 3b --micro-batch-tokens 16384
    python -m bench.gpu_update --attention sdpa        # transformers' attention instead, with a mask
    python -m bench.gpu_update --adamw foreach         # torch's default instead of its kernel

The weights are random, and rows of 512 to 4,096 random tokens fill `--micro-batches`. Run it once for each
shape and attention. Prints one JSON object:

- `step_s`: seconds of a step, the median of `--steps` after two more
- `tokens_per_s`: tokens of these rows
- `mfu`: the FLOPs of the update, without those of gradient checkpointing's second forward pass, as a share of
  what matrix products in bf16 reach in this process
- `peak_gb`: the most memory that torch held during the steps
- `forecast_gb`: what `tasks/config/capacity.py` foresees, by part; `forecast_total_gb`: of what torch holds
"""

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tasks.config.capacity import CUDA_BYTES, read_model_size, training_parts
from tasks.config.pipelines import load_pipeline
from tasks.verl import sft
from tasks.verl.cpu.flops import UPDATE_PASSES, ModelFlops, Work, needed_pairs
from tasks.verl.gpu import model as gpu_model

TOKENIZER = Path("models/textcraft-base")
SHAPES = {"0.5b": (896, 4864, 24, 14), "1.5b": (1536, 8960, 28, 12), "3b": (2048, 11008, 36, 16)}
"""Of Qwen2.5: width, width of the MLP, layers, query heads. All have two heads of keys and values, and tied
embeddings."""
VOCABULARY = 151_936
MATRIX = 8192
"""Rows and columns of the matrices whose product tells the peak."""


def save_model(shape: str, folder: Path) -> None:
    """A model with random weights, and a tokenizer that verl can load with it."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    for file in TOKENIZER.glob("*token*"):
        shutil.copy(file, folder)
    width, mlp_width, layers, heads = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=width,
        intermediate_size=mlp_width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        dtype="bfloat16",
    )
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def make_request(folder: Path, *, micro_batch_tokens: int, micro_batches: int, steps: int) -> sft.SftRequest:
    """Random rows that fill so many micro-batches; the first eighth of each is its prompt."""
    rng = random.Random(0)
    rows: list[list[int]] = []
    for _ in range(micro_batches):
        room = micro_batch_tokens
        while room >= 512:
            length = min(room, rng.randint(512, 4096))
            rows.append([rng.randrange(4, 1000) for _ in range(length)])
            room -= length
    prompts = [row[: len(row) // 8] for row in rows]
    responses = [row[len(row) // 8 :] for row in rows]
    return sft.SftRequest(
        model=str(folder),
        output=str(folder / "trained"),
        device="cuda",
        seed=0,
        steps=steps,
        batch_size=len(rows),
        lr=1e-6,
        lora=None,
        micro_batch_tokens=micro_batch_tokens,
        prompts=prompts,
        responses=responses,
        masks=[[1] * len(response) for response in responses],
    )


def matmul_flops() -> float:
    """FLOP/s of a product of two large matrices in bf16, the median of ten."""
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(13):
        torch.cuda.synchronize()
        start = time.perf_counter()
        a @ b
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 2 * MATRIX**3 / statistics.median(times[3:])


def measure(shape: str, *, micro_batch_tokens: int, micro_batches: int, steps: int) -> dict[str, Any]:
    """The numbers of the module's docstring."""
    from verl.workers.utils.losses import sft_loss

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_model(shape, folder)
        request = make_request(
            folder, micro_batch_tokens=micro_batch_tokens, micro_batches=micro_batches, steps=steps + 2
        )
        worker = sft.start_worker(request, partial(sft_loss, config=None))
        size, flops = read_model_size(folder), ModelFlops.of_folder(folder)
        assert size is not None
    lengths = [len(p) + len(r) for p, r in zip(request.prompts, request.responses, strict=True)]
    times: list[float] = []
    torch.cuda.reset_peak_memory_stats()
    for _ in range(steps + 2):
        data = sft.batch_of(request, range(len(lengths)))
        torch.cuda.synchronize()
        start = time.perf_counter()
        metrics = sft.train_batch(worker, data)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated()
    step_s = statistics.median(times[2:])
    tokens = sum(lengths)
    work = Work(tokens=tokens, logits=tokens, pairs=sum(needed_pairs(length, []) for length in lengths))
    overrides = {"backend.workers": 1, "train.micro_batch_tokens": micro_batch_tokens}
    pipeline = load_pipeline("textcraft-qwen2.5-3b", overrides=overrides)
    forecast = {name: count / 1e9 for name, count in training_parts(pipeline, size).items()}
    return {
        "gpu": torch.cuda.get_device_name(),
        "shape": shape,
        "parameters": size.parameters,
        "tokens": work.tokens,
        "loss": metrics["loss"],
        "step_s": round(step_s, 3),
        "tokens_per_s": round(work.tokens / step_s),
        "mfu": round(UPDATE_PASSES * flops.forward(work) / step_s / matmul_flops(), 3),
        "peak_gb": round(peak / 1e9, 2),
        "forecast_total_gb": round(sum(forecast.values()) - CUDA_BYTES / 1e9, 2),
        "forecast_gb": {name: round(count, 2) for name, count in forecast.items()},
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="0.5b")
    parser.add_argument("--micro-batch-tokens", type=int, default=16_384)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--attention", default=gpu_model.VARLEN_ATTENTION)
    parser.add_argument("--adamw", choices=["fused", "foreach"], default="fused")
    options = parser.parse_args()
    os.environ |= gpu_model.PLUGIN_ENV
    chosen = gpu_model.gpu_model_options("") | {"override_config": {"attn_implementation": options.attention}}
    with (
        patch.object(sft, "gpu_model_options", lambda model: chosen),
        patch.object(sft, "ADAMW_OPTIONS", {options.adamw: True}),
    ):
        numbers = measure(
            options.shape,
            micro_batch_tokens=options.micro_batch_tokens,
            micro_batches=options.micro_batches,
            steps=options.steps,
        )
    print(json.dumps({"attention": options.attention, "adamw": options.adamw} | numbers))


if __name__ == "__main__":
    main()
