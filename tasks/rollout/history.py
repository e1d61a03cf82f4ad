"""What training remembers of its episodes: the evidence of adaptive horizons, and each item's last success.

It is a function of the episodes of the steps so far, and part of each checkpoint. So a resumed run raises the
horizon at the same steps and draws the same items.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import chain
from pathlib import Path

from agents.horizon import HorizonEvidence
from agents.types import StopReason, Trajectory
from tasks.config.data import DataSettings
from tasks.data.trajectories import is_usable

_FILE = "history.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The history of the first steps of a training run."""

    evidence: Mapping[str, Sequence[HorizonEvidence]] = field(default_factory=dict)
    """The evidence by part of the data, for each step in order."""
    success: Mapping[str, float] = field(default_factory=dict)
    """The success by item: the share of its episodes that were solved when it was last sampled."""

    def extend(
        self,
        groups: Sequence[Sequence[Trajectory]],
        *,
        others: Sequence[Sequence[Trajectory]] = (),
        max_turns: Mapping[str, int],
        data: DataSettings,
    ) -> "History":
        """The history with one more step.

        `groups`: as first sampled; `others`: those that have replaced some of them, which count for the items
        but not for the horizon, because they are a selection; `max_turns`: the step's horizon by part.
        """
        by_part: dict[str, list[Trajectory]] = {name: [] for name in max_turns}
        for group in groups:
            for trajectory in filter(is_usable, group):
                part = data.part_of(trajectory.item)
                assert part is not None
                by_part[part].append(trajectory)
        evidence = {
            name: (*self.evidence.get(name, ()), _judge(by_part[name], max_turns=turns))
            for name, turns in max_turns.items()
        }
        by_item: dict[str, list[bool]] = {}  # a step of more items than there are has some several times
        for trajectory in filter(is_usable, chain(*groups, *others)):
            by_item.setdefault(trajectory.item.item_id, []).append(trajectory.success)
        success = {item: sum(solved) / len(solved) for item, solved in by_item.items()}
        return History(evidence=evidence, success={**self.success, **success})

    def write(self, folder: Path) -> None:
        """Write it to the folder of a checkpoint."""
        evidence = {name: [astuple(step) for step in steps] for name, steps in self.evidence.items()}
        (folder / _FILE).write_text(json.dumps({"evidence": evidence, "success": dict(self.success)}))

    @classmethod
    def read(cls, folder: Path) -> "History":
        """What `write` wrote to a checkpoint."""
        values = json.loads((folder / _FILE).read_text())
        evidence = {
            name: tuple(
                HorizonEvidence(max_turns=turns, episodes=episodes, capped=num_capped, successes=successes)
                for turns, episodes, num_capped, successes in steps
            )
            for name, steps in values["evidence"].items()
        }
        return cls(evidence=evidence, success=values["success"])


def _judge(trajectories: Sequence[Trajectory], *, max_turns: int) -> HorizonEvidence:
    ended_trajectories = [t for t in trajectories if t.stop_reason is not StopReason.MAX_TURNS]
    return HorizonEvidence(
        max_turns=max_turns,
        episodes=len(trajectories),
        capped=len(trajectories) - len(ended_trajectories),
        successes=sum(t.success for t in ended_trajectories),
    )
