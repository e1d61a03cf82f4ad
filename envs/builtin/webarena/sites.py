"""Where WebArena's sites are: addresses on this network, and the names under which a policy knows them.

A policy is shown `http://onestopmarket.com/…` wherever the shop is served, as on WebArena's side, and may
write either. The addresses of the benchmark's sites come from the environment: `WA_SHOPPING` as in
BrowserGym, or `SHOPPING` as in WebArena, and so on for each.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from envs.errors import MissingDependency, to_line

PUBLIC = {
    "reddit": "http://reddit.com",
    "shopping": "http://onestopmarket.com",
    "shopping_admin": "http://luma.com/admin",
    "gitlab": "http://gitlab.com",
    "wikipedia": "http://wikipedia.org",
    "map": "http://openstreetmap.org",
    "homepage": "http://homepage.com",
}
"""Site → the address that a policy is shown, as in WebArena."""
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Sites:
    """The addresses of a set of sites."""

    urls: Mapping[str, str]
    """Site → where it is served, without a slash at the end."""
    public: Mapping[str, str]
    """Site → what a policy is shown instead."""

    def filled(self, text: str) -> str:
        """`text` with addresses in the place of `__SITE__`. Raises `KeyError` for a site that is not here."""
        for site, url in self.urls.items():
            text = text.replace(f"__{site.upper()}__", url)
        return text

    def shown(self, url: str) -> str:
        """An address as a policy sees it."""
        for ours, theirs in self._pairs():
            if url == ours or url.startswith((f"{ours}/", f"{ours}?", f"{ours}#")):
                return theirs + url[len(ours) :]
        return url

    def meant(self, url: str) -> str:
        """The address that a policy means by `url`."""
        for ours, theirs in self._pairs():
            for known in (theirs, theirs.replace("http://", "https://"), theirs.replace("http://", "")):
                if url == known or url.startswith((f"{known}/", f"{known}?", f"{known}#")):
                    return ours + url[len(known) :]
        return url

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Ours and theirs, the longest of ours first: one site may be a folder of another."""
        for site in sorted(self.urls, key=lambda site: -len(self.urls[site])):
            yield self.urls[site], self.public.get(site, self.urls[site])


def sites() -> Sites:
    """The benchmark's, from the environment. Raises `MissingDependency` for what is not named there."""
    named = _named()
    missing = sorted(PUBLIC.keys() - named.keys())
    if missing:
        raise MissingDependency(f"environment 'webarena' needs its sites; {_remedy(missing)}")
    return Sites(named, PUBLIC)


class SitesAnswer:
    """The benchmark's sites, as a requirement: named in the environment, and serving."""

    name = "WebArena's sites"

    def find_remedy(self) -> str | None:
        """See `Requirement`."""
        named = _named()
        if unnamed := sorted(PUBLIC.keys() - named.keys()):
            return _remedy(unnamed)
        with ThreadPoolExecutor(len(named)) as pool:
            told = zip(named, pool.map(answers, named.values()), strict=True)
            silent = {site: said for site, said in told if said}
        if silent:
            return "start " + ", ".join(f"{site} ({named[site]}: {said})" for site, said in silent.items())
        return None


SITES_ANSWER = SitesAnswer()


def answers(url: str) -> str | None:
    """None if something serves HTTP at `url`; else in a few words what went wrong."""
    try:
        response = httpx.get(url, timeout=ANSWER_S, follow_redirects=True, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return to_line(error, limit=100)
    return f"HTTP {response.status_code}" if response.status_code >= 500 else None


def _named() -> dict[str, str]:
    found = {site: os.environ.get(f"WA_{site.upper()}") or os.environ.get(site.upper()) for site in PUBLIC}
    return {site: url.rstrip("/") for site, url in found.items() if url}


def _remedy(unnamed: list[str]) -> str:
    variables = " ".join(f"WA_{site.upper()}=http://…" for site in unnamed)
    return f"export {variables} (docs/webarena.md); webarena-local brings sites of its own"
