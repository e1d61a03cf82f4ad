"""Runs what the viewer's pages start: forks of policies, and episodes in which a person acts. Each runs in a
thread with its own event loop, so that no page waits for a model or an environment; pages ask for its state
by its id."""

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from agents.rollout.group import Callbacks
from agents.types import Trajectory, Turn
from envs.errors import ConfigError, WingspanError, describe, to_line
from envs.network.server import RequestRejected
from envs.types import Image, Item, Message
from tasks.viewer.reading import read_turn

MAX_LIVE = 8
"""Episodes and forks at a time."""
MAX_KEPT = 32
"""The most episodes kept of those that have ended; their trajectories are in files."""
IDLE_S = 1800.0
"""The time without an action after which a person counts as gone."""

Play = Callable[["Live"], Awaitable[Sequence[Trajectory]]]
"""Runs in the thread; returns what ended, nothing if a person left."""


@dataclass(frozen=True, slots=True)
class ForkPlace:
    """A turn of a trajectory, by its names in the viewer."""

    run: str
    address: str
    turn: int


class Live:
    """One fork, or one person's episode."""

    def __init__(self, play: Play, *, total: int, is_person: bool, place: ForkPlace | None = None) -> None:
        """`total`: the samples to run; `is_person`: whether a person acts; `place`: where a fork begins."""
        self.id = secrets.token_urlsafe(12)
        self._play = play
        self._total = total
        self.is_person = is_person
        self.place = place
        self._changed = threading.Condition()
        self._version = 0
        self._state = "starting"
        self._error = ""
        self._opening: Message | None = None
        self._turns: Sequence[Turn] = ()
        self._ended: list[Trajectory] = []
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._task: asyncio.Task[object] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="viewer-live", daemon=True)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._state in ("starting", "running", "waiting")

    @property
    def callbacks(self) -> Callbacks:
        """The callbacks that keep the state of a person's episode."""
        return Callbacks(on_opening=self._open, on_turn=self._take_turn)

    def start(self) -> None:
        """Begin, in the thread."""
        self._thread.start()

    async def read_line(self) -> str | None:
        """What the person does next; None if they have left."""
        self._set(_state="waiting")
        try:
            async with asyncio.timeout(IDLE_S):
                line = await self._lines.get()
        except TimeoutError:
            line = None
        self._set(_state="running")
        return line

    def act(self, line: str) -> None:
        """Pass on the person's `line`. Raises `ConfigError` if it is not their turn."""
        with self._changed:
            if self._state != "waiting":
                raise ConfigError("the episode waits for no action: it has ended, or acts on the last one")
            self._state = "running"
            self._version += 1
        self._call(lambda: self._lines.put_nowait(line))

    def stop(self) -> None:
        """End it; samples that have ended are kept."""
        with self._changed:
            self._is_stopped = True
            is_running = self.is_running
        if is_running and self._task is not None:
            self._call(self._task.cancel)

    def end(self, trajectory: Trajectory) -> None:
        """Keep a sample that has ended."""
        self._set(_ended=[*self._ended, trajectory])

    def snapshot(self, *, after: int, wait_s: float) -> dict[str, object]:
        """The state for a page; waits until it is newer than version `after`, `wait_s` at most."""
        with self._changed:
            if self._version <= after and self.is_running:
                self._changed.wait(wait_s)
            return {
                "id": self.id,
                "version": self._version,
                "state": self._state,
                "is_person": self.is_person,
                "error": self._error,
                "opening": None if self._opening is None else self._opening.content,
                "opening_images": [] if self._opening is None else _media_types(self._opening.images),
                "turns": [_to_json(turn) for turn in self._turns],
                "done": len(self._ended),
                "total": self._total,
                "ended": [_outcome(trajectory) for trajectory in self._ended],
            }

    def find_image(self, *, turn: int, number: int) -> Image | None:
        """Image `number` of turn `turn`, -1 the opening."""
        with self._changed:
            message, turns = self._opening, self._turns
        images = (message.images if message else ()) if turn < 0 else ()
        if 0 <= turn < len(turns):
            images = turns[turn].images
        return images[number] if 0 <= number < len(images) else None

    def _run(self) -> None:
        with asyncio.Runner() as runner:  # ends what is left over: tasks, and the threads of `to_thread`
            try:
                runner.run(self._main())
            except asyncio.CancelledError:
                self._set(_state="left")
            except WingspanError as error:
                self._set(_state="failed", _error=to_line(error))
            except Exception as error:  # of an environment or a model: the page shows it
                self._set(_state="failed", _error=describe(error))

    async def _main(self) -> None:
        self._task = asyncio.current_task()
        if self._is_stopped:  # before there was a task to cancel
            raise asyncio.CancelledError
        self._set(_state="running")
        trajectory = await self._play(self)
        if self.is_person:
            self._set(_ended=list(trajectory))
        self._set(_state="ended" if trajectory else "left")

    def _call(self, function: Callable[[], object]) -> None:
        """Call it in the thread, unless that has ended meanwhile."""
        assert self._task is not None, "it has begun"
        with suppress(RuntimeError):  # the loop is closed
            self._task.get_loop().call_soon_threadsafe(function)

    def _open(self, item: Item, sample_index: int, messages: Sequence[Message]) -> None:
        self._set(_opening=messages[-1])

    def _take_turn(self, item: Item, sample_index: int, turns: Sequence[Turn]) -> None:
        self._set(_turns=tuple(turns))

    def _set(self, **values: object) -> None:
        with self._changed:
            for name, value in values.items():
                setattr(self, name, value)
            self._version += 1
            self._changed.notify_all()


class LiveRuns:
    """All of a viewer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, Live] = {}

    def start(self, live: Live) -> Live:
        """Raises `RequestRejected`: policies take turns, because each would take the others' cores."""
        with self._lock:
            running_episodes = [run for run in self._runs.values() if run.is_running]
            if len(running_episodes) >= MAX_LIVE:
                raise RequestRejected(
                    409, f"{len(running_episodes)} episodes are under way; leave one of them first"
                )
            if not live.is_person and any(not run.is_person for run in running_episodes):
                raise RequestRejected(409, "another fork is being sampled; wait for its end, or stop it")
            self._runs[live.id] = live
            ended = [name for name, run in self._runs.items() if not run.is_running]
            for name in ended[: max(0, len(ended) - MAX_KEPT)]:
                del self._runs[name]
            live.start()
            return live

    def find_sampling(self, *, run: str, address: str) -> dict[str, object] | None:
        """The fork of that trajectory which a policy is sampling now: its `id` and `turn`."""
        with self._lock:
            for live in self._runs.values():
                if live.place is None or live.is_person or not live.is_running:
                    continue
                if (live.place.run, live.place.address) == (run, address):
                    return {"id": live.id, "turn": live.place.turn}
        return None

    def find(self, name: str) -> Live:
        """Raises `RequestRejected`."""
        with self._lock:
            if name not in self._runs:
                raise RequestRejected(404, "there is no such episode, or no longer; start another")
            return self._runs[name]


def _to_json(turn: Turn) -> dict[str, object]:
    values = asdict(replace(turn, images=(), prompt_images=(), prompt_ids=None))
    return read_turn(values, decode=lambda _: None) | {"images": _media_types(turn.images)}


def _media_types(images: Sequence[Image]) -> list[str]:
    return [image.media_type for image in images]


def _outcome(trajectory: Trajectory) -> dict[str, object]:
    return {
        "sample": trajectory.sample_index,
        "success": trajectory.success,
        "reward": trajectory.reward,
        "turns": len(trajectory.turns),
        "stop": trajectory.stop_reason,
        "error": trajectory.error if trajectory.has_failed else None,
    }
