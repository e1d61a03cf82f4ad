"""What a teacher knows of an item and the policy does not: the actions that solve it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from agents.types import Trajectory
from envs.errors import ConfigError
from envs.registry import EnvSpec, get_env
from envs.types import Item

HEADING = "These actions solve the problem:"


class FindHints(Protocol):
    """Where hints come from."""

    def __call__(self, trajectories: Mapping[str, Trajectory]) -> Mapping[str, str]:
        """The hints for a step's `trajectories` by key, without those that have none. The key of a trajectory
        is its group's, `_` and its sample index."""


class ExpertHints:
    """The actions by which the environment's expert solves the item."""

    def __init__(self) -> None:
        self._hints: dict[str, str | None] = {}

    def __call__(self, trajectories: Mapping[str, Trajectory]) -> Mapping[str, str]:
        hints = {key: self._find(trajectory.item) for key, trajectory in trajectories.items()}
        return {key: hint for key, hint in hints.items() if hint is not None}

    def _find(self, item: Item) -> str | None:
        """Remembered: an expert may need seconds."""
        if item.item_id not in self._hints:
            actions = plan_of(get_env(item.env), item)
            self._hints[item.item_id] = write_hint(actions) if actions else None
        return self._hints[item.item_id]


def sibling_hints(trajectories: Mapping[str, Trajectory]) -> Mapping[str, str]:
    """The hint for each episode: the actions of the other episode of its group that succeeded in the fewest
    turns, of several the one with the lowest sample index."""
    successes = defaultdict[str, list[tuple[int, int, str]]](list)
    for key, trajectory in trajectories.items():
        if trajectory.success and not trajectory.has_failed:
            rank = (len(trajectory.turns), trajectory.sample_index, key)
            successes[_group_of(key)].append(rank)
    hints = {}
    for key in trajectories:
        others = [rank for rank in successes[_group_of(key)] if rank[2] != key]
        if others:
            best = trajectories[min(others)[2]]
            hints[key] = write_hint([turn.action for turn in best.turns if turn.action])
    return hints


def plan_of(spec: EnvSpec, item: Item) -> Sequence[str]:
    """The expert's actions; empty if it knows no solution, or decides by what it observes."""
    with spec.explain_missing():
        actions = [step.action for step in spec.solve(item)]
    plan = [action for action in actions if isinstance(action, str)]
    return plan if len(plan) == len(actions) else ()


def write_hint(actions: Sequence[str]) -> str:
    """The text that the teacher reads."""
    return "\n".join([HEADING, *(f"{number}. {action}" for number, action in enumerate(actions, start=1))])


def check_experts(items: Sequence[Item], *, where: str) -> None:
    """Raise `ConfigError` for an environment whose expert has no plan for the first of its `items`."""
    first = {item.env: item for item in reversed(items)}
    for env, item in first.items():
        spec = get_env(env)
        if not spec.has_expert:
            raise ConfigError(f"{where}: {env} has no expert; use hint: sibling")
        if not plan_of(spec, item):
            raise ConfigError(
                f"{where}: the expert of {env} has no plan for {item.item_id} before it sees its first "
                "observation; use hint: sibling"
            )


def _group_of(key: str) -> str:
    return key.rpartition("_")[0]
