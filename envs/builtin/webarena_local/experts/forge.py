"""Players of the forge's templates."""

import re

from envs.browser.solver import click, stop, write
from envs.builtin.webarena_local.experts.moves import DOWN, Player, Steps, Values, told


def _ticket(values: Values) -> Steps:
    return [
        click("link", values["project"]),
        write("textbox", "", f"#{values['ticket']}", enter=True),
    ]


def owner(values: Values) -> Steps:
    """As the ticket has it."""
    return [*_ticket(values), told(r"'Owned by:'[^\n]*\n[^\n]*cell '([^']+)'")]


def maintainer(values: Values) -> Steps:
    """As the wiki has it."""
    return [click("link", values["project"]), click("link", "Contributing"), told(r"Ask ([\w ]+), who")]


SUBJECTS = {
    "search index being too large": "Search index is too large",
    "memory leak": "Memory leak in the collector",
    "speed of the label index": "Speed up the label index",
}
"""What a template says → the ticket's summary."""


def find(values: Values) -> Steps:
    """Among the active tickets."""
    return [
        click("link", values["project"]),
        click("link", "VIEW TICKETS"),
        click("link", re.compile("Active Tickets'")),
        DOWN,
        click("link", SUBJECTS[values["subject"]]),
        stop(),
    ]


def log(values: Values) -> Steps:
    """From the source's browser."""
    return [
        click("link", values["project"]),
        click("link", "BROWSE SOURCE"),
        click("link", "Revision Log"),
        stop(),
    ]


def create(values: Values) -> Steps:
    """A new ticket."""
    return [
        click("link", values["project"]),
        click("link", "NEW TICKET"),
        write("textbox", "Summary:", values["summary"]),
        write("combobox", "Priority:", values["priority"]),
        DOWN,
        click("button", "Create ticket"),
        stop(),
    ]


def comment(values: Values) -> Steps:
    """Beneath a ticket."""
    return [
        *_ticket(values),
        DOWN,
        write("textbox", re.compile("WikiFormatting"), values["comment"]),
        click("button", "Submit changes"),
        stop(),
    ]


def close(values: Values) -> Steps:
    """With a resolution."""
    return [
        *_ticket(values),
        click("link", "Modify"),
        DOWN,
        click("radio", re.compile("resolve")),
        write("combobox", "", values["resolution"]),
        click("button", "Submit changes"),
        stop(),
    ]


def page(values: Values) -> Steps:
    """A new one in the wiki."""
    return [
        click("link", values["project"]),
        write("textbox", "", f"wiki:{values['page']}", enter=True),
        click("button", "Create this page"),
        write("textbox", nth=1, name="", text=values["text"]),
        DOWN,
        click("button", "Submit changes"),
        stop(),
    ]


PLAYERS: dict[int, Player] = {
    40: owner,
    41: maintainer,
    42: find,
    43: log,
    44: create,
    45: comment,
    46: close,
    47: page,
}
"""By template."""
