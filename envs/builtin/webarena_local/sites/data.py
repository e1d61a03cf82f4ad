"""The data set `webarena-local`: seeded databases, wikis and repositories, made here from code alone."""

import subprocess
import sys
from pathlib import Path

from envs.requirements.data_sets import DataSet
from envs.requirements.detection import Package, Program, require

PACKAGES = (
    "django-oscar",
    "django-machina",
    "wagtail",
    "trac",
    "whoosh-reloaded",
    "waitress",
    "time-machine",
    "multipart",
    "setuptools",
)
"""The applications and their dependencies: the extra `sites`."""
GIT = Program("Git", ("git", "--version"), {"conda": "git", "apt-get": "git", "dnf": "git", "brew": "git"})
"""Trac reads repositories with it."""
_BUILD = "envs.builtin.webarena_local.sites.seed.build"


def make(folder: Path) -> None:
    """Fill `folder` from another process, because Django is set up once per process."""
    require("data set 'webarena-local'", [*map(Package, PACKAGES), GIT])
    checkout = Path(__file__).parents[3]
    result = subprocess.run(
        [sys.executable, "-m", _BUILD, str(folder.resolve())], cwd=checkout, capture_output=True, text=True
    )
    if result.returncode != 0:
        raise RuntimeError(f"{_BUILD} failed: {' '.join(result.stderr.split())[-800:]}")


WEBARENA_LOCAL = DataSet(
    name="webarena-local",
    about="an invented shop, forum, forge and CMS for WebArena's kinds of task, all made here",
    required_paths=("django.sqlite3", "search", "forge", "repositories"),
    make=make,
    made_with=("django", *PACKAGES),
)
DATA_SETS = (WEBARENA_LOCAL,)
