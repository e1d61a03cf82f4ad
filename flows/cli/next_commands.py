"""The last lines of `wingspan run`: what can be done with a finished run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tasks.tracking.tracker import recorded_page, ui_command


def next_commands(pipeline: str, *, workspace: Path, settings: Sequence[str]) -> str:
    """Commands and their purposes, for a run of `pipeline` with `settings` (`KEY=VALUE`) in `workspace`."""
    policy = str(workspace / "policy")
    overrides = [part for setting in settings for part in ("--set", setting)]
    rollout = ["wingspan", "rollout", pipeline, "--items", "3", "--policy", policy, *overrides]
    page = recorded_page(workspace)
    commands = {
        ui_command() or page: f"metrics, traces and the registered policy: {page}",
        shlex.join(["wingspan", "view", str(workspace)]): "read its trajectories in a browser",
        shlex.join(rollout): "watch the trained policy act",
        shlex.join(["wingspan", "serve-policy", policy]): "serve it with OpenAI's protocol",
    }
    return "\n".join(["next:", *(f"  {command}\n      {purpose}" for command, purpose in commands.items())])
