"""A plan as turns: each command with a short thought that says what it is for."""

import re
from collections.abc import Sequence

from envs.registry import ExpertStep

_PURPOSES = (
    (re.compile(r"take (.+) from .+"), "take {}"),
    (re.compile(r"move (.+) to (.+)"), "move {} to {}"),
    (re.compile(r"put (.+) in/on (.+)"), "put {} in/on {}"),
    (re.compile(r"heat (.+) with .+"), "heat {}"),
    (re.compile(r"cool (.+) with .+"), "cool {}"),
    (re.compile(r"clean (.+) with .+"), "clean {}"),
    (re.compile(r"use (.+)"), "turn on {}"),
)
"""Commands that change something, and how their purpose is said."""


def add_thoughts(plan: Sequence[str]) -> list[ExpertStep]:
    """The commands of a plan; the thought of those on the way is the next thing that is to be done."""
    purposes = [_purpose(command) for command in plan]
    return [
        ExpertStep(thought=next((p for p in purposes[turn:] if p), ""), action=command)
        for turn, command in enumerate(plan)
    ]


def _purpose(command: str) -> str:
    for pattern, said in _PURPOSES:
        match = pattern.fullmatch(command)
        if match is not None:
            return f"I {said.format(*match.groups())}."
    return ""
