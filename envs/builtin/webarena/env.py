"""A task of WebArena's form, run in a browser: its observations, its actions, its end.

An observation has the form of WebArena's prompt: the page (`envs/builtin/browser/accessibility_tree.py`), its
address under its public name, the objective, and the last action. An instance is a context in a Chromium that
it shares with others (`envs/builtin/browser/leases.py`). A `SiteProvider` knows where the sites are and in
what state.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from envs.builtin.browser.actions import InvalidAction, PageAction, describe_action, read_action
from envs.builtin.browser.env import BrowserEnv
from envs.builtin.browser.session import BrowserSession
from envs.builtin.webarena.evaluators import Helper, Judge, score
from envs.builtin.webarena.judge import JUDGE_NAMED
from envs.builtin.webarena.sites import Sites
from envs.builtin.webarena.tasks import Task
from envs.errors import ConfigError, EnvCrashed
from envs.types import Item, StepResult

if TYPE_CHECKING:
    from playwright.async_api import StorageState

INSTRUCTIONS = """\
You use a web browser to reach an objective. Every round you are shown the page as its accessibility tree, a \
line for each element that is in sight, with its number in brackets; the titles of the open tabs; the \
address; the objective; and what you did last. You take one action:
click [id]: click on the element with this number
type [id] [text] [0|1]: write into a field, or choose from a list; 1, the default, presses Enter afterwards
hover [id]: move the mouse to the element
press [keys]: press keys, e.g. press [Control+a]
scroll [down|up]: move the page by the height of the window
new_tab, tab_focus [number], close_tab: open a tab, change to one (the first is 0), close the current one
goto [url], go_back, go_forward: load an address, move through the history
stop [answer]: end the task, with the answer if a question was asked"""


@dataclass(frozen=True, slots=True)
class SiteState:
    """The sites at the start of a task."""

    sites: Sites
    storage_state: "StorageState | None"
    """Cookies and storage of the users who are logged in."""


class SiteProvider(Protocol):
    """Prepares the sites of one instance, task by task."""

    @property
    def is_alive(self) -> bool:
        """False once its sites are known to have died."""

    async def prepare_sites(self, task: Task) -> SiteState:
        """Bring the sites into the state in which `task` starts."""

    async def close(self) -> None:
        """Free all resources. Idempotent."""


class WebEnv(BrowserEnv):
    """One live task."""

    def __init__(
        self,
        *,
        tasks: Callable[[], Mapping[int, Task]],
        provider: SiteProvider,
        helpers: Mapping[str, Helper],
        judge: Callable[[], Judge | None],
    ) -> None:
        """`tasks` and `judge` are called at each reset."""
        super().__init__()
        self._load_tasks = tasks
        self.provider = provider
        self._helpers = helpers
        self._make_judge = judge
        self._judge: Judge | None = None
        self._task: Task | None = None
        self._state: SiteState | None = None
        self._page = ""
        self._previous_action = "None"

    @property
    def is_alive(self) -> bool:
        """False once the browser, the current session or the sites have failed."""
        return super().is_alive and self.provider.is_alive

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the first page and the objective."""
        tasks = self._load_tasks()
        if item.index not in tasks:
            raise ConfigError(f"there is no {item.item_id!r}; {item.env} has {len(tasks)} tasks")
        task = tasks[item.index]
        self._judge = self._make_judge()
        if task.eval.needs_judge and self._judge is None:
            raise ConfigError(f"{item.item_id} needs a judge of its answer; {JUDGE_NAMED.find_remedy()}")
        await self._end_session()
        chromium = await self._lease_browser()
        state = await self.provider.prepare_sites(task)
        session = self._session = await BrowserSession.open(
            chromium,
            origins=list(state.sites.urls.values()),
            urls=[state.sites.fill_in(url) for url in task.start_urls],
            storage_state=state.storage_state,
        )
        self._task, self._state, self._previous_action = task, state, "None"
        return await self._observe(session)

    async def step(self, action: str) -> StepResult:
        """Carry out one action; `stop` ends the episode and is judged."""
        session, state = self._session, self._state
        if session is None or state is None:
            raise RuntimeError("step before reset, or after the end")
        try:
            parsed_action = read_action(action)
            element = session.tree.elements.get(getattr(parsed_action, "element", -1))
            description = describe_action(parsed_action, element.text if element else None)
            match parsed_action:
                case PageAction("stop", answer):
                    return await self._judge_answer(session, answer)
                case PageAction("goto", url):
                    parsed_action = PageAction("goto", state.sites.to_local(url))
            await session.act(parsed_action)
        except InvalidAction as error:
            return StepResult(str(error))
        self._previous_action = description
        return StepResult(await self._observe(session))

    async def inspect(self, name: str) -> object:
        """`page`, as last observed, or the task's `sites` or `intent`."""
        if self._task is None:
            raise RuntimeError("inspect before reset")
        facts = {"page": self._page, "sites": list(self._task.sites), "intent": self._task.intent}
        if name not in facts:
            raise ConfigError(f"a web task has no fact {name!r}; it has {', '.join(facts)}")
        return facts[name]

    async def close(self) -> None:
        """End the episode; release the browser and the sites."""
        try:
            await super().close()
        finally:
            await self.provider.close()

    async def _observe(self, session: BrowserSession) -> str:
        assert self._state is not None
        assert self._task is not None
        self._page = await session.observe()
        url = self._state.sites.to_public(session.url)
        return (
            f"OBSERVATION:\n{self._page}\nURL: {url}\nOBJECTIVE: {self._task.intent}\n"
            f"PREVIOUS ACTION: {self._previous_action}"
        )

    async def _judge_answer(self, session: BrowserSession, answer: str) -> StepResult:
        assert self._state is not None
        assert self._task is not None
        try:
            reward = await score(
                self._task,
                answer=answer,
                pages=session,
                sites=self._state.sites,
                judge=self._judge,
                helpers=self._helpers,
            )
        except EnvCrashed as error:
            raise EnvCrashed(f"task {self._task.task_id} cannot be judged: {error}") from error
        await self._end_session()
        verdict = "The task is done." if reward else "The task has ended; it is not done."
        return StepResult(verdict, reward, terminated=True, success=reward == 1.0)
