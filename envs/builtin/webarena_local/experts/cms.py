"""Scripted experts for the CMS's task templates."""

import re
from collections.abc import Callable

from envs.browser.expert_steps import Steps, answer_with, click, replace_text, stop, write


def _page(title: str) -> Steps:
    return [
        write("textbox", "Search term", title, enter=True),
        click("link", re.compile(rf"^' ?{re.escape(title)}'")),
    ]


def author(values: dict[str, str]) -> Steps:
    return [
        *_page(values["title"]),
        answer_with(r"textbox 'Author\*?'[^\n]*\n[^\n]*StaticText '([^']+)'"),
    ]


def figure(values: dict[str, str]) -> Steps:
    return [*_page(values["title"]), answer_with(r"StaticText '[^']*?\b(three|\d+)\b[^']*'")]


def edit(values: dict[str, str]) -> Steps:
    return [*_page(values["title"]), stop()]


_PUBLISH: Steps = [click("button", "More actions"), click("button", "Publish"), stop()]


def publish(values: dict[str, str]) -> Steps:
    return [*_page(values["title"]), *_PUBLISH]


def rename(values: dict[str, str]) -> Steps:
    return [
        *_page(values["title"]),
        *replace_text("textbox", re.compile("Title"), values["new_title"]),
        *_PUBLISH,
    ]


def unpublish(values: dict[str, str]) -> Steps:
    return [
        *_page(values["title"]),
        click("button", "More actions"),
        click("link", "Unpublish"),
        click("button", re.compile("unpublish")),
        stop(),
    ]


def resume(values: dict[str, str]) -> Steps:
    return [
        *_page(values["title"]),
        *replace_text("textbox", re.compile("Summary"), values["summary"]),
        *_PUBLISH,
    ]


def add(values: dict[str, str]) -> Steps:
    return [
        write("textbox", "Search term", values["section"], enter=True),
        click("link", f"Explore child pages of '{values['section']}'"),
        click("link", "Add child page"),
        click("link", "Info page"),
        write("textbox", re.compile("Title"), values["title"]),
        write("textbox", re.compile("Summary"), values["summary"]),
        *_PUBLISH,
    ]


EXPERTS: dict[int, Callable[[dict[str, str]], Steps]] = {
    60: author,
    61: figure,
    62: edit,
    63: publish,
    64: rename,
    65: unpublish,
    66: resume,
    67: add,
}
"""By the template's number."""
