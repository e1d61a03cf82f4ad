"""The planner's solutions of all games, in `plans.jsonl`; as a command, the planner itself.

    nice python -m envs.builtin.alfworld.mini.plans

writes the file again, in some fifteen minutes: it is why the games themselves are made in seconds, and
never played unsolved. A line is `{"game", "problem", "plan"}`: a folder, the hash of the problem that was
solved, and the commands. These are null where the planner found none within `LIMIT_S`: such a game is no
item, as upstream leaves out those that nobody has solved.
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
"""CPU time of a search; most take one or two seconds, a few would take all memory."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One line of the file."""

    game: str
    problem: str
    """As `fingerprint` has it."""
    plan: tuple[str, ...] | None


@cache
def plans() -> tuple[Plan, ...]:
    """All, in the order of the games."""
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    return tuple(
        Plan(entry["game"], entry["problem"], entry["plan"] and tuple(entry["plan"])) for entry in lines
    )


def fingerprint(draft: Draft) -> str:
    """Of what the planner is given."""
    return hashlib.sha256(f"{domain()}\0{draft.problem}".encode()).hexdigest()[:16]


def solve(draft: Draft) -> Plan:
    """What the planner finds, in a process of its own, so that it can be ended."""
    reading, writing = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_search, args=(draft, writing))
    process.start()
    writing.close()
    try:
        plan: list[str] = reading.recv()
    except EOFError:  # its time was over
        plan = []
    process.join()
    return Plan(draft.folder, fingerprint(draft), tuple(plan) or None)


def _search(draft: Draft, answer: Connection) -> None:
    from envs.builtin.alfworld.textworld_light import planner

    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    with planner() as game:
        game.load({"pddl_domain": domain(), "pddl_problem": draft.problem, "grammar": draft.grammar})
        answer.send(list(game.reset()["policy_commands"]))


def main() -> None:
    """Solve all games."""
    import envs.builtin.alfworld.textworld_light  # noqa: F401 - once, not in every process

    lines = []
    for draft in drafts():
        plan = solve(draft)
        lines.append(json.dumps({"game": plan.game, "problem": plan.problem, "plan": plan.plan}))
        print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
