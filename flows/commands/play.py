"""`wingspan play`: a person, or lines from a pipe, instead of the policy."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from rich.console import Console

from envs.base import Environment
from envs.errors import ConfigError, EnvCrashed, boundary
from envs.registry import EnvSpec, ExpertStep, get_env, get_item
from envs.types import Image, Item, Observation, StepResult

PROMPT = "> "
HELP = "?: this help   expert: what the scripted expert would do   Ctrl-D: leave   anything else: an action"


def play(name: str, item_name: str, *, seed: int | None, console: Console) -> None:
    """Play item `item_name` (an index or an item id) of environment `name` until it or the input ends.

    Raises `ConfigError` for an unknown environment or item, `MissingDependency`, and `EnvCrashed` if the
    environment raises.
    """
    spec = get_env(name)
    spec.check()
    item = find_item(spec, item_name, seed=seed)
    with asyncio.Runner() as runner:
        env = spec.make()
        try:
            _Session(spec, item, env=env, runner=runner, console=console).play()
        except KeyboardInterrupt:
            console.print()
        finally:
            runner.run(env.close())


def find_item(spec: EnvSpec, name: str, *, seed: int | None) -> Item:
    """The item called `name`, with `seed` instead of its own if given. Raises `ConfigError`."""
    index = name.removeprefix(f"{spec.name}_")
    if not (index.isascii() and index.isdigit()):
        raise ConfigError(
            f"{name!r} is no item of {spec.name}; give its number, or its id, e.g. {spec.name}_0"
        )
    item = get_item(spec, int(index))
    return item if seed is None else replace(item, seed=seed)


def count_followed(solution: Sequence[ExpertStep], turns: Sequence[tuple[str, str]]) -> int:
    """How many steps of `solution`, from the first, are in this order among `turns`, which are pairs of an
    observation and the action that followed."""
    done = 0
    for observation, action in turns:
        with suppress(LookupError):
            done += done < len(solution) and action.split() == solution[done].resolve(observation).split()
    return done


class _Session:
    """An episode played on the console."""

    def __init__(
        self, spec: EnvSpec, item: Item, *, env: Environment, runner: asyncio.Runner, console: Console
    ) -> None:
        self._spec = spec
        self._item = item
        self._env = env
        self._runner = runner
        self._console = console
        self._solution: Sequence[ExpertStep] | None = None
        self._observation = ""
        self._turns: list[tuple[str, str]] = []
        self._reward = 0.0

    def play(self) -> None:
        self._say(f"{self._item.item_id}, seed {self._item.seed}. {HELP}\n", style="dim")
        with self._boundary():
            first = Observation.wrap(self._runner.run(self._env.reset(self._item)))
        self._show(first.text, first.images)
        for line in self._lines():
            command = line.strip()
            if command == "?":
                self._say(f"{HELP}\n\n{self._spec.instructions}", style="dim")
            elif command == "expert":
                self._say(self._hint(), style="dim")
            elif command and self._is_last_action(command):
                return

    def _is_last_action(self, action: str) -> bool:
        """Execute `action`; returns whether the episode has ended."""
        with self._boundary():
            result = self._runner.run(self._env.step(action))
        self._turns.append((self._observation, action))
        self._reward += result.reward
        self._show(result.observation, result.images)
        if result.terminated or result.truncated:
            self._say(self._outcome(result), style="bold")
            return True
        if result.reward:
            self._say(f"reward {result.reward:+g}, {self._reward:g} in all", style="dim")
        return False

    def _show(self, text: str, images: Sequence[Image]) -> None:
        for image in images:
            self._say(f"[an image, {image.media_type}]", style="dim")
        self._say(text)
        self._observation = text

    def _outcome(self, result: StepResult) -> str:
        how = "solved" if result.success else "out of steps" if result.truncated else "not solved"
        turns = len(self._turns)
        return f"{how}: reward {self._reward:g} in {turns} turn{'s' if turns != 1 else ''}"

    def _hint(self) -> str:
        if self._solution is None:
            self._solution = self._spec.solve(self._item)
        solution = self._solution
        if not solution:
            return "no solution of this item is known"
        done = count_followed(solution, self._turns)
        if done == len(solution):
            return "the expert's solution ends here"
        has_deviated = len(self._turns) > done
        warning = " (you have left the expert's path: it may be too late)" if has_deviated else ""
        reason = f"{solution[done].thought}\n" if solution[done].thought else ""
        try:
            action = solution[done].resolve(self._observation)
        except LookupError as error:
            return f"the expert finds nothing to act on: {error}{warning}"
        return f"{reason}expert: {action}{warning}"

    def _lines(self) -> Iterator[str]:
        """The typed lines; lines from a pipe are printed as well."""
        if not sys.stdin.isatty():
            for line in sys.stdin:
                self._say(f"{PROMPT}{line.rstrip()}")
                yield line
            return
        import readline  # noqa: F401 - gives `input` a history and keys to edit with

        while True:
            try:
                yield input(PROMPT)
            except EOFError:
                self._say("")
                return

    def _say(self, text: str, *, style: str | None = None) -> None:
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def _boundary(self) -> AbstractContextManager[None]:
        return boundary(EnvCrashed, f"{self._item.item_id}: the environment")
