"""The sites' accounts, their session cookies, and the date on which every episode begins."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
"""When every episode begins, a Monday: relative dates on the pages are the same each time."""
PASSWORD = "harbour-2026"
"""The password of every account (`docs/webarena-local.md`)."""


@dataclass(frozen=True, slots=True)
class Person:
    """An account, the same on the shop, the forum and the forge."""

    username: str
    first_name: str
    last_name: str

    @property
    def email(self) -> str:
        """The login name in the shop."""
        return f"{self.username}@example.com"

    @property
    def full_name(self) -> str:
        return f"{self.first_name} {self.last_name}"


EMMA = Person("emma", "Emma", "Lopez")
"""The user who is logged in to the shop, the forum and the forge."""
EDITOR = Person("editor", "Edda", "Torres")
"""The user who is logged in to the CMS."""
OTHER_PEOPLE = (
    Person("bjorn", "Bjorn", "Dahl"),
    Person("chidi", "Chidi", "Okafor"),
    Person("dana", "Dana", "Whitfield"),
    Person("farid", "Farid", "Rahimi"),
    Person("greta", "Greta", "Lindqvist"),
    Person("hiro", "Hiro", "Tanaka"),
    Person("ines", "Ines", "Carvalho"),
    Person("jonas", "Jonas", "Weber"),
    Person("kavya", "Kavya", "Menon"),
    Person("liam", "Liam", "Gallagher"),
    Person("mei", "Mei", "Zhang"),
    Person("nora", "Nora", "Petrov"),
)


def days_ago(days: float) -> datetime:
    return NOW - timedelta(days=days)


@dataclass(frozen=True, slots=True)
class Cookie:
    """The login of a site's user: seeded with the sites, so that no episode fills in a login form."""

    name: str
    value: str


COOKIES = {
    "shop": Cookie("shop_session", "emmaattheshop0000000000000000000"),
    "forum": Cookie("forum_session", "emmaattheforum000000000000000000"),
    "forge": Cookie("trac_auth", "emma-at-the-forge-5d41402abc4b2a76"),
    "cms": Cookie("cms_session", "editoratthecms000000000000000000"),
}
"""The names of cookies by site. Names differ because all sites have one host, and a browser's cookies do not
know ports."""
