"""What the estimation of a step's advantages costs, and verl's own functions beside it.

    python -m bench.advantages
    python -m bench.advantages --conversations 512 --tokens 1024

Random rewards on the last token of each turn, in groups of 8. All conversations have the same length, which
is the most work for a given shape. verl's functions get the same tensors, their mask included. One thread,
and milliseconds of its CPU time, the fewest of several calls: other work on the machine counts little.

Prints one JSON object:

- `write`, `copy`: to fill a new tensor of the result's shape with zeros, and with another tensor's numbers
- `ours`: `OnlineAlgorithm.estimate`, by algorithm, the reading of the trajectories included
- `verl`: verl's function, by the name of ours
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.algorithms.algorithm import OnlineAlgorithm
from tasks.algorithms.conversations import Conversations
from tasks.algorithms.registry import ALGORITHMS, parse_algorithm

GROUP_SIZE = 8
TURNS = 16
VERL = {
    "dr_grpo": ("grpo_vectorized", {"norm_adv_by_std_in_grpo": False}),
    "grpo": ("grpo_vectorized", {}),
    "grpo_passk": ("grpo_passk", {}),
    "opo": ("opo", {}),
    "optimal_token_baseline": ("tir_optimal_token_baseline", {}),
    "ppo": ("gae", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus", {}),
    "reinforce_plus_plus_baseline": ("reinforce_plus_plus_baseline", {}),
    "rloo": ("rloo_vectorized", {}),
}
"""By our name: verl's, its fastest where it has two, and options."""

INCOMPLETE = ("distill", "gdpo", "sft")
"""Algorithms that need a parameter."""


def measure(*, conversations: int, tokens: int, repeats: int) -> dict[str, Any]:
    """CPU milliseconds of each estimator and of verl's function, the best of `repeats`, by name."""
    torch.set_num_threads(1)
    batch = random_batch(conversations, tokens)
    parsed = [parse_algorithm(name) for name in ALGORITHMS if name not in INCOMPLETE]
    algorithms = [algorithm for algorithm in parsed if isinstance(algorithm, OnlineAlgorithm)]
    return {
        "conversations": conversations,
        "tokens": tokens,
        "write": milliseconds(lambda: torch.zeros(conversations, tokens), repeats),
        "copy": milliseconds(batch.old_log_probs.clone, repeats),
        "ours": {a.name: milliseconds(partial(estimate, a, batch), repeats) for a in algorithms},
        "verl": {
            name: milliseconds(verl_function(verl_name, options, batch), repeats)
            for name, (verl_name, options) in VERL.items()
        },
    }


def estimate(algorithm: OnlineAlgorithm, batch: Conversations) -> None:
    """As in a step: without what an earlier estimate has read from the trajectories."""
    algorithm.estimate(replace(batch))


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """CPU time of the quickest of `repeats` calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return round(1000 * min(times), 1)


def random_batch(conversations: int, tokens: int) -> Conversations:
    """Of turns of the same length, rewards of 0 and 1, and random values."""
    generator = torch.Generator().manual_seed(0)
    length = tokens // TURNS
    return Conversations(
        trajectories=random_trajectories(conversations, length),
        group=torch.arange(conversations) // GROUP_SIZE,
        mask=torch.ones(conversations, tokens, dtype=torch.bool),
        turn_scores=torch.randint(0, 2, (conversations, TURNS), generator=generator).double(),
        old_log_probs=torch.full((conversations, tokens), -1.0),
        teacher_log_probs=torch.full((conversations, tokens), -1.5),
        sum_pi_squared=torch.rand(conversations, tokens, generator=generator),
        values=torch.rand(conversations, tokens, generator=generator),
        greedy_rewards=torch.zeros(conversations, dtype=torch.float64),
        num_played=conversations,
    )


def random_trajectories(conversations: int, length: int) -> list[Trajectory]:
    """Each turn in one of as many states as there are turns; some end at the goal."""
    rng = random.Random(0)
    completion = Completion(
        token_ids=(0,) * length, logprobs=(0.0,) * length, finish_reason=FinishReason.STOP, policy_version=0
    )
    turns = [
        Turn(completion=completion, text="", action="", observation="", reward=0.0, state=str(state))
        for state in range(TURNS)
    ]
    return [
        Trajectory(
            item=Item(item_id=f"bench_{number // GROUP_SIZE}", env="bench"),
            sample_index=number % GROUP_SIZE,
            prompt_ids=(),
            turns=tuple(rng.choices(turns, k=TURNS)),
            stop_reason=StopReason.TERMINATED,
            reward=0.0,
            success=rng.random() < 0.3,
            seconds=0.0,
        )
        for number in range(conversations)
    ]


def verl_function(name: str, options: dict[str, Any], batch: Conversations) -> Callable[[], object]:
    """verl's estimator as its trainer calls it."""
    import numpy as np
    from verl.trainer.config import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    mask: Tensor = batch.mask.float()
    arguments: dict[str, Any] = {"token_level_rewards": batch.token_rewards, "response_mask": mask}
    if name == "gae":
        arguments |= {"values": batch.values, "gamma": 1.0, "lam": 1.0}
    else:
        uids = np.array([str(group) for group in batch.group.tolist()], dtype=object)
        arguments |= {"index": uids, "config": AlgoConfig(gamma=1.0, lam=1.0, **options)}
    if name == "tir_optimal_token_baseline":
        arguments |= {"old_log_probs": batch.old_log_probs, "sum_pi_squared": batch.sum_pi_squared}
    estimate = get_adv_estimator_fn(name)
    return lambda: estimate(**arguments)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--conversations", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(measure(**vars(arguments)), indent=2))


if __name__ == "__main__":
    main()
