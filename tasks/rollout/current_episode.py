"""The episode that a terminal shows while a policy is trained or evaluated: its last turn, in a file.

The process that plays the episodes writes it, and the one that has the terminal reads it. It follows one
sample until it ends, then another.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from agents.rollout.group import Callbacks
from agents.types import Trajectory, Turn
from envs.errors import to_line
from envs.types import Item, Message
from tasks.config.pipelines import Pipeline
from tasks.rollout.spec import RolloutSpec, get_max_turns

EPISODE_FILE = "episode.json"
"""The file in the workspace, while a terminal shows the run."""
EVERY_S = 0.5
OnTrajectory = Callable[[Trajectory], None]
"""Called with each episode that has ended."""
_CHARS = 300
"""The most characters of each text: more than a line has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """An episode after its last turn."""

    item: str
    """The id of the item."""
    sample: int
    turn: int
    max_turns: int
    task: str
    """The last line of the last message before the first turn."""
    action: str
    """What the policy said, if that is not in the agent's format (`is_malformed`)."""
    is_malformed: bool
    observation: str


class EpisodeWriter:
    """Writes the episode at most every `EVERY_S`."""

    def __init__(self, path: Path, pipeline: Pipeline) -> None:
        self._path = path
        self._pipeline = pipeline
        self._tasks: dict[tuple[str, int], str] = {}
        self._followed: tuple[str, int] | None = None
        self._due = 0.0

    def callbacks(self, spec: RolloutSpec, *, on_trajectory: OnTrajectory = lambda _: None) -> Callbacks:
        """The callbacks of a rollout of `spec`, which begins; `on_trajectory` is called as well."""
        self._followed = None  # what it followed may have been cancelled
        return Callbacks(
            on_opening=self._open,
            on_turn=partial(self._write, spec),
            on_trajectory=partial(self._close, on_trajectory),
        )

    def _open(self, item: Item, sample_index: int, messages: Sequence[Message]) -> None:
        lines = messages[-1].content.split("\n") if messages else []
        self._tasks[item.item_id, sample_index] = next(filter(str.strip, reversed(lines)), "")

    def _close(self, on_trajectory: OnTrajectory, trajectory: Trajectory) -> None:
        key = trajectory.item.item_id, trajectory.sample_index
        self._tasks.pop(key, None)
        if self._followed == key:
            self._followed = None
        on_trajectory(trajectory)

    def _write(self, spec: RolloutSpec, item: Item, sample_index: int, turns: Sequence[Turn]) -> None:
        key = item.item_id, sample_index
        if self._followed not in (None, key) or time.monotonic() < self._due:
            return
        self._followed, self._due = key, time.monotonic() + EVERY_S
        turn = turns[-1]
        episode = EpisodeView(
            item=item.item_id,
            sample=sample_index,
            turn=len(turns),
            max_turns=get_max_turns(item, self._pipeline, spec),
            task=to_line(self._tasks.get(key, ""), limit=_CHARS),
            action=to_line(turn.text if turn.is_malformed else turn.action, limit=_CHARS),
            is_malformed=turn.is_malformed,
            observation=to_line(turn.observation, limit=_CHARS),
        )
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:  # replaced, so that no reader sees half of it; not synced, since nobody needs it after a crash
            temporary.write_text(json.dumps(asdict(episode)))
            temporary.replace(self._path)
        except OSError:  # a full disk: what needs it, says so
            temporary.unlink(missing_ok=True)


class EpisodeReader:
    """Reads the file when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mtime_ns = 0
        self._episode: EpisodeView | None = None

    def read(self) -> EpisodeView | None:
        """The episode that was last written; None if there is none."""
        try:
            mtime_ns = self._path.stat().st_mtime_ns
            if mtime_ns != self._mtime_ns:
                self._episode = EpisodeView(**json.loads(self._path.read_text()))
                self._mtime_ns = mtime_ns
        except (OSError, ValueError, TypeError):  # there is none, or another version has written it
            self._episode = None
        return self._episode
