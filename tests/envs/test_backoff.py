"""How often and when `Backoff` attempts what fails, as a function and as a coroutine; it never waits here."""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from envs.network.client import Backoff, TryAgain

BACKOFF = Backoff(max_attempts=3, first_s=0.0)


def retry_sync(attempt: Callable[[], str], *, backoff: Backoff = BACKOFF) -> str:
    return backoff.retry_sync(attempt)


def retry(attempt: Callable[[], str], *, backoff: Backoff = BACKOFF) -> str:
    async def attempt_async() -> str:
        return attempt()

    return asyncio.run(backoff.retry(attempt_async))


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


@METHODS
def test_a_wait_is_as_long_after_a_slow_attempt(
    method: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(wait_s: float) -> None:
        waits.append(wait_s)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(time, "sleep", waits.append)
    attempt = script([failure(1), failure(2), TryAgain("busy", wait_s=7.0), failure(4), "a result"])
    backoff = Backoff(max_attempts=5, first_s=1.0, max_s=6.0)
    assert method(attempt, backoff=backoff) == "a result"
    assert waits == [1.0, 2.0, 6.0, 6.0]


@METHODS
@pytest.mark.parametrize(
    ("attempt_s", "begins"), [(0.0, [0, 1, 3, 7, 15, 30, 45, 60]), (5.0, [0, 6, 13, 22, 35, 55]), (70.0, [0])]
)
def test_no_attempt_begins_after_the_total_time(
    method: Callable[..., str], monkeypatch: pytest.MonkeyPatch, attempt_s: float, begins: list[float]
) -> None:
    """Attempts to reach servers that refuse at once, time out, and answer slowly."""
    now = 100.0
    starts: list[float] = []

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def sleep(wait_s: float) -> None:
        pass_time(wait_s)

    def attempt() -> str:
        starts.append(now - 100.0)
        pass_time(attempt_s)
        raise failure(len(starts))

    monkeypatch.setattr(asyncio, "sleep", sleep)
    clock = SimpleNamespace(monotonic=lambda: now, sleep=pass_time)
    monkeypatch.setattr("envs.network.client.time", clock)
    with pytest.raises(TryAgain, match=f"failure {len(begins)}"):
        method(attempt, backoff=Backoff(max_attempts=8, first_s=1.0, max_s=15.0, total_s=60.0))
    assert starts == begins
