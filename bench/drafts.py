"""What the CPU engine's drafts save on real episodes: `python -m bench.drafts POLICY [--items N]`.

Plays TextCraft's training items, 8 samples each, with the policy in the folder POLICY: by turns with and
without drafts (docs/decisions/0020-drafts-from-a-group.md), and checks that tokens and log-probs are the same
to the last bit. Prints one JSON object: CPU microseconds of this process for a sampled token (the least of
the repeats), with environments and prompts and without the loading of the model, and their ratio.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path

from agents.rollout.group import Callbacks
from agents.rollout.rollout import rollout
from agents.samplers.cpu import engine
from agents.samplers.local import LocalModel
from agents.types import EpisodeLimits, SamplingParams, Trajectory
from envs.registry import get_env
from envs.types import Item

LIMITS = EpisodeLimits(max_turns=26, max_tokens_per_turn=96, context_length=1280, episode_timeout_s=600)


def play(policy: Path, items: Sequence[Item], *, temperature: float) -> tuple[float, list[Trajectory]]:
    """Returns CPU seconds since the first episode began, when the model is loaded, and trajectories."""
    starts: list[float] = []

    def begin(*_: object) -> None:
        if not starts:
            starts.append(time.process_time())

    trajectories = rollout(
        items,
        agent="action",
        env="textcraft",
        model=LocalModel(policy),
        limits=LIMITS,
        sampling=SamplingParams(temperature=temperature, max_tokens=LIMITS.max_tokens_per_turn),
        num_samples=8,
        max_live_envs=512,
        callbacks=Callbacks(on_opening=begin),
    )
    return time.process_time() - starts[0], trajectories


def count_tokens(trajectories: Sequence[Trajectory]) -> int:
    """The sampled tokens."""
    return sum(len(turn.completion.token_ids) for t in trajectories for turn in t.turns)


def sampled_bits(trajectories: Sequence[Trajectory]) -> list[object]:
    """Tokens and log-probs of every turn."""
    return [(turn.completion.token_ids, turn.completion.logprobs) for t in trajectories for turn in t.turns]


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description="What drafts save on real episodes")
    parser.add_argument("policy", type=Path, help="model folder")
    parser.add_argument("--items", type=int, default=24, help="training items, drawn at random (default: 24)")
    parser.add_argument("--repeats", type=int, default=3, help="runs with and without drafts (default: 3)")
    parser.add_argument("--temperature", type=float, default=1.2, help="default: 1.2, as the main job's")
    arguments = parser.parse_args()
    items = random.Random(0).sample(get_env("textcraft").split(0).train, arguments.items)
    seconds: dict[int, list[float]] = {engine.MAX_DRAFT: [], 0: []}
    play(arguments.policy, items[:2], temperature=1.0)  # loads what is compiled
    reference: list[object] | None = None
    for _ in range(arguments.repeats):
        for max_draft, measured in seconds.items():
            engine.MAX_DRAFT = max_draft
            cpu_s, trajectories = play(arguments.policy, items, temperature=arguments.temperature)
            measured.append(cpu_s)
            bits = sampled_bits(trajectories)
            assert reference is None or bits == reference, f"other tokens with max_draft={max_draft}"
            reference = bits
    tokens = count_tokens(trajectories)
    with_drafts, without = (1e6 * min(measured) / tokens for measured in seconds.values())
    print(
        json.dumps(
            {
                "tokens": tokens,
                "success": sum(t.success for t in trajectories) / len(trajectories),
                "cpu_us_per_token": {"with_drafts": round(with_drafts), "without": round(without)},
                "ratio": round(without / with_drafts, 2),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
