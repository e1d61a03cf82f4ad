"""Every error that Wingspan raises on purpose, and what each one means for a run.

    WingspanError              a user can act on the message: value, place, remedy
    ├── ConfigError            wrong input, found before anything expensive starts
    │   └── DamagedFile        a file of a run does not have its form any more
    ├── MissingDependency      something is not installed or not downloaded; names the command
    ├── BudgetSpent            a spending limit of the user is reached; the run ends and can be resumed
    └── EpisodeFault           an episode ended for a reason that is not the policy's
        ├── EnvCrashed         the environment raised, died or returned an invalid value
        ├── EpisodeTimeout     a time limit of the episode or of one step passed
        ├── SamplerFailed      the sampler produced no completion
        ├── SearchFailed       a retriever or a web search gave no answer
        ├── RewardFailed       the reward of a finished episode could not be computed
        └── ProgramFailed      a user's agent program raised, or returned no reward

A `ConfigError`, `MissingDependency` or `BudgetSpent` ends the command with one line and a non-zero exit
status. An `EpisodeFault` is data: the episode is retried on a fresh environment, then dropped, and its cause
counted. It never becomes a reward. A malformed *action* is not an error: an observation reports it to the
policy.
"""

import difflib
import re
import sysconfig
from collections.abc import Iterable, Sequence
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType

from envs.redaction import redact

_REASON_CHARS = 200
_ABSOLUTE_PATH = re.compile(r"(?<=')(?:/[^/'\n]+){2,}|(?<![\w:/.~-])(?:/[^/\s'\":;,()<>]+){2,}")
"""Of two parts at least, with spaces only within quotes; no URL."""
_ROOT = Path(__file__).parents[1]
_USERS = _ROOT / "agents" / "custom"
"""The only folder of the packages of this project whose code is a user's."""
_PROJECT = tuple(f"{_ROOT / package}/" for package in ("envs", "agents", "tasks", "flows"))
_INSTALLED = ("/site-packages/", "/dist-packages/", f"{sysconfig.get_path('stdlib')}/")


class WingspanError(Exception):
    """Base class; the text is one line that names the value, the place and the remedy, without secrets."""

    def __init__(self, text: str = "", *, reason: str | None = None) -> None:
        """`reason`: the text without the file and line of a user's code; None if it has none."""
        super().__init__(text)
        self._reason = reason

    def __str__(self) -> str:
        return redact(super().__str__())

    @property
    def reason(self) -> str:
        """For remote clients, which are not to learn where the files of a server are."""
        return str(self) if self._reason is None else redact(self._reason)


class ConfigError(WingspanError):
    """A user's input is invalid."""


class DamagedFile(ConfigError):
    """A file that a run has written does not have its form any more; a list names it and goes on."""


class MissingDependency(WingspanError):
    """A package, program or data set is missing; the text names the command that installs it."""


class BudgetSpent(WingspanError):
    """A spending limit of the user is reached; the text names it."""


class EpisodeFault(WingspanError):
    """An episode could not finish, through no fault of the policy."""


class EnvCrashed(EpisodeFault):
    """The environment raised an exception, its process died, or it returned an invalid value."""


class EpisodeTimeout(EpisodeFault):
    """The episode, or one step of it, took longer than its limit in seconds."""


class SamplerFailed(EpisodeFault):
    """The sampler raised instead of answering with a completion."""


class SearchFailed(EpisodeFault):
    """A retriever or web search endpoint gave no usable answer, retries included."""


class RewardFailed(EpisodeFault):
    """A reward raised, exceeded its limit in seconds, or returned an invalid value."""


class ProgramFailed(EpisodeFault):
    """An agent program (`tasks/rollout/programs.py`) raised, or returned an invalid reward."""


def unknown_item(env: str, index: int, *, count: int) -> ConfigError:
    """Return the error for number `index` of an environment with items 0 to `count` - 1."""
    return ConfigError(f"{env} has {count} items, {env}_0 to {env}_{count - 1}; there is no '{env}_{index}'")


def check_index(env: str, index: int, *, count: int) -> None:
    """Raise `ConfigError` unless an environment with `count` items has number `index`."""
    if not 0 <= index < count:
        raise unknown_item(env, index, count=count)


def describe(error: BaseException) -> str:
    """Return e.g. `KeyError: 'x'`, on one line and without secrets."""
    return to_line(f"{type(error).__name__}: {error}")


def describe_with_place(error: BaseException, *, limit: int | None = None) -> str:
    """`describe`, cut to `limit` characters, and the innermost line of a user's code that raised `error`, if
    any did: `KeyError: 'x' (mine/env.py:31)`. For the caller that has caught it."""
    place = find_users_place(error)
    return describe(error)[:limit] + (f" ({place})" if place else "")


def text_with_place(error: Exception) -> str:
    """Return the message of a `WingspanError`, which names its place, else `describe_with_place`."""
    return str(error) if isinstance(error, WingspanError) else describe_with_place(error)


def find_users_place(error: BaseException) -> str:
    """File and line of the innermost frame of a user's code that raised `error`, else of its causes, the
    nearest first; empty without any. The frame that has caught `error` is left out."""
    visited: set[int] = set()  # a user's code may make an exception its own cause
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        frames = walk_tb(cause.__traceback__ and cause.__traceback__.tb_next)
        places = [(Path(frame.f_code.co_filename), line) for frame, line in frames]
        if users := [(file, line) for file, line in places if _is_users(file)]:
            file, line = users[-1]
            return f"{_shorten(file)}:{line}"
        cause = cause.__cause__
    return ""


def find_running_place(frame: FrameType) -> str:
    """File and line of the innermost frame of a user's code among `frame` and its callers in the task that an
    event loop runs; empty without any."""
    for caller, line in walk_stack(frame):
        if caller.f_code.co_name == "_run_once":  # who started the loop waits for it
            break
        file = Path(caller.f_code.co_filename)
        if _is_users(file):
            return f"{_shorten(file)}:{line}"
    return ""


def _shorten(file: Path) -> Path:
    """Relative to the working directory, if it is in there."""
    try:
        folder = Path.cwd()
    except OSError:  # the directory was deleted
        return file
    return file.relative_to(folder) if file.is_relative_to(folder) else file


def _is_users(file: Path) -> bool:
    """Whether it is neither part of Python, nor of an installed package, nor of this project."""
    name = str(file)
    is_installed = name.startswith("<") or any(folder in name for folder in _INSTALLED)
    return not is_installed and (file.is_relative_to(_USERS) or not name.startswith(_PROJECT))


def hide_folders(text: str) -> str:
    """`text` with the name alone of each file that it gives with an absolute path."""
    return _ABSOLUTE_PATH.sub(lambda match: match[0].rpartition("/")[2], text)


def to_line(text: object, *, limit: int | None = None) -> str:
    """Return `str(text)` on one line, without secrets, cut to `limit` characters; what UTF-8 cannot encode is
    replaced."""
    return redact(" ".join(str(text).split())).encode(errors="replace").decode()[:limit]


class boundary:  # in lower case, as contextlib's; a class, because a generator is slow in every turn
    """Convert an exception of foreign code in the block into `fault`: `<subject> raised KeyError: 'x'`, with
    the line of a user's code (`describe_with_place`).

    So is `SystemExit`, which ends the foreign code, not this program. A `WingspanError` passes through, as
    do cancellation, Ctrl-C and the classes in `passes`. Before a `remedy`, with which the text then ends, the
    exception's text is cut.
    """

    __slots__ = ("_fault", "_passes", "_remedy", "_subject")

    def __init__(
        self,
        fault: type[WingspanError],
        subject: str,
        *,
        remedy: str | None = None,
        passes: tuple[type[Exception], ...] = (),
    ) -> None:
        self._fault = fault
        self._subject = subject
        self._remedy = remedy
        self._passes: tuple[type[Exception], ...] = (WingspanError, *passes)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception | SystemExit) and not isinstance(error, self._passes):
            limit, end = (None, "") if self._remedy is None else (_REASON_CHARS, f"; {self._remedy}")
            raise self._fault(
                f"{self._subject} raised {describe_with_place(error, limit=limit)}{end}",
                reason=f"{self._subject} raised {describe(error)[:limit]}{end}",
            ) from error


def show(value: object) -> str:
    """E.g. `a str, 'no'`, cut to a readable length."""
    return f"a {type(value).__name__}, {repr(value)[:80]}"


def list_names(names: Sequence[str], *, limit: int = 8) -> str:
    """`a, b, c and 4 more`: the first `limit` of `names`; `none` without any."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest or "none"


def suggest(
    name: str, candidates: Iterable[str], *, limit: int = 1, prefix: str = "", suffix: str = ""
) -> str:
    """Return `did you mean 'x'? ` for the `limit` candidates closest to `name`; empty if none is close.

    Each is written between `prefix` and `suffix`, which are not compared.
    """
    nearest = difflib.get_close_matches(name, [*candidates], n=limit)
    names = ", ".join(repr(f"{prefix}{candidate}{suffix}") for candidate in nearest)
    return f"did you mean {names}? " if names else ""
