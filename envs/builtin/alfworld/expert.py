"""Turns a plan into expert steps: each command gets a short thought that states its purpose."""

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
"""Commands that change something → templates of their purposes."""


def add_thoughts(plan: Sequence[str]) -> list[ExpertStep]:
    """The commands of a plan, each with the purpose of the next command that changes something."""
    purposes = [_purpose(command) for command in plan]
    return [
        ExpertStep(thought=next((p for p in purposes[turn:] if p), ""), action=command)
        for turn, command in enumerate(plan)
    ]


def _purpose(command: str) -> str:
    for pattern, purpose in _PURPOSES:
        match = pattern.fullmatch(command)
        if match is not None:
            return f"I {purpose.format(*match.groups())}."
    return ""
