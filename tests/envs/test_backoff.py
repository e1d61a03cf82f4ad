"""How often `Backoff` attempts what fails, as a function and as a coroutine; it waits for no time here."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from envs.network.client import Backoff, TryAgain

BACKOFF = Backoff(max_attempts=3, first_s=0.0)


def retry_sync(attempt: Callable[[], str]) -> str:
    return BACKOFF.retry_sync(attempt)


def retry(attempt: Callable[[], str]) -> str:
    async def attempt_async() -> str:
        return attempt()

    return asyncio.run(BACKOFF.retry(attempt_async))


def script(outcomes: Sequence[TryAgain | str]) -> Callable[[], str]:
    """Attempts that have these outcomes, one after the other."""
    rest = list(outcomes)

    def attempt() -> str:
        outcome = rest.pop(0)
        if isinstance(outcome, TryAgain):
            raise outcome
        return outcome

    return attempt


def failure(number: int, *, has_progressed: bool = False) -> TryAgain:
    return TryAgain(f"failure {number}", has_progressed=has_progressed)


METHODS = pytest.mark.parametrize("method", [retry, retry_sync])


@METHODS
def test_the_last_attempt_may_succeed(method: Callable[[Callable[[], str]], str]) -> None:
    assert method(script([failure(1), failure(2), "a result", "another"])) == "a result"


@METHODS
def test_the_last_failure_is_raised(method: Callable[[Callable[[], str]], str]) -> None:
    with pytest.raises(TryAgain, match="failure 3"):
        method(script([failure(1), failure(2), failure(3), "a result"]))


@METHODS
def test_failures_before_one_with_progress_do_not_count(method: Callable[[Callable[[], str]], str]) -> None:
    progress = failure(3, has_progressed=True)
    assert method(script([failure(1), failure(2), progress, failure(4), "a result"])) == "a result"
    with pytest.raises(TryAgain, match="failure 5"):
        method(script([failure(1), failure(2), progress, failure(4), failure(5), "a result"]))
