"""A small workspace, written by the writers of the real ones, whose every number can be done by hand.

Four test items (depth 1, 1, 2, 2), two samples each, and a greedy one; four training steps of two
rounds. Outcomes are tables of 0 and 1 below.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from agents.types import Completion, FinishReason, StopReason, Trajectory, Turn
from envs.types import Item
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.data.items import write_items
from tasks.data.trajectories import summarise, write_trajectories
from tasks.evaluation.outcomes import OUTCOMES, episodes_to_keep, successes_of, summarise_groups
from tasks.runs.rounds import RoundResult
from tasks.runs.usage import Usage, write_usage
from tasks.verl.rewinds import Rewind, write_rewind

ITEMS = [
    Item(item_id="toy_0", env="textcraft", metadata={"depth": 1, "kind": "wood"}),
    Item(item_id="toy_1", env="textcraft", metadata={"depth": 1, "kind": "stone"}),
    Item(item_id="toy_2", env="textcraft", metadata={"depth": 2, "kind": "wood"}),
    Item(item_id="toy_3", env="textcraft", metadata={"depth": 2, "kind": "wood"}),
]
SAMPLE_SUCCESSES = {"before": [(0, 1), (1, 0), (0, 0), (0, 0)], "after": [(1, 1), (0, 1), (1, 0), (0, 0)]}
"""Policy → item → success of each sample; the first is kept, and the first without success."""
GREEDY = {"before": [1, 0, 0, 0], "after": [1, 1, 1, 0]}
QUICK = [1, 0, 1, 1]
TURNS = [2, 3, 4, 5]
"""Turns of each of the two episodes of a training step."""
RAISE_REASON = "9 turns, because success within 5 turns has levelled off"
"""Of step 3, as an adaptive horizon gives one."""
SECONDS = {"rollout": 2.0, "update": 1.0, "weight_sync": 0.25}
STEP_SECONDS = 4.0


def toy_pipeline(**overrides: object) -> Pipeline:
    """The CPU pipeline with the toy's steps; further `overrides` by key with `__` for the dot."""
    values = {
        "train.steps": 4,
        "train.steps_per_round": 2,
        "horizon.max_turns": [5, 9],
        "horizon.steps_per_stage": 2,
        "evaluate.samples_per_item": 2,
        "evaluate.quick_items": 4,
    }
    changes = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_pipeline("textcraft-cpu", overrides=values | changes)


def make_trajectory(
    item: Item, *, success: bool, turns: int = 2, version: int = 0, action: str = "get 1 log"
) -> Trajectory:
    """An episode whose completions have three tokens with log-probs -0.5, -1.0 and -0.25."""
    completion = Completion(
        token_ids=(5, 6, 7),
        logprobs=(-0.5, -1.0, -0.25),
        finish_reason=FinishReason.STOP,
        policy_version=version,
    )
    turn = Turn(
        completion=completion,
        text=f"Thought: wood first\nAction: {action}",
        thought="wood first",
        action=action,
        observation="Got 1 log",
        reward=0.0,
        observation_ids=(1,),
    )
    return Trajectory(
        item=item,
        sample_index=0,
        prompt_ids=(1, 2),
        turns=(*[turn] * (turns - 1), replace(turn, reward=float(success))),
        stop_reason=StopReason.TERMINATED if success else StopReason.MAX_TURNS,
        reward=float(success),
        success=success,
        seconds=0.5,
    )


def make_failure(item: Item, *, error: str) -> Trajectory:
    """A dropped episode."""
    failure = replace(make_trajectory(item, success=False), turns=(), stop_reason=StopReason.ERROR)
    return replace(failure, error=error, attempts=3)


def write_training(
    workspace: Path, *, turns: Sequence[int] = TURNS, horizons: Sequence[int] = (5, 5, 9, 9)
) -> None:
    """Steps of two counted episodes, one solved; one more is dropped at step 2."""
    lines = []
    for step, (length, horizon) in enumerate(zip(turns, horizons, strict=True), start=1):
        group = [
            make_trajectory(ITEMS[0], success=True, turns=length),
            make_trajectory(ITEMS[0], success=False, turns=length),
        ]
        if step == 2:
            group.append(make_failure(ITEMS[0], error="EnvCrashed: step raised KeyError"))
        seconds = {f"seconds_{phase}": value for phase, value in SECONDS.items()}
        more = {"informative_groups": 1.0, "entropy": 0.5, "horizon": horizon, "seconds": STEP_SECONDS}
        more |= {"kl": 0.001 * step, "clip_fraction": 0.0, "grad_norm": 0.2, "lr": 3e-4}
        reason = {"horizon_reason": RAISE_REASON} if step == 3 else {}
        lines.append({"step": step, **summarise(group), **more, **seconds, **reason})
    file = workspace / "train" / "metrics.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_rewind(workspace / "train", Rewind(from_step=4, to_step=2, reasons="the KL is 9"))


def write_rounds(workspace: Path) -> None:
    """Two rounds with the same quick evaluation."""
    quick = summarise(
        [make_trajectory(item, success=bool(ok)) for item, ok in zip(ITEMS, QUICK, strict=True)]
    )
    for index in range(2):
        done = RoundResult(
            temperature=1.0,
            index=index,
            first_step=2 * index + 1,
            last_step=2 * index + 2,
            evaluation=quick,
            seconds=9.0,
        )
        file = workspace / "train" / "rounds" / f"{index:02d}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(done)))


def write_evaluation(
    workspace: Path,
    *,
    items: Sequence[Item] = ITEMS,
    action: str = "get 1 log",
    successes: Mapping[str, Sequence[Sequence[int]]] = SAMPLE_SUCCESSES,
) -> None:
    """`evaluation.json`, the outcomes of items, and the trajectories that are kept of them."""
    summaries: dict[str, dict[str, object]] = {}
    item_outcomes: dict[str, dict[str, object]] = {}
    samples = []
    for policy, version in (("before", 0), ("after", 4)):
        outcomes = {"sampled": successes[policy], "greedy": [(ok,) for ok in GREEDY[policy]]}
        summaries[policy] = {}
        item_outcomes[policy] = {}
        for mode, table in outcomes.items():
            groups = [
                [
                    replace(
                        make_trajectory(item, success=bool(ok), version=version, action=action),
                        sample_index=index,
                    )
                    for index, ok in enumerate(row)
                ]
                for item, row in zip(items, table, strict=True)
            ]
            summaries[policy][mode] = summarise_groups(groups)
            item_outcomes[policy][mode] = successes_of(groups)
            samples += [
                replace(trajectory, labels={"policy": policy, "mode": mode})
                for group in groups
                for trajectory in episodes_to_keep(group)
            ]
    write_trajectories(workspace / "evaluation_trajectories.jsonl", samples)
    (workspace / "evaluation.json").write_text(json.dumps(summaries))
    (workspace / OUTCOMES).write_text(json.dumps(item_outcomes))


def write_workspace(workspace: Path, *, seconds: float = 26.0, **evaluation: Any) -> None:
    """Everything that a finished run leaves for the report."""
    write_items(workspace / "data" / "test.jsonl", ITEMS)
    write_training(workspace)
    write_rounds(workspace)
    write_evaluation(workspace, **evaluation)
    stages = {"prepare": 1.0, "train": seconds, "evaluate": 3.0, "report": 100.0}
    (workspace / "timing.json").write_text(json.dumps({"stages": stages}))
    for stage, cpu_s, memory in (("train", 50.0, 4_000_000_000), ("evaluate", 5.0, 1_500_000_000)):
        usage = Usage(cpu_s=cpu_s, peak_memory_bytes=memory)
        write_usage(workspace, stage, usage, is_resumed=False)
    receipt = {"capacity": 8, "episodes": 64, "solved": 64, "turns": 300, "seconds": 1.5}
    (workspace / "provision.json").write_text(json.dumps(receipt))
