"""What one update of the policy costs on a CPU, alone and on a busy machine.

    python -m bench.update --items 4
    python -m bench.update --items 4 --busy 6 --threads 1

verl's own worker with the configuration and the environment variables of `textcraft-cpu`, in a process of its
own, over random trajectories as long as those of that pipeline. With `--busy N`, updates alternate between an
idle machine and one on which N other processes compute.

Prints one JSON object:

- `trajectories`, `tokens`: of a step, prompts counted once a group
- `pairs`: pairs of query and key that causal attention needs, with each prompt computed once
- `cpu_s`, `wall_s`: of an update (forward, backward and optimizer, all mini-batches), medians
- `gflop`: of an update, three times those of the forward pass: matrices of the layers for every token, of the
  head for every log-prob, attention for the pairs
- `mfu`: `gflop` per CPU second, as a share of the fastest matrix product in the same run
- `slowdown`: wall time beside the `busy` processes, by `wall_s`
- `fair_slowdown`: what a scheduler that is fair to every thread makes it: (busy + threads) / cores
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from bench.processes import busy_processes
from envs.cores import count_cores
from envs.types import Item
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.verl.cpu.flops import UPDATE_PASSES, ModelFlops, count_work, matmul_flops
from tasks.verl.local_worker import join_process_group, start_actor
from tasks.verl.process import environment_of
from tasks.verl.rows import TrainingRow, fields_of, rows_of

PIPELINE = "textcraft-cpu"
PROMPT_TOKENS = (60, 160)
MEDIAN_RESPONSE, SPREAD = 150, 0.8
"""Responses are log-normal: median, and standard deviation of the logarithm."""
VOCABULARY = (10, 1200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measurement; the docstring of this file says what its fields are."""

    trajectories: int
    tokens: int
    pairs: int
    threads: int
    busy: int
    cpu_s: float
    wall_s: float
    gflop: float
    mfu: float
    slowdown: float | None
    fair_slowdown: float | None


def measure(*, items: int, repeats: int, busy: int) -> Result:
    """Update `repeats` times (and as often beside `busy` processes) on `items` groups."""
    import torch

    pipeline = load_pipeline(PIPELINE)
    rows = random_rows(pipeline, items=items)
    join_process_group()
    worker, data = start_actor(pipeline, model=Path(pipeline.model)), update_data(pipeline, rows)
    worker.update_actor(data.clone())  # the first one builds the optimizer's state
    alone_times: list[tuple[float, float]] = []
    busy_times: list[tuple[float, float]] = []
    with busy_processes(busy) as processes:
        send(processes, signal.SIGSTOP)
        for _ in range(repeats):
            alone_times.append(timed_update(worker, data))
            if busy:
                send(processes, signal.SIGCONT)
                busy_times.append(timed_update(worker, data))
                send(processes, signal.SIGSTOP)
    threads, cores = torch.get_num_threads(), count_cores()
    cpu_s, wall_s = (median(times) for times in zip(*alone_times, strict=True))
    work = count_work(rows)
    flop = UPDATE_PASSES * ModelFlops.of_folder(Path(pipeline.model)).forward(work)
    return Result(
        trajectories=len(rows),
        tokens=work.tokens,
        pairs=work.pairs,
        threads=threads,
        busy=busy,
        cpu_s=round(cpu_s, 3),
        wall_s=round(wall_s, 3),
        gflop=round(flop / 1e9, 1),
        mfu=round(flop / cpu_s / matmul_flops(), 3),
        slowdown=round(median(wall for _, wall in busy_times) / wall_s, 2) if busy else None,
        fair_slowdown=round(max(1.0, (busy + threads) / cores), 2) if busy else None,
    )


def timed_update(worker: Any, data: Any) -> tuple[float, float]:
    """(CPU seconds of this process, wall seconds)."""
    fresh = data.clone()  # verl takes its options out of what it is given
    cpu, wall = time.process_time(), time.perf_counter()
    worker.update_actor(fresh)
    return time.process_time() - cpu, time.perf_counter() - wall


def update_data(pipeline: Pipeline, rows: Sequence[TrainingRow]) -> Any:
    """What verl's worker is given for a step; all advantages are alike, which no cost depends on."""
    from verl.utils import tensordict_utils as tu

    from tasks.verl.trainer import update_options

    data = fields_of(rows)
    data["old_log_probs"] = data["rollout_log_probs"]
    data["advantages"] = -data["rollout_log_probs"]
    tu.assign_non_tensor(
        data,
        **update_options(
            pipeline,
            rows=len(rows),
            played_tokens=len(rows),
            trained_tokens=len(rows),
            observation_tokens=0,
            step=1,
            temperature=1.0,
        ),
    )
    return data


def random_rows(pipeline: Pipeline, *, items: int) -> list[TrainingRow]:
    """Groups of `rollout.group_size` trajectories of one segment."""
    rng = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rng.randint(*VOCABULARY) for _ in range(count)]

    rows = []
    for item in range(items):
        prompt = tokens(rng.randint(*PROMPT_TOKENS))
        room = pipeline.rollout.context_length - len(prompt)
        for sample_index in range(pipeline.rollout.group_size):
            response_ids = tokens(max(2, min(room, int(MEDIAN_RESPONSE * rng.lognormvariate(0.0, SPREAD)))))
            completion = Completion(
                token_ids=tuple(response_ids),
                logprobs=(-1.0,) * len(response_ids),
                finish_reason=FinishReason.STOP,
                policy_version=0,
            )
            turn = Turn(
                completion=completion, text="", action="", observation="", reward=0.0, observation_ids=()
            )
            trajectory = Trajectory(
                item=Item(item_id=f"random_{item}", env="random"),
                sample_index=sample_index,
                prompt_ids=tuple(prompt),
                turns=(turn,),
                stop_reason=StopReason.TERMINATED,
                reward=0.0,
                success=False,
                seconds=0.0,
            )
            rows += rows_of(f"group{item}", [trajectory])
    return rows


def send(processes: Sequence[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    """Signal each of them."""
    for process in processes:
        with suppress(ProcessLookupError):
            process.send_signal(number)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--items", type=int, default=4, help="groups that are trained on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--busy", type=int, default=0, help="other processes that compute")
    parser.add_argument("--threads", type=int, help="most threads of the update (default: the cores)")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        result = measure(items=arguments.items, repeats=arguments.repeats, busy=arguments.busy)
        print(json.dumps(asdict(result)))
        return
    # Memory and threads are as in training only where these are set before the process starts.
    variables = environment_of(load_pipeline(PIPELINE))
    if arguments.threads:
        variables["WINGSPAN_THREADS"] = str(arguments.threads)
    command = [sys.executable, "-m", "bench.update", "--here", *sys.argv[1:]]
    output = subprocess.run(
        command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True
    )
    print(output.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
