"""How long one call of a reward may take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class TooSlow(Exception):
    """A call took longer than its limit; unlike `TimeoutError`, which may be the called function's own."""


@asynccontextmanager
async def time_limit(timeout_s: float | None) -> AsyncIterator[None]:
    """Cut short what takes longer than `timeout_s` seconds, by `TooSlow`; None is for ever."""
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise TooSlow(f"it took longer than {timeout_s:g} s; raise its timeout_s") from None
