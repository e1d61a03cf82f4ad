"""The end of a round of training, which the online and the offline train stage share.

Evaluates the policy, writes the episodes of the evaluation and the round's record, whose format is that of
`tasks/runs/rounds.py`, and keeps the best policy.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from agents.types import Trajectory
from envs.errors import ConfigError
from envs.files import write_atomically, write_json
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.config.training import TrainSettings
from tasks.data.items import evaluation_turns, read_items, spread
from tasks.data.trajectories import summarise, write_trajectories
from tasks.rollout.spec import RolloutSpec
from tasks.runs.rounds import (
    BEST,
    BEST_ROUND,
    BestRound,
    RoundResult,
    TrainedRound,
    episode_file,
    find_best,
    read_rounds,
    round_file,
    start_policy,
)
from tasks.runs.steps import read_step_lines
from tasks.verl.checkpoints import policy_folder
from tasks.verl.policies import copy_policy


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
    result = RoundResult(
        **{**asdict(steps), "evaluation": evaluation, "temperature": spec.temperature, "seconds": seconds}
    )
    best = find_best(folder)
    # Of equals, the earlier stays. A round in which no episode counted is never the best.
    if "success" in evaluation and (best is None or evaluation["success"] > best.evaluation["success"]):
        _keep(folder, steps.index, policy=policy)
    write_atomically(round_file(folder, steps.index), json.dumps(asdict(result), indent=1))
    return result


def _keep(folder: Path, index: int, *, policy: Path) -> None:
    """Copy the `policy` of round `index` to `BEST`. `folder`: `train/`."""
    (folder / BEST_ROUND).unlink(missing_ok=True)
    copy_policy(policy, folder / BEST)
    write_json(folder / BEST_ROUND, BestRound(index=index))


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
        (folder / BEST_ROUND).unlink(missing_ok=True)
        shutil.rmtree(folder / BEST, ignore_errors=True)


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


def drop_short_round(folder: Path, settings: TrainSettings, *, step: int) -> None:
    """Remove the result of the round that ended at `step`, if it was the last and is not any more, because
    `train.steps` was raised: it gets the steps that it lacks. `folder`: `train/`."""
    for result in read_rounds(folder):
        if result.last_step == step != make_round(settings, result.index).last_step:
            round_file(folder, result.index).unlink()
            episode_file(folder, result.index).unlink(missing_ok=True)


def drop_steps_after(path: Path, step: int) -> None:
    """Remove the lines of later steps from a metrics file. Raises `ConfigError` for a damaged line."""
    if path.exists():
        lines = [json.dumps(values) + "\n" for values in read_step_lines(path) if values["step"] <= step]
        write_atomically(path, "".join(lines))


def write_prompts(pipeline: Pipeline, folder: Path) -> None:
    """Copy the prompts of the agent and of its judges to `folder`, the records of the training."""
    prompts = {"prompt.md": pipeline.agent.prompt}
    prompts |= {f"judge-{name}.md": judge.prompt for name, judge in pipeline.agent.judges.items()}
    for name, prompt in prompts.items():
        if prompt is not None:
            write_atomically(folder / name, prompt.read_text(encoding="utf-8"))
