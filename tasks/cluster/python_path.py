"""Where a process that this one starts imports the code of the project from."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""This project's folder."""


def python_path(project: Path = ROOT) -> str:
    """The `PYTHONPATH` of a process with the code of `project`: its folder before those of this process."""
    return os.pathsep.join(filter(None, [str(project), os.environ.get("PYTHONPATH")]))
