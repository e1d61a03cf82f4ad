"""The addresses of WebArena's sites: where they are served, and what a policy is shown instead.

As in WebArena, a policy sees `http://onestopmarket.com/…` wherever the shop is served, and may write either
address. Environment variables name the addresses of the benchmark's sites: `WA_SHOPPING` as in BrowserGym, or
`SHOPPING` as in WebArena, and so on for each site.
"""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx

from envs.errors import MissingDependency, to_line
from envs.requirements.detection import CheckedRequirement

PUBLIC = {
    "reddit": "http://reddit.com",
    "shopping": "http://onestopmarket.com",
    "shopping_admin": "http://luma.com/admin",
    "gitlab": "http://gitlab.com",
    "wikipedia": "http://wikipedia.org",
    "map": "http://openstreetmap.org",
    "homepage": "http://homepage.com",
}
"""Site → the address that a policy sees, as in WebArena."""
ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Sites:
    """The addresses of a set of sites."""

    urls: Mapping[str, str]
    """Site → the address where it is served, without a trailing slash."""
    public: Mapping[str, str]
    """Site → the address that a policy sees instead."""

    def fill_in(self, text: str) -> str:
        """Replace each `__SITE__` in `text` by its address."""
        for site, url in self.urls.items():
            text = text.replace(f"__{site.upper()}__", url)
        return text

    def to_public(self, url: str) -> str:
        """The address that a policy sees for `url`."""
        for local, public in self._pairs():
            if _is_below(url, local):
                return public + url[len(local) :]
        return url

    def to_local(self, url: str) -> str:
        """The address that a policy means by `url`."""
        for local, public in self._pairs():
            for spelling in (public, public.replace("http://", "https://"), public.replace("http://", "")):
                if _is_below(url, spelling):
                    return local + url[len(spelling) :]
        return url

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """(local, public) addresses, the longest local one first: a site may be a folder of another."""
        for site in sorted(self.urls, key=lambda site: -len(self.urls[site])):
            yield self.urls[site], self.public.get(site, self.urls[site])


def _is_below(url: str, base: str) -> bool:
    return url == base or url.startswith((f"{base}/", f"{base}?", f"{base}#"))


def load_sites() -> Sites:
    """The benchmark's sites; raises `MissingDependency` if the environment does not name all of them."""
    urls = _read_urls()
    if missing := sorted(PUBLIC.keys() - urls.keys()):
        raise MissingDependency(f"environment 'webarena' needs its sites; {_remedy(missing)}")
    return Sites(urls, PUBLIC)


def _find_sites_remedy() -> str | None:
    urls = _read_urls()
    if missing := sorted(PUBLIC.keys() - urls.keys()):
        return _remedy(missing)
    with ThreadPoolExecutor(len(urls)) as pool:
        problems = dict(zip(urls, pool.map(find_problem, urls.values()), strict=True))
    silent = [f"{site} ({urls[site]}: {problem})" for site, problem in problems.items() if problem]
    return f"start {', '.join(silent)}" if silent else None


SITES_ANSWER = CheckedRequirement("WebArena's sites", _find_sites_remedy)


def find_problem(url: str) -> str | None:
    """The problem in a few words if no server answers at `url`; None if one does."""
    try:
        response = httpx.get(url, timeout=ANSWER_S, follow_redirects=True, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return to_line(error, limit=100)
    return f"HTTP {response.status_code}" if response.status_code >= 500 else None


def _read_urls() -> dict[str, str]:
    urls = {site: os.environ.get(f"WA_{site.upper()}") or os.environ.get(site.upper()) for site in PUBLIC}
    return {site: url.rstrip("/") for site, url in urls.items() if url}


def _remedy(missing: list[str]) -> str:
    variables = " ".join(f"WA_{site.upper()}=http://…" for site in missing)
    return f"export {variables} (docs/webarena.md); webarena-local brings its own sites"
