"""The planner's solutions of all games, in `plans.jsonl`; as a command, the planner itself.

    nice python -m envs.builtin.alfworld.mini.plans

writes the file again, in some fifteen minutes. Thanks to the file, games are generated in seconds and none is
unsolved. A line is `{"game", "problem", "plan"}`: a folder, the hash of the problem, and the commands. The
plan is null if the planner found none within `LIMIT_S`; such a game is not an item, as upstream omits
unsolved games.
"""

import hashlib
import json
import multiprocessing
import resource
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

from envs.builtin.alfworld.mini.drafts import Draft, drafts
from envs.builtin.alfworld.upstream import domain

FILE = Path(__file__).with_name("plans.jsonl")
LIMIT_S = 60
"""CPU seconds of a search; most take one or two, a few would exhaust the memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the file."""

    game: str
    problem: str
    """The `fingerprint` of the problem."""
    plan: tuple[str, ...] | None


@cache
def plans() -> tuple[Plan, ...]:
    """All plans, in the order of the games."""
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    return tuple(
        Plan(entry["game"], entry["problem"], entry["plan"] and tuple(entry["plan"])) for entry in lines
    )


def fingerprint(draft: Draft) -> str:
    """A hash of the planner's input."""
    return hashlib.sha256(f"{domain()}\0{draft.problem}".encode()).hexdigest()[:16]


def solve(draft: Draft) -> Plan:
    """Run the planner in its own process, which a CPU limit can end."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_search, args=(draft, sender))
    process.start()
    sender.close()
    try:
        plan: list[str] = receiver.recv()
    except EOFError:  # the limit ended it
        plan = []
    process.join()
    return Plan(draft.folder, fingerprint(draft), tuple(plan) or None)


def _search(draft: Draft, sender: Connection) -> None:
    from envs.builtin.alfworld.textworld_light import planner

    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    with planner() as environment:
        environment.load({"pddl_domain": domain(), "pddl_problem": draft.problem, "grammar": draft.grammar})
        sender.send(list(environment.reset()["policy_commands"]))


def main() -> None:
    """Solve all games."""
    import envs.builtin.alfworld.textworld_light  # noqa: F401 - here, not in every process

    lines = []
    for draft in drafts():
        plan = solve(draft)
        lines.append(json.dumps({"game": plan.game, "problem": plan.problem, "plan": plan.plan}))
        print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
