"""Scripted experts for the forge's task templates."""

import re
from collections.abc import Callable

from envs.browser.expert_steps import SCROLL_DOWN, Steps, answer_with, click, stop, write


def _ticket(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        write("textbox", "", f"#{values['ticket']}", enter=True),
    ]


def owner(values: dict[str, str]) -> Steps:
    return [*_ticket(values), answer_with(r"'Owned by:'[^\n]*\n[^\n]*cell '([^']+)'")]


def maintainer(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        click("link", "Contributing"),
        answer_with(r"Ask ([\w ]+), who"),
    ]


SUMMARIES = {
    "search index being too large": "Search index is too large",
    "memory leak": "Memory leak in the collector",
    "speed of the label index": "Speed up the label index",
}
"""A ticket in the words of a template → its summary."""


def find(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        click("link", "VIEW TICKETS"),
        click("link", re.compile("Active Tickets'")),
        SCROLL_DOWN,
        click("link", SUMMARIES[values["subject"]]),
        stop(),
    ]


def log(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        click("link", "BROWSE SOURCE"),
        click("link", "Revision Log"),
        stop(),
    ]


def create(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        click("link", "NEW TICKET"),
        write("textbox", "Summary:", values["summary"]),
        write("combobox", "Priority:", values["priority"]),
        SCROLL_DOWN,
        click("button", "Create ticket"),
        stop(),
    ]


def comment(values: dict[str, str]) -> Steps:
    return [
        *_ticket(values),
        SCROLL_DOWN,
        write("textbox", re.compile("WikiFormatting"), values["comment"]),
        click("button", "Submit changes"),
        stop(),
    ]


def close(values: dict[str, str]) -> Steps:
    return [
        *_ticket(values),
        click("link", "Modify"),
        SCROLL_DOWN,
        click("radio", re.compile("resolve")),
        write("combobox", "", values["resolution"]),
        click("button", "Submit changes"),
        stop(),
    ]


def page(values: dict[str, str]) -> Steps:
    return [
        click("link", values["project"]),
        write("textbox", "", f"wiki:{values['page']}", enter=True),
        click("button", "Create this page"),
        write("textbox", nth=1, name="", text=values["text"]),
        SCROLL_DOWN,
        click("button", "Submit changes"),
        stop(),
    ]


EXPERTS: dict[int, Callable[[dict[str, str]], Steps]] = {
    40: owner,
    41: maintainer,
    42: find,
    43: log,
    44: create,
    45: comment,
    46: close,
    47: page,
}
"""By the template's number."""
