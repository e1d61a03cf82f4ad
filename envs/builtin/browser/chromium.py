"""One running Chromium, driven by Playwright and shared by many episodes, each in its own context.

A Chromium is Playwright's driver (a Node process) and the browser that it started: one unit of failure. Each
context is opened with the origins that it may reach. Chromium's network service enforces that: requests to
other origins go to a proxy that does not exist. This covers redirects, WebSockets, frames and workers, costs
no round trip, and cannot be changed by a page. The browser as a whole uses the same proxy, so its own
background requests do not leave the machine either.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from envs.builtin.browser.program import CHROMIUM, LAUNCHER, probe_isolation
from envs.errors import EnvCrashed, MissingDependency

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Playwright, StorageState

VIEWPORT = (1280, 720)
"""Width and height in pixels, as WebArena's."""
DEAD_PROXY = "http://127.0.0.1:9"
"""The discard port, on which nothing listens."""
LAUNCH_TIMEOUT_S, CLOSE_TIMEOUT_S = 60.0, 10.0

FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-domain-reliability",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
    "--metrics-recording-only",
    f"--proxy-server={DEAD_PROXY}",
    "--proxy-bypass-list=<-loopback>",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--js-flags=--max-old-space-size=256",
)


class Chromium:
    """A running browser; created by `start`."""

    def __init__(self, playwright: "Playwright", browser: "Browser") -> None:
        self._playwright = playwright
        self._browser = browser

    @classmethod
    async def start(cls) -> "Chromium":
        """Start the driver and the browser; 1 to 2 s. Raises `MissingDependency` or `EnvCrashed`."""
        path = CHROMIUM.path()
        if path is None:
            raise MissingDependency(f"Chromium is not installed; {CHROMIUM.find_remedy()}")
        from playwright.async_api import Error, async_playwright

        playwright = await async_playwright().start()
        try:
            browser = await playwright.chromium.launch(
                executable_path=LAUNCHER,
                chromium_sandbox=probe_isolation().sandbox,
                args=list(FLAGS),
                timeout=LAUNCH_TIMEOUT_S * 1000,
                handle_sigint=False,
                handle_sigterm=False,
                handle_sighup=False,
                env={
                    "PATH": os.environ.get("PATH", os.defpath),
                    "WINGSPAN_CHROMIUM": str(path.resolve()),
                    "WINGSPAN_BUBBLEWRAP": str(int(probe_isolation().bubblewrap)),
                },
            )
        except BaseException as error:
            await playwright.stop()
            if isinstance(error, Error):
                raise EnvCrashed(f"Chromium failed to start: {first_line(error)}") from error
            raise
        return cls(playwright, browser)

    @property
    def is_alive(self) -> bool:
        """False once the browser or its driver has ended."""
        return self._browser.is_connected()

    async def context(
        self, *, origins: Sequence[str], storage_state: "StorageState | None" = None
    ) -> "BrowserContext":
        """Open a context that reaches `origins` (`http://host:port`) and nothing else."""
        from playwright.async_api import Error

        width, height = VIEWPORT
        try:
            async with abort_on_death(self._browser, limit_s=LAUNCH_TIMEOUT_S):
                return await self._browser.new_context(
                    viewport={"width": width, "height": height},
                    device_scale_factor=1,
                    locale="en-US",
                    timezone_id="UTC",
                    reduced_motion="reduce",
                    permissions=[],
                    service_workers="block",
                    accept_downloads=False,
                    storage_state=storage_state,
                    proxy={"server": DEAD_PROXY, "bypass": ",".join(map(origin_of, origins))},
                )
        except (Error, TimeoutError) as error:
            raise EnvCrashed(f"Chromium cannot open a context: {explain(self._browser, error)}") from error

    async def close(self) -> None:
        """End the browser and its driver, by force if necessary."""
        with suppress(Exception):  # the browser has died, or hangs: its driver kills it
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._browser.close()
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._playwright.stop()


@asynccontextmanager
async def abort_on_death(browser: "Browser", *, limit_s: float) -> AsyncIterator[None]:
    """Raise `TimeoutError` within after `limit_s` seconds, or as soon as `browser` dies: Playwright may never
    answer a request that was under way then."""

    def abort(_: "Browser") -> None:
        if not clock.expired():
            clock.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(limit_s) as clock:
        browser.on("disconnected", abort)
        try:
            if not browser.is_connected():
                abort(browser)
            yield
        finally:
            browser.remove_listener("disconnected", abort)


def explain(browser: "Browser", error: BaseException) -> str:
    """The cause of an error that `abort_on_death` raised or let through."""
    return first_line(error) if browser.is_connected() else "it has died"


def origin_of(url: str) -> str:
    """`http://host:port` of a URL, default ports included."""
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{port}"


def first_line(error: BaseException) -> str:
    """The message of an error of Playwright, without its call log."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
