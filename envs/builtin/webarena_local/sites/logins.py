"""By which cookies the tasks' users are logged in: seeded with the sites, so that no episode fills in a
form."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cookie:
    """One login."""

    name: str
    value: str


COOKIES = {
    "shop": Cookie("shop_session", "emmaattheshop0000000000000000000"),
    "forum": Cookie("forum_session", "emmaattheforum000000000000000000"),
    "forge": Cookie("trac_auth", "emma-at-the-forge-5d41402abc4b2a76"),
    "cms": Cookie("cms_session", "editoratthecms000000000000000000"),
}
"""By site. A browser's cookies know hosts and no ports, and all sites have one host: each has a name of its
own."""
