"""Rounds of training, which the online and the offline train stage share.

Owns what a round leaves in `train/`: its result, `rounds/NN.json`, the best policy so far, and the lines of
`metrics.jsonl`. Which policy training starts from and which one it hands on is decided here, too.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from agents.types import Trajectory
from envs.errors import ConfigError
from envs.files import read_json, write_atomically
from envs.types import Item
from tasks.config.pipelines import Pipeline
from tasks.config.training import TrainSettings
from tasks.data.items import evaluation_turns, read_items, spread, training_order
from tasks.data.trajectories import summarise
from tasks.rollout.runner import RolloutSpec
from tasks.verl.policies import copy_policy

BEST = "best"
"""In `train/`: the policy of the round with the most successful quick evaluation, in Hugging Face format."""


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
    """Evaluate `policy`, that of the round's end, on a few test items, and write the round's result.

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
    evaluation = summarise([trajectory for group in groups for trajectory in group])
    seconds = steps.seconds + time.perf_counter() - start
    result = RoundResult(**{**asdict(steps), "evaluation": evaluation, "seconds": seconds})
    _keep_if_best(folder, evaluation, policy=policy)
    write_atomically(round_file(folder, steps.index), json.dumps(asdict(result), indent=1))
    return result


def _keep_if_best(folder: Path, evaluation: Mapping[str, float], *, policy: Path) -> None:
    """Copy `policy`, whose quick evaluation is given, to `BEST` if no earlier round was as successful.

    `folder`: `train/`. Of equals, the earlier stays. A round in which no episode counted is never the best.
    """
    if "success" not in evaluation:
        return
    target, best = folder / BEST, find_best(folder)
    if best is None or not target.exists() or evaluation["success"] > best.evaluation["success"]:
        copy_policy(policy, target)


def read_rounds(folder: Path) -> list[RoundResult]:
    """The finished rounds in `folder` (`train/`), in order."""
    return [RoundResult(**read_json(file)) for file in sorted(folder.glob("rounds/*.json"))]


def find_best(folder: Path) -> RoundResult | None:
    """The most successful of the finished rounds in `folder`, the earlier of equals."""
    return max(
        (result for result in read_rounds(folder) if "success" in result.evaluation),
        key=lambda result: result.evaluation["success"],
        default=None,
    )


def final_policy(pipeline: Pipeline, folder: Path, *, last: Path) -> Path:
    """The policy that `train.final_policy` chooses, in `folder` (`train/`) or `last`."""
    best = folder / BEST
    return best if pipeline.train.final_policy == "best" and best.exists() else last


def drop_steps_after(path: Path, step: int) -> None:
    """Remove the lines of later steps from a metrics file, and an incomplete last line."""
    if not path.exists():
        return
    lines = []
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            if json.loads(line)["step"] <= step:
                lines.append(line + "\n")
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
