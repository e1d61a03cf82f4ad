"""WebArena's tasks in the form of its `test.raw.json`: objectives, sites and rules of evaluation.

Addresses of sites are placeholders (`__SHOPPING__`) that `envs/builtin/webarena/sites.py` fills in.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import pip_install

TASKS = 812
PACKAGE, VERSION = "libwebarena", "0.0.4"
"""The distribution that ships the file, in the version that browsergym-webarena 0.14.3 requires. Its code is
not used, and its dependencies should not be installed: they conflict with ours."""
_FILE = "webarena/test.raw.json"
_SHA256 = "7b50386fd69163dbc05d615d834df4c6ed2c35596e97a1b10d17451c02537652"
"""The same file as in WebArena's repository."""

Kind = Literal["string_match", "url_match", "program_html"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Answers(_Record):
    """References for the answer of `stop`; all that are set must match."""

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    fuzzy_match: tuple[str, ...] | Literal["N/A"] = ()
    """The answer for a judge; `N/A` if the task cannot be done."""


class RequiredContents(_Record):
    """Contents that a part of a page must have."""

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    """Each may name alternatives, separated by ` |OR| `."""


class Target(_Record):
    """A page that is checked when the task has ended, and its required contents."""

    url: str
    """An address, `last` for the policy's current page, or `func:name(…)`
    (`envs/builtin/webarena/helpers.py`)."""
    locator: str
    """JavaScript that returns the part, `func:name(…)`, or empty for the whole page."""
    prep_actions: tuple[str, ...] = ()
    """JavaScript that runs before the check."""
    required_contents: RequiredContents


class Evaluation(_Record):
    """The rules that evaluate a task: all of `eval_types`."""

    eval_types: tuple[Kind, ...]
    reference_answers: Answers | None = None
    reference_url: str | None = None
    program_html: tuple[Target, ...] = ()
    string_note: str = ""
    """Why the task cannot be done, if it cannot."""
    url_note: str = "GOLD in PRED"

    @property
    def needs_judge(self) -> bool:
        """Whether a language model judges the answer."""
        return self.reference_answers is not None and bool(self.reference_answers.fuzzy_match)


def _or_empty(value: object) -> object:
    return value or ""


class Task(_Record):
    """A task of the benchmark."""

    task_id: int
    sites: tuple[str, ...]
    intent: str
    start_url: Annotated[str, BeforeValidator(_or_empty)]
    """Addresses of the tabs, separated by ` |AND| `."""
    storage_state: str | None = None
    """A file name of upstream, `./.auth/<site>.<site>_state.json`, which lists the sites with a login."""
    intent_template_id: int = 0
    """Tasks of one template ask the same with different values."""
    eval: Evaluation

    @property
    def start_urls(self) -> tuple[str, ...]:
        """The addresses of the tabs."""
        return tuple(filter(None, self.start_url.split(" |AND| ")))

    @property
    def logins(self) -> tuple[str, ...]:
        """Sites on which a user is logged in at the start."""
        if self.storage_state is None:
            return ()
        return tuple(Path(self.storage_state).name.removesuffix("_state.json").split("."))


_ADAPTER = TypeAdapter(list[Task])


def read_tasks(path: Path) -> Mapping[int, Task]:
    """The tasks of a file by their number; raises `ConfigError`, naming the place, if it is malformed."""
    text = path.read_text(encoding="utf-8")
    try:
        tasks: Sequence[Task] = _ADAPTER.validate_python(json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: no JSON ({error.msg}); download it again") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: task {field}: {first['msg']}, got {first['input']!r:.60}") from None
    return {task.task_id: task for task in tasks}


class TaskFile:
    """The tasks of the benchmark, as a requirement."""

    name = "WebArena's tasks"

    def path(self) -> Path | None:
        """The path of the file; None if the package is not installed."""
        try:
            return Path(str(distribution(PACKAGE).locate_file(_FILE)))
        except PackageNotFoundError:
            return None

    def find_remedy(self) -> str | None:
        path = self.path()
        remedy = pip_install(PACKAGE)
        if path is None or not path.exists():
            return remedy
        if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
            reason = f"{path} is not the file of version {VERSION}: sha256 {_SHA256}"
            return f"{remedy} --reinstall-package {PACKAGE} ({reason})"
        return None


TASK_FILE = TaskFile()


@cache
def tasks() -> Mapping[int, Task]:
    """All 812 tasks by their number; raises `MissingDependency` if the file is missing."""
    path, missing = TASK_FILE.path(), TASK_FILE.find_remedy()
    if path is None or missing is not None:
        raise MissingDependency(f"environment 'webarena' needs {TASK_FILE.name}; {missing}")
    return read_tasks(path)
