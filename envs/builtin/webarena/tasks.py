"""WebArena's tasks, as its `test.raw.json` has them: what is asked, on which sites, and how it is judged.

Any file of that form is read by `read_tasks`. Addresses of sites are placeholders (`__SHOPPING__`), which
`envs/builtin/webarena/sites.py` fills in.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import pip_install

TASKS = 812
PACKAGE, VERSION = "libwebarena", "0.0.4"
"""The distribution that ships the file, as browsergym-webarena 0.14.3 wants it. Its code is not used, and
what that needs is best not installed: it wants other versions of much that is here."""
_FILE = "webarena/test.raw.json"
_SHA256 = "7b50386fd69163dbc05d615d834df4c6ed2c35596e97a1b10d17451c02537652"
"""The same as in WebArena's own repository."""

Kind = Literal["string_match", "url_match", "program_html"]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Answers(_Record):
    """What the answer of `stop` is held against; all that is given must be met."""

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    fuzzy_match: tuple[str, ...] | Literal["N/A"] = ()
    """For a judge; `N/A` where the task cannot be done."""


class Required(_Record):
    """What must be in a part of a page."""

    exact_match: str | None = None
    must_include: tuple[str, ...] = ()
    """Each either of alternatives, ` |OR| ` between them."""


class Target(_Record):
    """A page that is looked at when the task has ended, and what must be in it."""

    url: str
    """An address, `last` for where the policy is, or `func:name(…)` (`envs/builtin/webarena/helpers.py`)."""
    locator: str
    """JavaScript that gives the part, `func:name(…)`, or empty for the whole page."""
    prep_actions: tuple[str, ...] = ()
    """JavaScript that is run before."""
    required_contents: Required


class Evaluation(_Record):
    """How a task is judged: by all of `eval_types`."""

    eval_types: tuple[Kind, ...]
    reference_answers: Answers | None = None
    reference_url: str | None = None
    program_html: tuple[Target, ...] = ()
    string_note: str = ""
    """Why the task cannot be done, where it cannot."""
    url_note: str = "GOLD in PRED"

    @property
    def needs_judge(self) -> bool:
        """Whether some answers are for a language model to judge."""
        return self.reference_answers is not None and bool(self.reference_answers.fuzzy_match)


def _or_empty(value: Any) -> Any:
    return value or ""


class Task(_Record):
    """One of the benchmark's."""

    task_id: int
    sites: tuple[str, ...]
    intent: str
    start_url: Annotated[str, BeforeValidator(_or_empty)]
    """Addresses of the tabs, ` |AND| ` between them."""
    storage_state: str | None = None
    """A file of upstream's, `./.auth/<site>.<site>_state.json`: which sites are logged in to."""
    require_reset: bool = False
    """Whether the sites must be as they were at first."""
    intent_template_id: int = 0
    """Tasks of one template ask the same of different things."""
    eval: Evaluation

    @property
    def start_urls(self) -> tuple[str, ...]:
        """Of the tabs."""
        return tuple(filter(None, self.start_url.split(" |AND| ")))

    @property
    def logins(self) -> tuple[str, ...]:
        """Sites that are logged in to at the start."""
        if self.storage_state is None:
            return ()
        return tuple(Path(self.storage_state).name.removesuffix("_state.json").split("."))


_ADAPTER = TypeAdapter(list[Task])


def read_tasks(path: Path) -> Mapping[int, Task]:
    """The tasks of a file by their number; raises `ConfigError`, naming the place, if it has another form."""
    text = path.read_text(encoding="utf-8")
    try:
        tasks: Sequence[Task] = _ADAPTER.validate_python(json.loads(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {error.lineno}: no JSON ({error.msg}); get the file anew") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: task {place}: {first['msg']}, got {first['input']!r:.60}") from None
    return {task.task_id: task for task in tasks}


class TaskFile:
    """The tasks of the benchmark, as a requirement."""

    name = "WebArena's tasks"

    def path(self) -> Path | None:
        """Of the file; None where the package is not installed."""
        try:
            return Path(str(distribution(PACKAGE).locate_file(_FILE)))
        except PackageNotFoundError:
            return None

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        path = self.path()
        remedy = pip_install(PACKAGE)
        if path is None or not path.exists():
            return remedy
        if hashlib.sha256(path.read_bytes()).hexdigest() != _SHA256:
            told = f"{path} is not the file of version {VERSION}: sha256 {_SHA256}"
            return f"{remedy} --reinstall-package {PACKAGE} ({told})"
        return None


TASK_FILE = TaskFile()


@cache
def tasks() -> Mapping[int, Task]:
    """All 812; raises `MissingDependency` without them."""
    path, missing = TASK_FILE.path(), TASK_FILE.find_remedy()
    if path is None or missing is not None:
        raise MissingDependency(f"environment 'webarena' needs {TASK_FILE.name}; {missing}")
    return read_tasks(path)
