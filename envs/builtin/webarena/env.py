"""A task of WebArena's form, played in a browser: what is asked and seen, what is done, how it ends.

An observation has the form of WebArena's prompt: the page (`envs/browser/tree.py`), its address under its
public name, the objective, and what was done last. An instance is a context in a Chromium that it shares with
others (`envs/browser/seats.py`). Where the sites are and in what state, a `Venue` says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from envs.browser.actions import Goto, NoAction, Stop, described, read_action
from envs.browser.seats import Seat
from envs.browser.session import Session
from envs.builtin.webarena.evaluators import Helper, Judge, score
from envs.builtin.webarena.judge import JUDGE_NAMED
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Task
from envs.errors import ConfigError, EnvCrashed
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from playwright.async_api import StorageState


@dataclass(frozen=True, slots=True)
class Scene:
    """Sites as a task finds them."""

    sites: Sites
    storage_state: "StorageState | None"
    """Cookies and storage of whoever is logged in."""


class Venue(Protocol):
    """Where one instance's tasks are played: it has the sites ready, one task after the other."""

    @property
    def is_alive(self) -> bool:
        """False once its sites are known to have died."""
        ...

    async def begin(self, task: Task) -> Scene:
        """Have the sites as `task` is to find them."""
        ...

    async def close(self) -> None:
        """Free all resources. Idempotent."""
        ...


class WebEnv:
    """One live task."""

    def __init__(
        self,
        *,
        tasks: Callable[[], Mapping[int, Task]],
        venue: Venue,
        helpers: Mapping[str, Helper],
        judge: Callable[[], Judge | None],
    ) -> None:
        """`tasks`, `judge`: asked at each reset."""
        self._tasks = tasks
        self._venue = venue
        self._helpers = helpers
        self._judge_of = judge
        self._judge: Judge | None = None
        self._seat: Seat | None = None
        self._session: Session | None = None
        self._task: Task | None = None
        self._scene: Scene | None = None
        self._page = ""
        self._did = "None"

    @property
    def is_alive(self) -> bool:
        """See `envs/base.py`, `HasProcess`."""
        seated = self._seat is None or self._seat.is_alive
        return seated and (self._session is None or self._session.is_alive) and self._venue.is_alive

    async def prepare(self) -> None:
        """See `envs/base.py`, `HasProcess`."""
        if self._seat is None:
            self._seat = await Seat.take()

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the first page and the objective."""
        tasks = self._tasks()
        if item.index not in tasks:
            raise ConfigError(f"there is no {item.item_id!r}; {item.env} has {len(tasks)} tasks")
        task = tasks[item.index]
        self._judge = self._judge_of()
        if task.eval.needs_judge and self._judge is None:
            raise ConfigError(f"{item.item_id} needs a judge of its answer; {JUDGE_NAMED.find_remedy()}")
        await self._leave()
        await self.prepare()
        assert self._seat is not None
        scene = await self._venue.begin(task)
        self._session = await Session.open(
            self._seat.chromium,
            origins=list(scene.sites.urls.values()),
            urls=[scene.sites.filled(url) for url in task.start_urls],
            storage_state=scene.storage_state,
        )
        self._task, self._scene, self._did = task, scene, "None"
        return await self._seen()

    async def step(self, action: str) -> StepResult:
        """Carry out one action; `stop` ends the episode and is judged."""
        session, scene = self._session, self._scene
        if session is None or scene is None:
            raise RuntimeError("step before reset, or after the end")
        try:
            meant = read_action(action)
            if isinstance(meant, Stop):
                return await self._judged(meant.answer)
            element = session.tree.elements.get(getattr(meant, "element", -1))
            did = described(meant, element.said if element else None)
            if isinstance(meant, Goto):
                meant = Goto(scene.sites.meant(meant.url))
            await session.act(meant)
        except NoAction as error:
            return StepResult(str(error))
        self._did = did
        return StepResult(await self._seen())

    async def inspect(self, what: str) -> Any:
        """See `envs/base.py`, `Inspectable`: `page`, as last seen; `sites` and `intent` of the task."""
        if self._task is None:
            raise RuntimeError("asked before reset")
        known = {"page": self._page, "sites": list(self._task.sites), "intent": self._task.intent}
        if what not in known:
            raise ConfigError(f"a web task knows no {what!r}; it knows {', '.join(known)}")
        return known[what]

    async def close(self) -> None:
        """End the episode, give the seat back and the sites."""
        await self._leave()
        seat, self._seat = self._seat, None
        if seat is not None:
            await seat.leave()
        await self._venue.close()

    async def _leave(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _seen(self) -> str:
        assert self._session is not None
        assert self._scene is not None
        assert self._task is not None
        self._page = await self._session.observe()
        url = self._scene.sites.shown(self._session.url)
        return (
            f"OBSERVATION:\n{self._page}\nURL: {url}\nOBJECTIVE: {self._task.intent}\n"
            f"PREVIOUS ACTION: {self._did}"
        )

    async def _judged(self, answer: str) -> StepResult:
        assert self._session is not None
        assert self._scene is not None
        assert self._task is not None
        try:
            reward = await score(
                self._task,
                answer=answer,
                pages=self._session,
                sites=self._scene.sites,
                judge=self._judge,
                helpers=self._helpers,
            )
        except EnvCrashed as error:
            raise EnvCrashed(f"task {self._task.task_id} cannot be judged: {error}") from error
        await self._leave()
        told = "The task is done." if reward else "The task has ended; it is not done."
        return StepResult(told, reward, terminated=True, success=reward == 1.0)
