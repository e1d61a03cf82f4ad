"""What one may do with a finished run: the lines that `wingspan run` ends with."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tasks.tracking import ui_command


def next_commands(pipeline: str, *, workspace: Path, settings: Sequence[str]) -> str:
    """Commands with a word on each, for a run of `pipeline` with `settings` (`KEY=VALUE`) in `workspace`."""
    policy = workspace / "policy"
    overrides = [part for setting in settings for part in ("--set", setting)]
    rollout = ["wingspan", "rollout", pipeline, "--items", "3", "--policy", str(policy), *overrides]
    commands = {
        ui_command(): "metrics, traces and the registered policy",
        shlex.join(rollout): "watch the trained policy act",
        shlex.join(["wingspan", "serve-policy", str(policy)]): "serve it by OpenAI's protocol",
    }
    lines = [f"  {command}\n      {purpose}" for command, purpose in commands.items()]
    return "\n".join(["next:", *lines])
