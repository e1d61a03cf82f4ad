"""Every error that Wingspan raises on purpose, and what each one means for a run.

    WingspanError              a user can act on the message: value, place, remedy
    ├── ConfigError            wrong input, found before anything expensive starts
    ├── MissingDependency      something is not installed or not downloaded; names the command
    ├── BudgetSpent            what a user allowed to be spent is spent; the run ends, and can go on
    └── EpisodeFault           an episode ended for a reason that is not the policy's
        ├── EnvCrashed         the environment raised or died
        ├── EpisodeTimeout     the episode's or one step's time limit passed
        ├── SamplerFailed      no completion could be had
        ├── SearchFailed       a retriever or a web search gave no answer
        ├── RewardFailed       no reward could be had for an episode that was played to its end
        └── ProgramFailed      an agent that is written elsewhere raised, or returned no reward

A `ConfigError`, `MissingDependency` or `BudgetSpent` ends the command with one line and a non-zero exit. An
`EpisodeFault` is data: the episode is retried on a fresh environment, then dropped with its cause
counted. It never becomes a reward. A malformed *action* is no error at all: it is part of play,
and an observation says so.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from envs.redaction import redact


class WingspanError(Exception):
    """Base of all; its text is one line that names the value, the place and the remedy, and no secret."""

    def __str__(self) -> str:
        return redact(super().__str__())


class ConfigError(WingspanError):
    """A value that a user gave cannot be used."""


class MissingDependency(WingspanError):
    """A package, program or data set is absent; the text names the command that fetches it."""


class BudgetSpent(WingspanError):
    """A limit that a user set to what may be spent is reached; the text names it."""


class EpisodeFault(WingspanError):
    """An episode could not be played to its end, through no fault of the policy."""


class EnvCrashed(EpisodeFault):
    """The environment raised an exception or its process died."""


class EpisodeTimeout(EpisodeFault):
    """The episode, or one step of it, took longer than its limit in seconds."""


class SamplerFailed(EpisodeFault):
    """The sampler raised instead of answering with a completion."""


class SearchFailed(EpisodeFault):
    """A retriever, or an endpoint of web searches, gave no usable answer however often it was asked."""


class RewardFailed(EpisodeFault):
    """A reward raised, took longer than its limit in seconds, or gave a value that is none."""


class ProgramFailed(EpisodeFault):
    """An agent's program (`tasks/rollout/programs.py`) raised, or returned what is no reward."""


def unknown_item(env: str, index: int, *, count: int) -> ConfigError:
    """For number `index` of an environment whose items are numbered from 0 to `count` - 1."""
    return ConfigError(f"{env} has {count} items, {env}_0 to {env}_{count - 1}; there is no '{env}_{index}'")


def describe(error: BaseException) -> str:
    """`KeyError: 'x'`, on one line and without secrets."""
    return to_line(f"{type(error).__name__}: {error}")


def to_line(text: object, *, limit: int | None = None) -> str:
    """`str(text)` on one line and without secrets, cut to `limit` characters."""
    return redact(" ".join(str(text).split()))[:limit]


@contextmanager
def boundary(fault: type[WingspanError], subject: str) -> Iterator[None]:
    """Turn any exception of foreign code within into `fault`: `<subject> raised KeyError: 'x'`.

    A `WingspanError` passes through, as do cancellation and other exceptions that are no `Exception`.
    """
    try:
        yield
    except WingspanError:
        raise
    except Exception as error:
        raise fault(f"{subject} raised {describe(error)}") from error


def suggest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? ` for the known name nearest to `name`; empty if none is near."""
    nearest = difflib.get_close_matches(name, [*known], n=1)
    return f"did you mean {nearest[0]!r}? " if nearest else ""
