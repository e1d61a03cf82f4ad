"""Who has accounts on the sites, and the clock that they live by."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
"""When every episode begins, a Monday: pages that say how long ago something was say the same every time."""
PASSWORD = "harbour-2026"
"""Everybody's; see `docs/webarena-local.md`."""


@dataclass(frozen=True, slots=True)
class Person:
    """An account: the same one on the shop, the forum and the forge."""

    username: str
    first_name: str
    last_name: str

    @property
    def email(self) -> str:
        """The shop's login."""
        return f"{self.username}@example.com"

    @property
    def full_name(self) -> str:
        """As articles are signed."""
        return f"{self.first_name} {self.last_name}"


EMMA = Person("emma", "Emma", "Lopez")
"""Whom the tasks are played as on the shop, the forum and the forge."""
EDITOR = Person("editor", "Edda", "Torres")
"""Whom they are played as in the CMS."""
OTHERS = (
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
    """That long before `NOW`."""
    return NOW - timedelta(days=days)
