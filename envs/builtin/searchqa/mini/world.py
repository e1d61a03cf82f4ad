"""The facts of `searchqa-mini`, and the passages that state them.

The facts are real and come from two packages under the MIT licence: `airportsdata` (airports with an IATA
code: name, city, country, elevation) and `countryinfo` (countries: capital, currency, and so on). Each
airport and each country has one passage of a line or two.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Country:
    """A country; `facts` has only relations with a single value."""

    code: str
    name: str
    facts: Mapping[str, str]
    """Relation → value, e.g. `{"capital": "Reykjavik", "currency": "ISK"}`."""


@dataclass(frozen=True, slots=True)
class Airport:
    """An airport, named by its IATA code."""

    code: str
    name: str
    city: str
    country: Country
    feet: int
    """The height in feet above sea level."""


RELATIONS = {
    "capital": "capital",
    "currency": "currencies",
    "domain": "tld",
    "calling code": "callingCodes",
    "demonym": "demonym",
    "region": "subregion",
}
"""A relation's name → `countryinfo`'s."""


@dataclass(frozen=True)
class World:
    """All countries and airports."""

    countries: Sequence[Country]
    airports: Sequence[Airport]

    def passages(self) -> Iterator[tuple[str, str]]:
        """(id, contents as in wiki-18) of countries and airports in random order."""
        passages = [(f"country-{country.code}", country_passage(country)) for country in self.countries]
        passages += [(f"airport-{airport.code}", airport_passage(airport)) for airport in self.airports]
        random.Random("searchqa-mini/passages").shuffle(passages)
        return iter(passages)

    @cached_property
    def airports_of(self) -> Mapping[str, Sequence[Airport]]:
        """Code of a country → its airports."""
        return {
            country.code: [airport for airport in self.airports if airport.country is country]
            for country in self.countries
        }

    @cached_property
    def names(self) -> Counter[str]:
        """How many airports have each name."""
        return Counter(airport.name for airport in self.airports)


def country_passage(country: Country) -> str:
    """`"Iceland"` and below it: `Iceland is a country in Northern Europe. Its capital is Reykjavik. …`"""
    facts = country.facts
    where = f" in {facts['region']}" if "region" in facts else ""
    rest = " ".join(f"Its {name} is {value}." for name, value in facts.items() if name != "region")
    return f'"{country.name}"\n{country.name} is a country{where}. {rest}'.strip()


def airport_passage(airport: Airport) -> str:
    """`"Akureyri Airport"` and below it: `AEY is the airport of Akureyri in Iceland, 6 feet high.`"""
    return (
        f'"{airport.name}"\n{airport.code} is an airport of {airport.city} in {airport.country.name}, '
        f"{airport.feet} feet high."
    )


def load_world() -> World:
    """Read the installed packages; values that are not plain ASCII are left out."""
    import airportsdata
    from countryinfo import CountryInfo
    from countryinfo.exceptions import CountryNotFoundError

    table = airportsdata.load("IATA")
    countries: dict[str, Country] = {}
    for code in sorted({row["country"] for row in table.values()}):
        try:
            info = CountryInfo(code).info()
        except CountryNotFoundError:
            continue
        name = _clean(info["name"])
        if name:
            countries[code] = Country(code, name, _facts(info))
    airports = [
        Airport(
            code, row["name"].strip(), row["city"].strip(), countries[row["country"]], int(row["elevation"])
        )
        for code, row in sorted(table.items())
        if row["country"] in countries and _is_name(row["name"]) and _is_place(row["city"])
    ]
    return World(list(countries.values()), airports)


def _facts(info: Mapping[str, object]) -> dict[str, str]:
    facts = {}
    for name, key in RELATIONS.items():
        value = info.get(key)
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else None
        text = _clean(value)
        if text:
            facts[name] = text
    return facts


def _is_name(name: str) -> bool:
    """Exclude slips such as `X Airport Airport`, which a search for any airport would find."""
    return bool(_clean(name)) and name.lower().count("airport") < 2


def _is_place(city: str) -> bool:
    """Exclude rows that name the airport instead of its city, for the same reason."""
    return bool(_clean(city)) and "airport" not in city.lower()


def _clean(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    return text if text.isascii() and text.isprintable() and '"' not in text else ""
