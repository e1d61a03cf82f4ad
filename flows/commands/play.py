"""`wingspan play`: a person, or lines from a pipe, instead of the policy."""

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property

from rich.console import Console
from rich.text import Text

from agents.rollout.group import Callbacks
from agents.rollout.scripted import run_console
from agents.types import StopReason, Turn
from envs.registry import EnvSpec, ExpertStep, find_item, get_env
from envs.runtime.pool import EnvPool
from envs.types import Environment, Item, Message
from flows.display.tables import mask_controls, print_plain

PROMPT = "> "
HELP = "?: this help   expert: the expert's next step   Ctrl-D: leave   else: an action"


def play(name: str, item_name: str, *, seed: int | None, console: Console) -> bool:
    """Play item `item_name` (an index or an item id) of environment `name` until it or the input ends.

    Returns False after Ctrl-C, with the turns summarised. Raises `KeyboardInterrupt` after Ctrl-C before the
    episode has begun, `ConfigError` for an unknown environment or item, `MissingDependency` for what it
    needs, `EnvCrashed` if it breaks.
    """
    spec = get_env(name)
    spec.check()
    person = _Person(spec, find_item(spec, item_name, seed=seed), console=console)
    try:
        asyncio.run(_play(spec, person))
    except KeyboardInterrupt:
        if not person.has_begun:
            raise
        return False
    return True


async def _play(spec: EnvSpec, person: "_Person") -> None:
    pool = EnvPool(spec.make, capacity=1)
    try:
        async with pool.lease() as env:
            await person.play(env)
    finally:
        await pool.close()


def count_followed(solution: Sequence[ExpertStep], turns: Sequence[tuple[str, str]]) -> int:
    """The number of steps of `solution`, from the first, that occur in this order among `turns`: pairs of an
    observation and the action that followed it."""
    count = 0
    for observation, action in turns:
        with suppress(LookupError):
            count += count < len(solution) and action.split() == solution[count].resolve(observation).split()
    return count


def read_lines(show: Callable[[str], object]) -> Iterator[str]:
    """Typed lines; those of a pipe are shown as if they were typed."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            show(f"{PROMPT}{line.rstrip()}")
            yield line
        return
    import readline  # noqa: F401 - gives `input` a history and keys to edit with

    while True:
        # The event loop's handler would only cancel the episode once the line is there.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = input(PROMPT)
        except EOFError:
            show("")
            return
        except KeyboardInterrupt:
            show("")  # the terminal shows ^C in this line
            raise
        finally:
            signal.signal(signal.SIGINT, handler)
        yield line


class _Person:
    """A person at the keyboard, or lines of a pipe, as the model of one episode."""

    def __init__(self, spec: EnvSpec, item: Item, *, console: Console) -> None:
        self._spec = spec
        self._item = item
        self._console = console
        self._lines = read_lines(self._print)
        self._observation = ""
        self._turns: list[tuple[str, str]] = []
        self._reward = 0.0
        self.has_begun = False
        """From then on, `play` prints a summary however it ends."""

    async def play(self, env: Environment) -> None:
        self._print(f"{self._item.item_id}, seed {self._item.seed}", style="dim")
        self._show_help()
        callbacks = Callbacks(
            on_opening=lambda item, index, messages: self._show(messages[-1]),
            on_turn=lambda item, index, turns: self._show_turn(turns),
        )
        result = "not finished"
        self.has_begun = True
        try:
            trajectory = await run_console(env, self._item, self._read_action, callbacks)
            if trajectory is not None:
                is_truncated = trajectory.stop_reason is StopReason.TRUNCATED
                result = "solved" if trajectory.success else "out of steps" if is_truncated else "not solved"
                self._reward = trajectory.reward
        finally:
            turns = f"{len(self._turns)} turn{'s' if len(self._turns) != 1 else ''}"
            self._print(f"{result}: reward {self._reward:g} in {turns}", style="bold")

    async def _read_action(self) -> str | None:
        """The next action that is typed; None at the end of the input."""
        for line in self._lines:
            text = line.strip()
            if text == "?":
                self._show_help()
            elif text == "expert":
                self._print(self._hint(), style="dim")
            elif text:
                return text
        return None

    def _show_help(self) -> None:
        text = f"{HELP}\n\n{self._spec.instructions}\n"
        is_terminal = self._console.is_terminal  # whose lines break between words
        self._console.print(Text(mask_controls(text), style="dim"), soft_wrap=not is_terminal)

    def _show(self, message: Message) -> None:
        for image in message.images:
            self._print(f"[an image, {image.media_type}]", style="dim")
        self._print(message.content)
        self._observation = message.content

    def _show_turn(self, turns: Sequence[Turn]) -> None:
        turn = turns[-1]
        self._turns.append((self._observation, turn.action))
        self._show(Message("user", turn.observation, tuple(turn.images)))
        self._reward = sum(turn.reward for turn in turns)
        if turn.reward:
            self._print(f"reward {turn.reward:+g}, {self._reward:g} in all", style="dim")

    def _hint(self) -> str:
        solution = self._solution
        if not solution:
            return "no solution of this item is known"
        count = count_followed(solution, self._turns)
        if count == len(solution):
            return "the expert's solution ends here"
        warning = ""
        if len(self._turns) > count:
            warning = " (you have left the expert's path: it may be too late)"
        thought = f"{solution[count].thought}\n" if solution[count].thought else ""
        try:
            action = solution[count].resolve(self._observation)
        except LookupError as error:
            return f"the expert finds nothing to act on: {error}{warning}"
        return f"{thought}expert: {action}{warning}"

    @cached_property
    def _solution(self) -> Sequence[ExpertStep]:
        return self._spec.solve(self._item)

    def _print(self, text: str, *, style: str | None = None) -> None:
        print_plain(text, console=self._console, style=style)
