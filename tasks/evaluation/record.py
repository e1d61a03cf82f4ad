"""The record of an evaluation: what was evaluated and how, every item's outcomes, and the rates.

`record.json` in the folder of the evaluation. It holds all that decides the outcomes, so that the evaluation
can be repeated and its results can be compared with others item by item (`tasks/reporting/comparison/`).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import ValidationError

from agents.settings import Settings, describe_invalid
from envs.errors import ConfigError, describe
from envs.files import write_atomically
from tasks.evaluation.intervals import mean_interval
from tasks.runs.folders import RECORD


def format_number(value: float, *, sign: str = "") -> str:
    """`0.125`, `12.5` or `1235`: three digits, and more of a number that has more before its point.

    `sign`: `+` for positive numbers with their sign.
    """
    return f"{value:{sign}.0f}" if 999.5 <= abs(value) < 1e15 else f"{value:{sign}.3g}"


class Rate(Settings):
    """A mean over items with its 95% interval (`tasks/evaluation/intervals.py`)."""

    mean: float
    low: float
    high: float
    items: int
    """Items that have a value: with failed episodes, an item may have fewer outcomes than k."""

    @classmethod
    def estimate(
        cls,
        values: Sequence[float],
        *,
        interval: Callable[[Sequence[float]], tuple[float, float]] = mean_interval,
    ) -> "Rate":
        """Estimate the mean of `values`, one for each item and at least one."""
        low, high = interval(values)
        return cls(mean=fmean(values), low=low, high=high, items=len(values))

    def format(self, *, is_share: bool) -> str:
        """The mean with its interval: `62.5% [35.4, 84.8]` for a share, `3.5 [2.11, 4.9]` for another
        number."""
        if is_share:
            return f"{self.mean:.1%} [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        mean, low, high = map(format_number, (self.mean, self.low, self.high))
        return f"{mean} [{low}, {high}]"


class ItemOutcome(Settings):
    """The samples of one item, without those that failed."""

    item: str
    env: str
    metadata: dict[str, object]
    max_turns: int
    """The horizon of its episodes."""
    successes: list[bool]
    rewards: list[float]
    turns: list[int]
    failures: dict[str, int]
    """Failed episodes by class of their error: no outcomes, and never zeros."""


class GroupResult(Settings):
    """The results of some of the items."""

    items: int
    episodes: int
    """The episodes that count."""
    failed: int
    """The episodes that do not count."""
    rates: dict[str, Rate]
    """`avg_at_<samples>` (the mean success), `pass_at_<k>`, `pass_hat_<k>`, `reward` and `turns`."""


class Sampling(Settings):
    """How episodes were sampled: all but the policy, the items with their horizons, and the agent."""

    samples: int
    temperature: float
    top_p: float
    top_k: int
    max_tokens_per_turn: int
    context_length: int


class EvaluationRecord(Settings):
    """One evaluation."""

    policy: dict[str, object]
    """`name`, and `md5` of its folder, or the `endpoint`."""
    split: str
    split_seed: int
    seed: int | None
    """The seed of sampling on this machine; None for an endpoint, which takes none."""
    sampling: Sampling
    pipeline: str | None
    """The one whose settings were taken; None for the defaults."""
    settings: dict[str, Any]
    """The blocks `data`, `agent`, `servers` and `rollout`, complete."""
    items_md5: str
    """The MD5 of the items with their contents, in order."""
    provenance: dict[str, str]
    """Git commit, and versions, those of the environments' packages among them."""
    seconds: float
    outcomes: list[ItemOutcome]
    """The outcomes in the order of the items, which decides the random numbers."""
    results: dict[str, dict[str, GroupResult]]
    """Key → value → results: `all`, `env`, and each metadata key that groups the items."""

    def write(self, folder: Path) -> Path:
        """Write it to `folder`; returns the file."""
        file = folder / RECORD
        write_atomically(file, self.model_dump_json(indent=1) + "\n")
        return file

    @property
    def overall(self) -> GroupResult:
        """The results of all items."""
        return self.results["all"]["all"]


def is_record(path: Path) -> bool:
    """Whether `path` is a record, or a folder with one."""
    return (path / RECORD).is_file() or (path.is_file() and path.suffix == ".json")


def read_record(path: Path) -> EvaluationRecord:
    """The record `path`, or that in the folder `path`. Raises `ConfigError`."""
    file = path / RECORD if path.is_dir() else path
    try:
        return EvaluationRecord.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({describe(error)}); give an evaluation's folder") from None
    except ValidationError as error:
        reason = describe_invalid(error, EvaluationRecord)
        raise ConfigError(f"{file} is no record of `wingspan evaluate`: {reason}") from None
