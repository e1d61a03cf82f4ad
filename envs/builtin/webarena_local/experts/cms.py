"""Players of the CMS's templates."""

import re

from envs.browser.solver import click, stop, write
from envs.builtin.webarena_local.experts.moves import Player, Steps, Values, anew, told


def _page(title: str) -> Steps:
    return [
        write("textbox", "Search term", title, enter=True),
        click("link", re.compile(rf"^' ?{re.escape(title)}'")),
    ]


def author(values: Values) -> Steps:
    """As the article's form has it."""
    return [*_page(values["title"]), told(r"textbox 'Author\*?'[^\n]*\n[^\n]*StaticText '([^']+)'")]


def figure(values: Values) -> Steps:
    """A number in a page's summary."""
    return [
        *_page(values["title"]),
        told(r"StaticText '[^']*?\b(three|\d+)\b[^']*'"),
    ]


def edit(values: Values) -> Steps:
    """Its form."""
    return [*_page(values["title"]), stop()]


_PUBLISH: Steps = [click("button", "More actions"), click("button", "Publish"), stop()]


def publish(values: Values) -> Steps:
    """A draft as it is."""
    return [*_page(values["title"]), *_PUBLISH]


def rename(values: Values) -> Steps:
    """With a new title."""
    return [*_page(values["title"]), *anew("textbox", re.compile("Title"), values["new_title"]), *_PUBLISH]


def unpublish(values: Values) -> Steps:
    """By the menu of its form."""
    return [
        *_page(values["title"]),
        click("button", "More actions"),
        click("link", "Unpublish"),
        click("button", re.compile("unpublish")),
        stop(),
    ]


def resume(values: Values) -> Steps:
    """With a new summary."""
    return [*_page(values["title"]), *anew("textbox", re.compile("Summary"), values["summary"]), *_PUBLISH]


def add(values: Values) -> Steps:
    """A new page in a section."""
    return [
        write("textbox", "Search term", values["section"], enter=True),
        click("link", f"Explore child pages of '{values['section']}'"),
        click("link", "Add child page"),
        click("link", "Info page"),
        write("textbox", re.compile("Title"), values["title"]),
        write("textbox", re.compile("Summary"), values["summary"]),
        *_PUBLISH,
    ]


PLAYERS: dict[int, Player] = {
    60: author,
    61: figure,
    62: edit,
    63: publish,
    64: rename,
    65: unpublish,
    66: resume,
    67: add,
}
"""By template."""
