"""Speed of samplers on TextCraft's load: `python -m bench.sampler [--sampler NAME] [--model DIR]`.

Prints one JSON object. The load: a prompt of 300 tokens, then 6 turns of 20 sampled and 8 observation
tokens, in groups of 8 that share their prompt; an episode's next turn is requested as soon as one ends. The
samplers (`bench/samplers.py`) are the CPU engine, transformers in three ways, and vLLM, whose environment
`WINGSPAN_VLLM_PYTHON` names (docs/gpus.md).

- `plays`: how often the load was played, with other tokens each time, until `MIN_CPU_S` had passed
- `wall_s`, `cpu_s`: means of the plays
- `sampled_per_s`, `sampled_per_cpu_s`: sampled tokens per second of wall time, and of CPU time of the whole
  process tree; the latter does not count other work on the machine as slowness
- `processed_per_cpu_s`: the same with the tokens of prompts (once per group) and of observations
- `of_limit` (1.0 would be perfect): CPU seconds of a roofline / measured CPU seconds. The roofline is
  measured in the same run, in one thread: the larger of FLOPs needed / best matrix product, and bytes
  needed / speed of reading a buffer of that size. Each forward reads the weights, each episode its keys and
  values, each group those of its prompt once.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from agents.samplers.sampler import Sampler
from agents.types import SamplingParams
from bench.processes import cpu_s
from bench.samplers import SAMPLERS, Subject
from tasks.config.capacity import ModelSize, read_model_size
from tasks.verl.cpu.flops import ModelFlops, Work, best_seconds, matmul_flops

PROMPT, TURNS, COMPLETION, OBSERVATION, GROUP = 300, 6, 20, 8, 8
EPISODES = (1, 16, 64, 256)
EPISODE = TURNS * (COMPLETION + OBSERVATION) - OBSERVATION
"""Tokens of an episode after its prompt."""
CONTEXT = PROMPT + EPISODE + OBSERVATION + 1
MIN_CPU_S = 1.0
"""CPU seconds that are measured at least: the kernel counts those of a process in ticks of 10 ms."""
SHIPPED = Path(__file__).parents[1] / "models" / "textcraft-base"


def read_bytes_per_s(size: float) -> float:
    """Speed of reading a buffer of `size` bytes repeatedly: from the CPU's cache if it fits."""
    buffer = torch.ones(max(1024, int(size) // 4))
    times = max(1, int(2e7 / size))
    return buffer.nbytes * times / best_seconds(lambda: [buffer.sum() for _ in range(times)])


def roofline(size: ModelSize, flops: ModelFlops, *, episodes: int, flops_per_s: float) -> float:
    """CPU seconds that the load takes at least."""
    groups = -(-episodes // GROUP)
    work = Work(
        tokens=groups * PROMPT + episodes * EPISODE,
        logits=episodes * TURNS * COMPLETION,
        pairs=groups * PROMPT**2 // 2 + episodes * EPISODE * (PROMPT + EPISODE // 2),
    )
    bytes_per_step = 2.0 * (flops.per_token + flops.per_logit)
    cache_bytes_per_token = 2 * 4 * size.layers * size.kv_width
    bytes_per_step += cache_bytes_per_token * (groups * PROMPT + episodes * EPISODE / 2)
    steps = TURNS * COMPLETION
    return max(flops.forward(work) / flops_per_s, steps * bytes_per_step / read_bytes_per_s(bytes_per_step))


async def play(sampler: Sampler, *, episodes: int, vocab_size: int, seed: int) -> tuple[float, float]:
    """Seconds and CPU seconds of sampling the load; `seed` chooses the prompts and observations."""
    generator = torch.Generator().manual_seed(seed)
    params = SamplingParams(max_tokens=COMPLETION)

    def tokens(count: int) -> list[int]:
        return torch.randint(vocab_size, (count,), generator=generator).tolist()

    async def episode(index: int, conversation: list[int]) -> None:
        for turn in range(TURNS):
            completion = await sampler.sample(conversation, params=params, episode_id=f"{seed}-{index}")
            assert len(completion.token_ids) == COMPLETION, (
                f"turn {turn} has {len(completion.token_ids)} tokens"
            )
            conversation += [*completion.token_ids, *tokens(OBSERVATION)]

    groups = -(-episodes // GROUP)
    prompts = [tokens(PROMPT) for _ in range(groups)]
    start, cpu_start = time.perf_counter(), cpu_s()
    await asyncio.gather(*(episode(index, list(prompts[index // GROUP])) for index in range(episodes)))
    return time.perf_counter() - start, cpu_s() - cpu_start


async def play_repeatedly(subject: Subject, *, episodes: int, vocab_size: int) -> dict[str, float]:
    """Sample the load until enough CPU time is measured; the figures of the module's docstring."""
    # The memory of caches is committed when it is first written. New prompts find nothing cached.
    await play(subject, episodes=episodes, vocab_size=vocab_size, seed=0)
    plays, wall, cpu = 0, 0.0, 0.0
    while cpu < MIN_CPU_S:
        await subject.drop_cache()
        plays += 1
        seconds = await play(subject, episodes=episodes, vocab_size=vocab_size, seed=plays)
        wall, cpu = wall + seconds[0], cpu + seconds[1]
    completions = plays * episodes * TURNS * COMPLETION
    groups = -(-episodes // GROUP)
    return {
        "plays": plays,
        "wall_s": wall / plays,
        "cpu_s": cpu / plays,
        "sampled_per_s": completions / wall,
        "sampled_per_cpu_s": completions / cpu,
        "processed_per_cpu_s": plays * (groups * PROMPT + episodes * EPISODE) / cpu,
    }


def save_random_model(folder: Path) -> None:
    """Save a model of the shipped model's shape with random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(SHIPPED)).save_pretrained(folder)


async def measure(folder: Path, *, sampler: str, episodes: tuple[int, ...], threads: int) -> dict[str, Any]:
    """Everything that is printed."""
    torch.set_num_threads(threads)
    size, flops = read_model_size(folder), ModelFlops.of_folder(folder)
    assert size is not None
    flops_per_s = matmul_flops()
    runs = []
    for count in episodes:
        with SAMPLERS[sampler](
            folder, context_length=CONTEXT, max_sequences=count, threads=threads
        ) as subject:
            run = await play_repeatedly(subject, episodes=count, vocab_size=size.vocabulary)
        limit = roofline(size, flops, episodes=count, flops_per_s=flops_per_s)
        runs.append({"episodes": count, **run, "limit_cpu_s": limit, "of_limit": limit / run["cpu_s"]})
    return {
        "sampler": sampler,
        "model": str(folder),
        "parameters": size.parameters,
        "threads": threads,
        "gemm_gflops_per_cpu_s": flops_per_s / 1e9,
        "runs": runs,
    }


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="Speed of samplers")
    parser.add_argument("--sampler", choices=SAMPLERS, default="cpu", help="default: cpu, the CPU engine")
    parser.add_argument("--model", type=Path, help="model folder in Hugging Face format (default: random)")
    parser.add_argument("--episodes", type=int, nargs="+", default=EPISODES, help="live episodes")
    parser.add_argument("--threads", type=int, default=1, help="of the sampler (default: 1)")
    arguments = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = arguments.model or Path(temporary)
        if arguments.model is None:
            save_random_model(folder)
        options = {"episodes": tuple(arguments.episodes), "threads": arguments.threads}
        print(json.dumps(asyncio.run(measure(folder, sampler=arguments.sampler, **options)), indent=1))


if __name__ == "__main__":
    main()
