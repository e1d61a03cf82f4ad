"""Speed of the CPU sampler against the machine's own limit: `python -m bench.sampler [--model DIR]`.

Prints one JSON object. The load is TextCraft's: a prompt of 300 tokens, then 6 turns of 20 sampled
and 8 observation tokens, in groups of 8 that share their prompt. The limit is a roofline measured in
the same run with the same threads: the larger of FLOPs needed / best matrix product, and bytes needed
/ speed of reading a buffer of that size (each forward reads the weights, each episode its own keys and
values, each group its prompt's once). `of_limit` is limit / measured: 1.0 would be perfect.
Both sides of it are CPU seconds, so that other work on the machine does not pass for slowness.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agents.samplers.cpu.engine import CpuEngine, Request
from agents.samplers.cpu.kv_cache import bytes_per_token
from agents.samplers.cpu.llama import ModelShape, model_shape, read_checkpoint
from agents.types import SamplingParams

PROMPT, TURNS, SAMPLED, OBSERVATION, GROUP = 300, 6, 20, 8, 8
EPISODES = (1, 16, 64, 256)
CONTEXT = PROMPT + TURNS * (SAMPLED + OBSERVATION) + 1


def best_seconds(work: Callable[[], object], *, repeats: int = 7) -> float:
    """CPU seconds of the quickest of several runs of `work`, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return min(times)


def gemm_flops() -> float:
    """Best FLOPs per CPU second of a float32 matrix product."""
    best = 0.0
    for size in (512, 1024, 2048):
        a, b = torch.randn(size, size), torch.randn(size, size)
        best = max(best, 2 * size**3 / best_seconds(lambda a=a, b=b: a @ b))  # type: ignore[misc]
    return best


def read_bytes_per_s(size: float) -> float:
    """Speed of reading a buffer of `size` bytes, over and over: cache, where it fits."""
    buffer = torch.ones(max(1024, int(size) // 4))
    times = max(1, int(2e7 / size))
    return buffer.nbytes * times / best_seconds(lambda: [buffer.sum() for _ in range(times)])


def roofline(shape: ModelShape, *, episodes: int, flops_per_s: float) -> float:
    """CPU seconds that the load of one run takes at least."""
    linear = sum(
        size[0] * size[1]
        for name, size in shape.weight_shapes.items()
        if len(size) == 2 and name not in ("model.embed_tokens.weight", "lm_head.weight")
    )
    head = shape.vocab_size * shape.hidden_size
    attention = 4 * shape.num_layers * shape.num_heads * shape.head_dim  # FLOPs per token and key
    groups = -(-episodes // GROUP)
    own = TURNS * (SAMPLED + OBSERVATION) - OBSERVATION
    flops = 2.0 * linear * (groups * PROMPT + episodes * own) + 2.0 * head * episodes * TURNS * SAMPLED
    flops += attention * (groups * PROMPT**2 / 2 + episodes * own * (PROMPT + own / 2))
    per_step = 4.0 * (linear + head) + bytes_per_token(shape) * (groups * PROMPT + episodes * own / 2)
    steps = TURNS * SAMPLED
    return max(flops / flops_per_s, steps * per_step / read_bytes_per_s(per_step))


def play(engine: CpuEngine, *, episodes: int) -> dict[str, Any]:
    """Play the load through `engine`: each episode's next turn is submitted as soon as one ends."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(engine.shape.vocab_size, (count,), generator=generator).tolist()

    prompts = [tokens(PROMPT) for _ in range(-(-episodes // GROUP))]
    conversations = [list(prompts[i // GROUP]) for i in range(episodes)]
    turns = [0] * episodes
    params = SamplingParams(max_tokens=SAMPLED)
    before = engine.stats

    def ask(index: int) -> None:
        engine.submit(
            Request(
                request_id=index, episode_id=str(index), prompt_ids=list(conversations[index]), params=params
            )
        )

    started, cpu_started = time.perf_counter(), time.process_time()
    for index in range(episodes):
        ask(index)
    while engine.busy:
        for index, completion in engine.step():
            turns[index] += 1
            if turns[index] < TURNS:
                conversations[index] += completion.token_ids + tokens(OBSERVATION)
                ask(index)
    wall, cpu = time.perf_counter() - started, time.process_time() - cpu_started
    sampled = engine.stats.sampled - before.sampled
    processed = sampled + engine.stats.prefilled - before.prefilled
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "sampled_per_s": sampled / wall,
        "processed_per_s": processed / wall,
        "sampled_per_cpu_s": sampled / cpu,
        "processed_per_cpu_s": processed / cpu,
    }


def random_model() -> tuple[ModelShape, dict[str, torch.Tensor]]:
    """A model of the shape that is shipped, with random weights."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=1208,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    shape = model_shape(config, place="bench/sampler.py")
    torch.manual_seed(0)
    return shape, {name: torch.randn(size) * 0.08 for name, size in shape.weight_shapes.items()}


def measure(model: Path | None, *, threads: int) -> dict[str, Any]:
    """Everything that is printed."""
    torch.set_num_threads(threads)
    shape, weights = read_checkpoint(model) if model else random_model()
    flops_per_s = gemm_flops()
    runs = []
    for episodes in EPISODES:
        engine = CpuEngine(shape, weights, context_length=CONTEXT, max_sequences=episodes)
        play(engine, episodes=episodes)  # the cache's memory is committed when first written
        engine.load_weights(weights, policy_version=1)
        run = play(engine, episodes=episodes)
        limit = roofline(shape, episodes=episodes, flops_per_s=flops_per_s)
        runs.append({"episodes": episodes, **run, "limit_cpu_s": limit, "of_limit": limit / run["cpu_s"]})
    return {
        "model": str(model) if model else "random",
        "parameters": sum(w.numel() for w in weights.values()),
        "threads": threads,
        "gemm_gflops_per_cpu_s": flops_per_s / 1e9,
        "runs": runs,
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Speed of the CPU sampler")
    parser.add_argument("--model", type=Path, help="model folder in Hugging Face format (default: random)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    arguments = parser.parse_args()
    print(json.dumps(measure(arguments.model, threads=arguments.threads), indent=1))


if __name__ == "__main__":
    main()
