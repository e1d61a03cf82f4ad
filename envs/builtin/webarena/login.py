"""Logins of the benchmark's sites, saved as storage states of Playwright (cookies and storage).

    python -m envs.builtin.webarena.login

logs in to each site through its form and writes `<site>_state.json` into `$WEBARENA_LOGINS` (by default
`webarena_logins`). Episodes start from these files. Sessions of the real sites expire after hours or days;
then run the command again. The accounts are those that WebArena publishes.
"""

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envs.builtin.browser.leases import BrowserLease
from envs.builtin.browser.session import BrowserSession
from envs.builtin.webarena.sites import Sites, load_sites
from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import CheckedRequirement

if TYPE_CHECKING:
    from playwright.async_api import Page, StorageState

ACCOUNTS: Mapping[str, Mapping[str, str]] = {
    "reddit": {"username": "MarvelsGrantMan136", "password": "test1234"},
    "gitlab": {"username": "byteblaze", "password": "hello1234"},
    "shopping": {"username": "emma.lopez@gmail.com", "password": "Password.123"},
    "shopping_admin": {"username": "admin", "password": "admin1234"},
}
FORMS: Mapping[str, tuple[str, str, str, str]] = {
    "reddit": ("/login", "Username", "Password", "Log in"),
    "gitlab": ("/users/sign_in", "Username or email", "Password", "Sign in"),
    "shopping": ("/customer/account/login/", "Email", "Password", "Sign In"),
    "shopping_admin": ("", "Username", "Password", "Sign in"),
}
"""Site → path of its form, labels of its two fields, name of its button."""
COMMAND = "python -m envs.builtin.webarena.login"


def states_folder() -> Path:
    """The folder of the files."""
    return Path(os.environ.get("WEBARENA_LOGINS", "webarena_logins"))


def storage_state(logins: Sequence[str]) -> "StorageState | None":
    """Merge the states of several sites, which differ in host or cookie names; None for no sites. Raises
    `MissingDependency` for a missing file, `ConfigError` for a malformed one."""
    if not logins:
        return None
    states = [_read(site) for site in logins]
    return {
        "cookies": [cookie for state in states for cookie in state["cookies"]],
        "origins": [origin for state in states for origin in state["origins"]],
    }


def _read(site: str) -> Mapping[str, Any]:
    path = states_folder() / f"{site}_state.json"
    if not path.exists():
        raise MissingDependency(f"{path} is missing, the login of {site}; run: {COMMAND}")
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {"cookies": list(state["cookies"]), "origins": list(state.get("origins", ()))}
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no storage state of Playwright ({error}); run: {COMMAND}") from None


def _find_remedy() -> str | None:
    missing = [site for site in ACCOUNTS if not (states_folder() / f"{site}_state.json").exists()]
    return f"{COMMAND} ({', '.join(missing)}: no file in {states_folder()})" if missing else None


LOGGED_IN = CheckedRequirement("WebArena's logins", _find_remedy)


async def log_in(sites: Sites, *, names: Sequence[str], folder: Path) -> None:
    """Log in to the named sites and write their states; raises `ConfigError` if one rejects the account."""
    folder.mkdir(parents=True, exist_ok=True)
    lease = await BrowserLease.acquire()
    try:
        for site in names:
            path, user_label, password_label, button = FORMS[site]
            url = sites.urls[site]
            session = await BrowserSession.open(lease.chromium, origins=[url], urls=[url + path])
            try:
                await _fill(session.page, (user_label, password_label, button), ACCOUNTS[site])
                await session.settle()
                if await session.page.get_by_label(password_label, exact=True).count():
                    raise ConfigError(
                        f"{site} ({url}) rejects WebArena's account {ACCOUNTS[site]['username']!r}"
                    )
                state = await session.context.storage_state()
                (folder / f"{site}_state.json").write_text(json.dumps(state))
            finally:
                await session.close()
    finally:
        await lease.release()


async def _fill(page: "Page", form: tuple[str, str, str], account: Mapping[str, str]) -> None:
    user_label, password_label, button = form
    await page.get_by_label(user_label, exact=True).fill(account["username"])
    await page.get_by_label(password_label, exact=True).fill(account["password"])
    await page.get_by_role("button", name=button).first.click()


if __name__ == "__main__":
    asyncio.run(log_in(load_sites(), names=list(ACCOUNTS), folder=states_folder()))
