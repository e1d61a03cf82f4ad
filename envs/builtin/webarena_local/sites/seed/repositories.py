"""Git repositories with the same commits on every machine: authors, dates and files are fixed."""

import os
import random
import subprocess
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from envs.builtin.webarena_local.sites.seed.people import OTHER_PEOPLE, Person, days_ago
from envs.builtin.webarena_local.sites.seed.projects import COMMIT_VERBS, Project

COMMITS = 24
DEVELOPERS = OTHER_PEOPLE[:5]
"""The committers of all projects."""


@dataclass(frozen=True, slots=True)
class Change:
    """One commit."""

    author: Person
    when: datetime
    message: str
    path: str
    text: str


def make_repository(project: Project, folder: Path) -> None:
    """A bare repository with `COMMITS` commits on `main` and a tag for the first milestone."""
    stream = "".join(_as_stream(change, mark) for mark, change in enumerate(changes_of(project), 1))
    stream += f"reset refs/tags/v{project.milestones[0]}\nfrom :{COMMITS // 2}\n\n"
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    for command in (
        ["git", "init", "--quiet", "--bare", "--initial-branch=main", str(folder)],
        ["git", "--git-dir", str(folder), "fast-import", "--quiet"],  # reads the stream; init reads nothing
    ):
        subprocess.run(command, input=stream.encode(), env=environment, check=True, capture_output=True)


def changes_of(project: Project) -> list[Change]:
    """The history of `project`, oldest first."""
    rng = random.Random(f"webarena-local/repository/{project.name}")
    when = days_ago(200)
    changes: list[Change] = []
    readme = f"# {project.name}\n\n{project.about}.\n\nLicence: MIT\n"
    changes.append(Change(DEVELOPERS[0], when, "Begin with a readme", "README.md", readme))
    lines: dict[str, list[str]] = {}
    for _ in range(COMMITS - 1):
        when += timedelta(days=rng.randint(2, 12), minutes=rng.randint(0, 600))
        component = rng.choice(project.components)
        path = f"src/{component}/{rng.choice(('core', 'tools', 'checks'))}.{project.language}"
        lines.setdefault(path, []).append(
            f"{component} {len(lines.get(path, ())) + 1}: {rng.randint(100, 999)}"
        )
        message = (
            f"{rng.choice(COMMIT_VERBS)} {component} {rng.choice(('limits', 'names', 'errors', 'output'))}"
        )
        text = "\n".join(lines[path]) + "\n"
        changes.append(Change(rng.choice(DEVELOPERS), when, message, path, text))
    return changes


def _as_stream(change: Change, mark: int) -> str:
    """A commit in the input format of `git fast-import`."""
    committer = f"{change.author.full_name} <{change.author.email}> {int(change.when.timestamp())} +0000"
    return (
        f"commit refs/heads/main\nmark :{mark}\ncommitter {committer}\ndata {len(change.message.encode())}\n"
        f"{change.message}\nM 100644 inline {change.path}\ndata {len(change.text.encode())}\n{change.text}\n"
    )
