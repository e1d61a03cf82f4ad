"""The planner's solutions of all games, in `plans.jsonl`; as a command, the planner itself.

    nice python -m envs.alfworld.mini.plans

writes the file again, bit by bit, in some fifteen minutes: it is why the games themselves are made in
seconds, and never played unsolved. A line is `{"game", "problem", "plan"}`: a folder, the hash of the
problem that was solved, and the commands, null where the planner found none.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from envs.alfworld.mini.drafts import Draft, drafts
from envs.alfworld.upstream import domain

FILE = Path(__file__).with_name("plans.jsonl")


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
    return tuple(Plan(one["game"], one["problem"], one["plan"] and tuple(one["plan"])) for one in lines)


def fingerprint(draft: Draft) -> str:
    """Of what the planner is given."""
    return hashlib.sha256(f"{domain()}\0{draft.problem}".encode()).hexdigest()[:16]


def main() -> None:
    """Solve all games."""
    from envs.alfworld.textworld_light import planner

    lines = []
    with planner() as game:
        for draft in drafts():
            game.load({"pddl_domain": domain(), "pddl_problem": draft.problem, "grammar": draft.grammar})
            plan = list(game.reset()["policy_commands"]) or None
            line = {"game": draft.folder, "problem": fingerprint(draft), "plan": plan}
            lines.append(json.dumps(line))
            print(lines[-1], flush=True)
    FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
