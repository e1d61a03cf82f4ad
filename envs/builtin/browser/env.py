"""What environments in a browser share: a leased Chromium, and one session at a time in it."""

from envs.builtin.browser.chromium import Chromium
from envs.builtin.browser.leases import BrowserLease
from envs.builtin.browser.session import BrowserSession


class BrowserEnv:
    """Holds a lease until it is closed, and the session of the current episode."""

    def __init__(self) -> None:
        self._lease: BrowserLease | None = None
        self._session: BrowserSession | None = None

    @property
    def is_alive(self) -> bool:
        """False once the browser or the current session has failed."""
        has_lease = self._lease is None or self._lease.is_alive
        return has_lease and (self._session is None or self._session.is_alive)

    async def prepare(self) -> None:
        """Lease a browser, unless this environment already has one."""
        await self._lease_browser()

    async def close(self) -> None:
        """End the session and release the browser."""
        try:
            await self._end_session()
        finally:  # also if the caller gives up on a session that does not end
            lease, self._lease = self._lease, None
            if lease is not None:
                await lease.release()

    async def _lease_browser(self) -> Chromium:
        if self._lease is None:
            self._lease = await BrowserLease.acquire()
        return self._lease.chromium

    async def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()
