"""`wingspan fork`: repeats a recorded trajectory up to a turn, and goes on with a policy or a person."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agents.rollout.group import Callbacks
from agents.types import Trajectory, Turn
from envs.files import check_writable
from envs.types import Item, Message
from flows.commands.play import read_lines
from flows.commands.turns import TurnPrinter
from flows.display.tables import print_table
from tasks.evaluation.forks.fork import run_person, sample_fork
from tasks.evaluation.forks.parents import find_parent
from tasks.evaluation.forks.records import append_fork, value_of
from tasks.evaluation.forks.request import ForkPlan, ForkRequest, plan_fork
from tasks.reporting.pages import format_count

HELP = "Type an action and Enter; Ctrl-D leaves the episode."


def fork(name: str, request: ForkRequest, *, runs: Sequence[Path], console: Console) -> bool:
    """Run and show the forks at a turn, and its value; returns whether any was run to its end.

    `name` is that of a trajectory and its turn, and `runs` is where a run's name is looked up. Trajectories
    are written as they end. Raises as `find_parent`, `plan_fork` and `sample_fork`.
    """
    parent, turn = find_parent(name, paths=runs)
    check_writable(parent.run.folder, remedy="make it writable: forks are recorded beside the run")
    plan = plan_fork(parent, turn, request)
    printer = _Printer(plan, console)
    printer.begin()
    trajectories: list[Trajectory] = []

    def end(trajectory: Trajectory) -> None:
        append_fork(parent.run, trajectory)
        trajectories.append(trajectory)
        printer.trajectory(trajectory)

    if request.is_person:
        callbacks = Callbacks(on_opening=printer.opening, on_turn=printer.next_turn)
        person_fork = asyncio.run(run_person(plan, printer.read_line, callbacks))
        if person_fork is None:
            printer.note("left before the end; nothing is recorded")
            return True
        end(person_fork)
    else:
        callbacks = Callbacks(on_turn=printer.next_turn if plan.samples == 1 else None, on_trajectory=end)
        asyncio.run(sample_fork(plan, callbacks))
    printer.note(f"recorded in {parent.run.forks}; wingspan view shows them with {parent.name}")
    if plan.samples > 1:
        _print_value(trajectories, console=console)
    return any(not trajectory.has_failed for trajectory in trajectories)


class _Printer(TurnPrinter):
    """Prints a fork as it runs: the repeated turns, then the new ones."""

    def __init__(self, plan: ForkPlan, console: Console) -> None:
        super().__init__(console)
        self._plan = plan
        self._typed_lines = read_lines(self.note)

    def begin(self) -> None:
        """Say what is run."""
        plan, labels = self._plan, self._plan.labels
        samples = "" if plan.samples == 1 else f", {plan.samples} samples"
        temperature = f" at temperature {plan.temperature:g}" if "temperature" in labels else ""
        num_repeated = format_count(plan.past.num_turns, "turn")
        self.note(
            f"{plan.parent.name}, {plan.parent.trajectory.item.item_id}: {num_repeated} repeated, then "
            f"{labels['policy']}{temperature}{samples}"
        )

    def opening(self, item: Item, sample_index: int, messages: Sequence[Message]) -> None:
        super().opening(item, sample_index, messages)
        if not self._plan.past.num_turns:
            self.note(HELP)

    def next_turn(self, item: Item, sample_index: int, turns: Sequence[Turn]) -> None:
        """Print the last of `turns`."""
        num_repeated = self._plan.past.num_turns
        self.turn(item, sample_index, turns, is_repeated=len(turns) <= num_repeated)
        if self._plan.policy is None and len(turns) == num_repeated:
            self.note(HELP)

    async def read_line(self) -> str | None:
        return next((line.strip() for line in self._typed_lines if line.strip()), None)


def _print_value(trajectories: Sequence[Trajectory], *, console: Console) -> None:
    value = value_of(trajectories)
    rows = [("samples", str(value.samples)), ("failed", str(value.failed))]
    if value.success is not None and value.reward is not None:
        rows.append(("success", value.success.format(is_share=True)))
        rows.append(("reward", value.reward.format(is_share=False)))
    print_table(("value of the turn", "95% interval"), rows, console=console, has_header=True)
