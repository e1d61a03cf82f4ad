"""Rounds of training, as a run's folder records them.

Owns the format of what a round leaves in `train/`: its result, `rounds/NN.json`, the episodes of its quick
evaluation, `trajectories/round_NN.jsonl`, the best policy so far and its round. Which policy training starts
from and which one it hands on is decided here, too. The online and the offline train stage write these files
(`tasks/stages/rounds.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from envs.files import read_as
from tasks.config.pipelines import Pipeline

BEST = "best"
"""The folder in `train/` with the policy of the round with the most successful quick evaluation, in Hugging
Face format."""
BEST_ROUND = "best.json"
"""The file in `train/` with the `BestRound`."""


class BestRound(TypedDict):
    """The round whose policy is in `BEST`."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRound:
    """A round that is trained and not evaluated yet."""

    index: int
    """The number of the round, from 0."""
    first_step: int
    last_step: int
    seconds: float
    """Wall time, including start-up; of the last attempt if one was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult(TrainedRound):
    """One finished round, as in `train/rounds/NN.json`; `seconds` include the evaluation."""

    evaluation: dict[str, float]
    """`summarise` of the quick evaluation: one sample of each test item, at `evaluate.temperature`."""
    temperature: float
    """That temperature."""


def start_policy(pipeline: Pipeline, workspace: Path) -> Path | str:
    """The policy that training starts from: the folder of the warm-up, or else `model`."""
    return pipeline.model if pipeline.warmup is None else workspace / "warmup"


def explain_unchanged(steps: Sequence[Mapping[str, float]]) -> str | None:
    """Why the training of `steps`, lines of `train/metrics.jsonl`, did not change the policy; None if it did.

    Offline algorithms, which do not record what they trained on, always change it.
    """
    if not steps or any(step.get("trained", 1) for step in steps):
        return None
    is_informative = any(step.get("informative_groups") for step in steps)
    cause = "no episode was trained on" if is_informative else "no group was informative"
    return f"{cause}: the policy did not change"


def round_file(folder: Path, index: int) -> Path:
    """The file of a round's result, in `folder` (`train/`)."""
    return folder / "rounds" / f"{index:02d}.json"


def episode_file(folder: Path, index: int) -> Path:
    """The file of the episodes of a round's quick evaluation, in `folder` (`train/`).

    Its number is the one by which users know the round, which counts from 1.
    """
    return folder / "trajectories" / f"round_{index + 1:02d}.jsonl"


def list_round_files(folder: Path) -> list[Path]:
    """The files of all rounds' results in `folder` (`train/`), by name."""
    return sorted(folder.glob("rounds/*.json"))


def read_round(folder: Path, index: int) -> RoundResult | None:
    """The result of a round in `folder` (`train/`); None if it has not ended. Raises `DamagedFile`."""
    return read_as(RoundResult, round_file(folder, index))


def read_rounds(folder: Path) -> list[RoundResult]:
    """The finished rounds in `folder` (`train/`), in order. Raises `DamagedFile`."""
    rounds = [read_as(RoundResult, file) for file in list_round_files(folder)]
    return sorted(filter(None, rounds), key=lambda done: done.index)


def find_best(folder: Path) -> RoundResult | None:
    """The round whose policy is in `BEST` in `folder` (`train/`), if it has ended: the most successful one,
    unless training went back to before a better one. Raises `DamagedFile`."""
    best_round = read_as(BestRound, folder / BEST_ROUND)
    return None if best_round is None else read_round(folder, best_round["index"])


def final_policy(pipeline: Pipeline, folder: Path, *, last: Path) -> Path:
    """The policy that `train.final_policy` chooses, in `folder` (`train/`) or `last`."""
    return last if _final_round(folder, pipeline.train.final_policy) is None else folder / BEST


def final_step(folder: Path, choice: object, *, last: int) -> int:
    """The training steps of the policy that `train.final_policy`, which is `choice`, chooses in `folder`
    (`train/`); `last`: those of the last policy. Raises `DamagedFile`."""
    best = _final_round(folder, choice)
    return last if best is None else best.last_step


def _final_round(folder: Path, choice: object) -> RoundResult | None:
    """None for the last one."""
    return find_best(folder) if choice == BEST else None
