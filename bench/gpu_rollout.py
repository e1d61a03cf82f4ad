"""Rollouts of TextCraft with vLLM on one GPU: tokens per second, and which process is busy.

    python -m bench.gpu_rollout                      # models/textcraft-base
    python -m bench.gpu_rollout --live 64 256 1024

Runs the same episodes through verl's own client, which asks its load balancer for a server at every turn, and
through `tasks/verl/client.py`. Prints one JSON object for each client and number of live episodes:

- `tokens_per_s`, `turns_per_s`: sampled ones, over the wall time from the first episode to the last
- `cores`: for the three busiest processes, their CPU time over the wall time: 1 is a core that is always busy
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

from agents.types import Trajectory
from bench.processes import cpu_s_by_process
from envs.types import Item
from tasks.cluster.placement import place_workers
from tasks.cluster.session import connect_ray, disconnect_ray
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.data.items import split, spread
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import RolloutSpec
from tasks.verl.process import environment_of

PIPELINE, TURNS = "textcraft-gpu", 26


async def measure(
    pipeline: Pipeline, items: Sequence[Item], *, client: Any, tokenizer: Any, name: str
) -> dict[str, Any]:
    """One sampled episode of each of `items`, all of them at once."""
    from tasks.verl.rollout import VerlSampler

    runner = make_runner(pipeline, sampler=VerlSampler(client), tokenizer=tokenizer)
    spec = RolloutSpec(
        name=name, max_turns=dict.fromkeys(pipeline.data.parts, TURNS), num_samples=1, temperature=1.0
    )
    before, start = cpu_s_by_process(), time.perf_counter()
    try:
        groups: list[list[Trajectory]] = await runner.run(items, spec)
    finally:
        await runner.close()
    seconds, after = time.perf_counter() - start, cpu_s_by_process()
    turns = [turn for trajectory in chain.from_iterable(groups) for turn in trajectory.turns]
    cores = {process: (after[process] - before.get(process, 0.0)) / seconds for process in after}
    busiest = sorted(cores, key=cores.__getitem__, reverse=True)[:3]
    return {
        "live": len(items),
        "tokens_per_s": round(sum(len(turn.completion.token_ids) for turn in turns) / seconds),
        "turns_per_s": round(len(turns) / seconds),
        "seconds": round(seconds, 2),
        "cores": {process: round(cores[process], 2) for process in busiest},
    }


async def run(pipeline: Pipeline, live: Sequence[int]) -> None:
    """Start the servers and print a line for each measurement."""
    from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

    from agents.huggingface.files import load_tokenizer
    from tasks.verl.client import DirectClient
    from tasks.verl.servers import servers_config

    config = servers_config(pipeline, model=pipeline.model, placement=place_workers(pipeline.backend))
    manager = await LLMServerManager.create(config)
    clients = {
        "verl": manager.get_client(LLMServerClient),
        "direct": manager.get_client(DirectClient, servers=manager.server_handles),
    }
    tokenizer = load_tokenizer(pipeline.model)
    items = spread(split(pipeline.data).train, max(live))
    for number, count in enumerate([live[0], *live]):  # the first warms up
        for name, client in clients.items():
            chosen_items = spread(items, count)
            line = await measure(
                pipeline, chosen_items, client=client, tokenizer=tokenizer, name=f"{name} {number}"
            )
            if number:
                print(json.dumps({"client": name} | line), flush=True)


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", type=int, nargs="+", default=[64, 256, 1024])
    arguments = parser.parse_args()
    pipeline = load_pipeline(PIPELINE)
    os.environ.update(environment_of(pipeline))
    connect_ray(pipeline)
    try:
        asyncio.run(run(pipeline, arguments.live))
    finally:
        disconnect_ray()


if __name__ == "__main__":
    main()
