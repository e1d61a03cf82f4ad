"""Logins of the benchmark's sites: who is logged in, and the storage states that keep it.

    python -m envs.builtin.webarena.login

logs in to each site through its form and writes `<site>_state.json` into `$WEBARENA_LOGINS` (by default
`webarena_logins`): cookies and storage, as Playwright keeps them. Episodes start from these files. Sessions
of the real sites end after some hours or days; then it is run again. The accounts are those that WebArena
publishes.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.builtin.webarena.sites import Sites, sites
from envs.errors import ConfigError, MissingDependency

if TYPE_CHECKING:
    from playwright.async_api import Page, StorageState

ACCOUNTS: Mapping[str, Mapping[str, str]] = {
    "reddit": {"username": "MarvelsGrantMan136", "password": "test1234"},
    "gitlab": {"username": "byteblaze", "password": "hello1234"},
    "shopping": {"username": "emma.lopez@gmail.com", "password": "Password.123"},
    "shopping_admin": {"username": "admin", "password": "admin1234"},
}
_FORMS: Mapping[str, tuple[str, str, str, str]] = {
    "reddit": ("/login", "Username", "Password", "Log in"),
    "gitlab": ("/users/sign_in", "Username or email", "Password", "Sign in"),
    "shopping": ("/customer/account/login/", "Email", "Password", "Sign In"),
    "shopping_admin": ("", "Username", "Password", "Sign in"),
}
"""Site → path of its form, labels of its two fields, name of its button."""
COMMAND = "python -m envs.builtin.webarena.login"


def folder() -> Path:
    """Where the files are."""
    return Path(os.environ.get("WEBARENA_LOGINS", "webarena_logins"))


def storage_state(logins: Sequence[str]) -> "StorageState | None":
    """The one state of several sites, which have different hosts or cookies; None for none. Raises
    `MissingDependency` for a file that is not there, `ConfigError` for one that is none."""
    if not logins:
        return None
    states = [_read(site) for site in logins]
    return {
        "cookies": [cookie for state in states for cookie in state["cookies"]],
        "origins": [origin for state in states for origin in state["origins"]],
    }


def _read(site: str) -> Mapping[str, Any]:
    path = folder() / f"{site}_state.json"
    if not path.exists():
        raise MissingDependency(f"{path} is not there, the login of {site}; {COMMAND}")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {"cookies": list(state["cookies"]), "origins": list(state.get("origins", ()))}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no storage state of Playwright ({error}); {COMMAND}") from None


class LoggedIn:
    """The files, as a requirement."""

    name = "WebArena's logins"

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        missing = [site for site in ACCOUNTS if not (folder() / f"{site}_state.json").exists()]
        return f"{COMMAND} ({', '.join(missing)}: no file in {folder()})" if missing else None


LOGGED_IN = LoggedIn()


async def log_in(where: Sites, *, to: Sequence[str], into: Path) -> None:
    """Log in to sites and write their states; raises `ConfigError` where a site does not take the account."""
    from envs.browser.seats import Seat
    from envs.browser.session import Session

    into.mkdir(parents=True, exist_ok=True)
    seat = await Seat.take()
    try:
        for site in to:
            path, user_label, password_label, button = _FORMS[site]
            url = where.urls[site]
            session = await Session.open(seat.chromium, origins=[url], urls=[url + path])
            try:
                await _fill(session.page, (user_label, password_label, button), ACCOUNTS[site])
                await session.quiet()
                if await session.page.get_by_label(password_label, exact=True).count():
                    raise ConfigError(
                        f"{site} ({url}) does not take WebArena's account {ACCOUNTS[site]['username']!r}"
                    )
                state = await session.context.storage_state()
                (into / f"{site}_state.json").write_text(json.dumps(state))
            finally:
                await session.close()
    finally:
        await seat.leave()


async def _fill(page: "Page", form: tuple[str, str, str], account: Mapping[str, str]) -> None:
    user_label, password_label, button = form
    await page.get_by_label(user_label, exact=True).fill(account["username"])
    await page.get_by_label(password_label, exact=True).fill(account["password"])
    await page.get_by_role("button", name=button).first.click()


if __name__ == "__main__":
    asyncio.run(log_in(sites(), to=list(ACCOUNTS), into=folder()))
