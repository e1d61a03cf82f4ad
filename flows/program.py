"""How `wingspan` starts itself in another process: the command, options, an environment variable."""

import json
import sys
from collections.abc import Mapping

PROGRAM = (sys.executable, "-c", "from flows.cli.app import main; main()")
"""Starts `wingspan` in another process; its arguments follow."""
REPRODUCTION = "WINGSPAN_REPRODUCTION"
"""Environment variable of the run that `wingspan reproduce` starts: what can be done next is for that to say,
which may remove the run's folder."""


def to_options(overrides: Mapping[str, object]) -> list[str]:
    """`{"train.lr": 0.001}` → `["--set", "train.lr=0.001"]`: the inverse of `parse_settings` of
    `flows/cli/options.py`."""
    return [part for key, value in overrides.items() for part in ("--set", f"{key}={json.dumps(value)}")]
