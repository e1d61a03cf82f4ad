"""Questions with a sandbox, for tools that run code or commands, or work on files."""

from dataclasses import replace
from functools import cache

from envs.builtin.question.env import SPEC as QUESTION
from envs.builtin.question.env import QuestionEnv
from envs.sandbox.sandbox import SANDBOX, choose_backend
from envs.sandbox.workspace import WithWorkspace, Workspace, read_files

_backend = cache(choose_backend)  # the probe runs programs, and instances are created on the event loop


def make() -> WithWorkspace:
    """A new instance; its sandbox starts when a tool first uses it."""
    return WithWorkspace(QuestionEnv(), Workspace(backend=_backend()))


SPEC = replace(QUESTION, name="workspace", make=make, requirements=(SANDBOX,), check_fields=read_files)
