"""Rounds of training, which the online and the offline train stage share.

Owns what a round leaves in `train/`: its result, `rounds/NN.json`, the episodes of its quick evaluation,
`trajectories/round_NN.jsonl`, the best policy so far and its round, and the lines of `metrics.jsonl`. Which
policy training starts from and which one it hands on is decided here, too.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from agents.types import Trajectory
from envs.errors import ConfigError
from envs.files import read_json, read_json_lines, write_atomically, write_json
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.config.training import TrainSettings
from tasks.data.items import evaluation_turns, read_items, spread, training_order
from tasks.data.trajectories import summarise, write_trajectories
from tasks.rollout.runner import RolloutSpec
from tasks.verl.checkpoints import policy_folder
from tasks.verl.policies import copy_policy

BEST = "best"
"""In `train/`: the policy of the round with the most successful quick evaluation, in Hugging Face format."""
_BEST_ROUND = "best.json"
"""`{"index": of the round whose policy is in `BEST`}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRound:
    """A round that is trained and not evaluated yet."""

    index: int
    """From 0."""
    first_step: int
    last_step: int
    seconds: float
    """Wall time, including start-up; of the last attempt if one was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult(TrainedRound):
    """One finished round, as in `train/rounds/NN.json`; `seconds` include the evaluation."""

    evaluation: dict[str, float]
    """`summarise` of the quick evaluation: one sample of each test item, at `evaluate.temperature`."""


def start_policy(pipeline: Pipeline, workspace: Path) -> Path | str:
    """The policy that training starts from: the folder of the warm-up, or else `model`."""
    return pipeline.model if pipeline.warmup is None else workspace / "warmup"


def check_start(pipeline: Pipeline, workspace: Path) -> None:
    """Raise `ConfigError` if the warm-up has not written the policy that training starts from."""
    policy = start_policy(pipeline, workspace)
    if isinstance(policy, Path) and not (policy / "config.json").exists():
        raise ConfigError(f"no policy in {policy}; run the warm-up stage first")


def make_round(settings: TrainSettings, index: int) -> TrainedRound:
    """The round before it is trained; the last one may have fewer steps."""
    first = index * settings.steps_per_round + 1
    last = min(first + settings.steps_per_round - 1, settings.steps)
    return TrainedRound(index=index, first_step=first, last_step=last, seconds=0.0)


def round_file(folder: Path, index: int) -> Path:
    """Of a round's result, in `folder` (`train/`)."""
    return folder / "rounds" / f"{index:02d}.json"


def episode_file(folder: Path, index: int) -> Path:
    """Of the episodes of a round's quick evaluation, in `folder` (`train/`).

    Its number is the one by which users know the round, which counts from 1.
    """
    return folder / "trajectories" / f"round_{index + 1:02d}.jsonl"


def read_round(folder: Path, index: int) -> RoundResult | None:
    """The result of a round in `folder` (`train/`); None if it has not ended."""
    values = read_json(round_file(folder, index))
    return RoundResult(**values) if values else None


def evaluate_round(
    steps: TrainedRound,
    pipeline: Pipeline,
    workspace: Path,
    *,
    policy: Path,
    run: Callable[[Sequence[Item], RolloutSpec], list[list[Trajectory]]],
) -> RoundResult:
    """Evaluate `policy`, that of the round's end, on a few test items; write the episodes, then the result.

    `run`: `RolloutRunner.run` with that policy. Test items are spread over the split.
    """
    start, folder = time.perf_counter(), workspace / "train"
    items = read_items(workspace / "data" / "test.jsonl", data=pipeline.data)
    spec = RolloutSpec(
        name=f"after {steps.last_step}",
        max_turns=evaluation_turns(pipeline),
        num_samples=1,
        temperature=pipeline.evaluate.temperature,
    )
    groups = run(spread(items, pipeline.evaluate.quick_items), spec)
    trajectories = [trajectory for group in groups for trajectory in group]
    write_trajectories(episode_file(folder, steps.index), trajectories)
    evaluation = summarise(trajectories)
    seconds = steps.seconds + time.perf_counter() - start
    result = RoundResult(**{**asdict(steps), "evaluation": evaluation, "seconds": seconds})
    best = find_best(folder)
    # Of equals, the earlier stays. A round in which no episode counted is never the best.
    if "success" in evaluation and (best is None or evaluation["success"] > best.evaluation["success"]):
        _keep(folder, steps.index, policy=policy)
    write_atomically(round_file(folder, steps.index), json.dumps(asdict(result), indent=1))
    return result


def _keep(folder: Path, index: int, *, policy: Path) -> None:
    """Copy the `policy` of round `index` to `BEST`. `folder`: `train/`."""
    (folder / _BEST_ROUND).unlink(missing_ok=True)
    copy_policy(policy, folder / BEST)
    write_json(folder / _BEST_ROUND, {"index": index})


def choose_best(folder: Path, checkpoints: Path) -> None:
    """Make `BEST` the policy of the most successful round that has ended and whose checkpoint is still there;
    of equals, of the earlier. Without one, there is no `BEST`. `folder`: `train/`."""
    candidates = [
        (result, policy)
        for result in read_rounds(folder)
        if "success" in result.evaluation
        and (policy := policy_folder(checkpoints, step=result.last_step)).exists()
    ]
    if candidates:
        best, policy = max(candidates, key=lambda candidate: candidate[0].evaluation["success"])
        _keep(folder, best.index, policy=policy)
    else:
        (folder / _BEST_ROUND).unlink(missing_ok=True)
        shutil.rmtree(folder / BEST, ignore_errors=True)


def read_rounds(folder: Path) -> list[RoundResult]:
    """The finished rounds in `folder` (`train/`), in order."""
    return [RoundResult(**read_json(file)) for file in sorted(folder.glob("rounds/*.json"))]


def drop_rounds_after(folder: Path, step: int) -> None:
    """Remove the results of rounds that ended after `step`, and the episodes of rounds that have no result.

    `folder`: `train/`.
    """
    ended_rounds = read_rounds(folder)
    remaining_rounds = [result for result in ended_rounds if result.last_step <= step]
    for result in ended_rounds:
        if result not in remaining_rounds:
            round_file(folder, result.index).unlink()
    remaining_files = {episode_file(folder, result.index) for result in remaining_rounds}
    for file in (folder / "trajectories").glob("round_*.jsonl"):
        if file not in remaining_files:
            file.unlink()


def find_best(folder: Path) -> RoundResult | None:
    """The round whose policy is in `BEST` in `folder` (`train/`), if it has ended: the most successful one,
    unless training went back to before a better one."""
    kept = read_json(folder / _BEST_ROUND)
    return read_round(folder, kept["index"]) if kept else None


def final_policy(pipeline: Pipeline, folder: Path, *, last: Path) -> Path:
    """The policy that `train.final_policy` chooses, in `folder` (`train/`) or `last`."""
    return last if _final_round(pipeline, folder) is None else folder / BEST


def final_step(pipeline: Pipeline, folder: Path) -> int:
    """The training steps of the policy that `train.final_policy` chooses."""
    best = _final_round(pipeline, folder)
    return pipeline.train.steps if best is None else best.last_step


def _final_round(pipeline: Pipeline, folder: Path) -> RoundResult | None:
    """None for the last one."""
    return find_best(folder) if pipeline.train.final_policy == BEST else None


def drop_steps_after(path: Path, step: int) -> None:
    """Remove the lines of later steps from a metrics file. Raises `ConfigError` for a damaged line."""
    if path.exists():
        lines = [json.dumps(values) + "\n" for values in read_json_lines(path) if values["step"] <= step]
        write_atomically(path, "".join(lines))


def training_items(pipeline: Pipeline, workspace: Path) -> list[Item]:
    """The items in the order in which training samples them, `rollout.items_per_step` a step, and after
    them those that this order does not reach."""
    items = read_items(workspace / "data" / "train.jsonl", data=pipeline.data)
    order = training_order(items, pipeline.data, seed=pipeline.seed)
    numbers = list(islice(order, pipeline.train.steps * pipeline.rollout.items_per_step))
    rest = sorted(set(range(len(items))) - set(numbers))
    return [items[number] for number in (*numbers, *rest)]


def write_prompts(pipeline: Pipeline, folder: Path) -> None:
    """Copy the prompts of the agent and of its judges to `folder`, the records of the training."""
    prompts = {"prompt.md": pipeline.agent.prompt}
    prompts |= {f"judge-{name}.md": judge.prompt for name, judge in pipeline.agent.judges.items()}
    for name, prompt in prompts.items():
        if prompt is not None:
            write_atomically(folder / name, prompt.read_text(encoding="utf-8"))
