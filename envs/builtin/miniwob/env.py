"""A task of MiniWoB++ in the same browser as WebArena's tasks.

Observations have WebArena's form, without an address, since each task is one page. The elements around a task
that are for people (the time left, the last reward, the objective) are hidden, and there is no time limit.
"""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from envs.builtin.browser.actions import (
    ElementAction,
    InvalidAction,
    PageAction,
    describe_action,
    read_action,
)
from envs.builtin.browser.env import BrowserEnv
from envs.builtin.browser.session import BrowserSession, StaticFolder
from envs.builtin.miniwob.tasks import SEEDS, TASKS
from envs.errors import EnvCrashed, MissingDependency, check_index
from envs.requirements.detection import pip_install
from envs.types import Item, StepResult

ORIGIN = "http://miniwob.test"
ACTIONS = "click [id], type [id] [text] [0|1], hover [id], press [keys], scroll [down|up], stop"

_FOR_PEOPLE = (
    "#reward-display, #click-canvas, #sync-task-cover, #query { display: none !important }"
    "* { transition: none !important; animation: none !important }"
)
_START = """(async () => {
  const style = document.createElement("style");
  style.textContent = %r;
  document.head.append(style);
  if (window.jQuery) jQuery.fx.off = true;
  Math.seedrandom(%d);
  core.EPISODE_MAX_TIME = 2147483647;
  core.startEpisodeReal();
  while (!WOB_TASK_READY) await new Promise(done => setTimeout(done, 10));
})()"""
_OBJECTIVE = "(() => { const said = core.getUtterance(); return said.utterance || said })()"
_END = "[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


class MiniWobEnv(BrowserEnv):
    """One live task."""

    def __init__(self) -> None:
        super().__init__()
        self._objective = ""
        self._previous_action = "None"

    async def reset(self, item: Item) -> str:
        """Start `item`; returns its page and the objective."""
        name, seed = find_task(item.index)
        await self._end_session()
        session = self._session = await BrowserSession.open(
            await self._lease_browser(),
            origins=(),
            urls=[f"{ORIGIN}/miniwob/{name}.html"],
            static_folder=StaticFolder(ORIGIN, pages()),
        )
        try:
            await session.evaluate(_START % (_FOR_PEOPLE, seed))
            self._objective = str(await session.evaluate(_OBJECTIVE))
        except ValueError as error:
            raise EnvCrashed(f"{item.item_id} ({name}) does not start: {error}") from error
        await session.settle()
        self._previous_action = "None"
        return await self._observe(session)

    async def step(self, action: str) -> StepResult:
        """Carry out one action; the page decides when the task ends, and its reward."""
        session = self._session
        if session is None:
            raise RuntimeError("step before reset, or after the end")
        try:
            parsed_action = read_action(action)
        except InvalidAction as error:
            return StepResult(str(error))
        match parsed_action:
            case PageAction("stop"):
                return await self._end(0.0)
            case ElementAction() | PageAction("press" | "scroll"):
                element = session.tree.elements.get(getattr(parsed_action, "element", -1))
                self._previous_action = describe_action(parsed_action, element.text if element else None)
                await session.act(parsed_action)
            case _:
                return StepResult(f"There is one page only. Actions: {ACTIONS}.")
        try:
            done, reward = await session.evaluate(_END)
        except ValueError:  # a link left the page
            return await self._end(0.0)
        return await self._end(float(reward)) if done else StepResult(await self._observe(session))

    async def _end(self, reward: float) -> StepResult:
        await self._end_session()
        message = "The task is done." if reward > 0 else "The task has ended; it is not done."
        return StepResult(message, reward, terminated=True, success=reward > 0)

    async def _observe(self, session: BrowserSession) -> str:
        page = (await session.observe()).partition("\n\n")[2]
        return f"OBSERVATION:\n{page}\nOBJECTIVE: {self._objective}\nPREVIOUS ACTION: {self._previous_action}"


def find_task(index: int) -> tuple[str, int]:
    """Item `index` → (task, seed). Raises `ConfigError` for a number without a seed."""
    check_index("miniwob", index, count=len(TASKS) * SEEDS)
    seed, number = divmod(index, len(TASKS))
    return TASKS[number], seed


def pages() -> Path:
    """The folder of the package's pages; raises `MissingDependency` without it."""
    try:
        return Path(str(distribution("miniwob").locate_file("miniwob/html")))
    except PackageNotFoundError:
        raise MissingDependency(f"environment 'miniwob' needs miniwob; {pip_install('miniwob')}") from None
