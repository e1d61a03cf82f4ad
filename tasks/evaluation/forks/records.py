"""Writes the trajectories of forks to their own file in the run's folder, and computes a turn's value."""

import json
from collections.abc import Sequence

from agents.settings import Settings
from agents.types import Trajectory
from envs.files import append_line
from tasks.data.trajectories import trajectory_to_dict
from tasks.evaluation.record import Rate
from tasks.runs.folders import RunFolder

PERSON = "person"
"""The value in a fork's labels, in place of a policy."""
MAX_OBSERVATION = 100_000
"""Characters of an observation that is put in place of a recorded one."""


class TurnValue(Settings):
    """The value of a turn: the mean outcome of the episodes that went on from it."""

    samples: int
    """The samples that count."""
    failed: int
    """The samples that do not count."""
    success: Rate | None
    """None without samples."""
    reward: Rate | None


def value_of(trajectories: Sequence[Trajectory]) -> TurnValue:
    """The value of the turn from which `trajectories` went on, with 95% intervals over them: given the turn,
    they are independent."""
    valid = [t for t in trajectories if not t.has_failed]
    return make_value(
        [t.success for t in valid], [t.reward for t in valid], failed=len(trajectories) - len(valid)
    )


def make_value(successes: Sequence[bool], rewards: Sequence[float], *, failed: int) -> TurnValue:
    """The `value_of` outcomes."""
    return TurnValue(
        samples=len(successes),
        failed=failed,
        success=Rate.estimate(successes) if successes else None,
        reward=Rate.estimate(rewards) if rewards else None,
    )


def append_fork(run: RunFolder, trajectory: Trajectory) -> None:
    """Append it to the run's file of forks. Raises `ConfigError` if that cannot be written."""
    append_line(run.forks, json.dumps(trajectory_to_dict(trajectory)))
