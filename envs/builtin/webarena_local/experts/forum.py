"""Scripted experts for the forum's task templates."""

import re
from collections.abc import Callable

from envs.browser.expert_steps import SCROLL_DOWN, Steps, answer_with, click, stop, write
from envs.registry import ExpertStep


def _thread(subject: str) -> Steps:
    return [write("searchbox", "Search", subject, enter=True), click("link", subject)]


def starter(values: dict[str, str]) -> Steps:
    return [*_thread(values["thread"]), answer_with(r"By: '\n[^\n]*link '(\w+)'")]


def most_views(values: dict[str, str]) -> Steps:
    counts: list[int] = []  # half of the forum's column is in the viewport at a time

    def scroll(observation: str) -> str:
        counts.extend(map(int, re.findall(r"StaticText '(\d+)'\n[^\n]*StaticText 'By: '", observation)))
        return "scroll [down]"

    def answer(observation: str) -> str:
        scroll(observation)
        return f"stop [{max(counts)}]"

    return [*_forum(values), ExpertStep("", scroll), ExpertStep("", scroll), ExpertStep("", answer)]


def _forum(values: dict[str, str]) -> Steps:
    is_far_down = values["forum"] == "Home Computing"
    return [*([SCROLL_DOWN] if is_far_down else []), click("link", values["forum"])]


def open_thread(values: dict[str, str]) -> Steps:
    return [*_thread(values["thread"]), stop()]


def reply(values: dict[str, str]) -> Steps:
    return [
        *_thread(values["thread"]),
        click("link", re.compile("Post reply")),
        write("textbox", "Message", values["message"]),
        SCROLL_DOWN,
        click("button", "Submit"),
        stop(),
    ]


def start(values: dict[str, str]) -> Steps:
    return [
        *_forum(values),
        click("link", re.compile("New topic")),
        write("textbox", "Subject", values["subject"]),
        write("textbox", "Message", values["message"]),
        SCROLL_DOWN,
        click("button", "Submit"),
        stop(),
    ]


def lock(values: dict[str, str]) -> Steps:
    return [
        *_thread(values["thread"]),
        click("button", nth=-1),
        click("link", "Lock topic"),
        click("button", re.compile("Confirm|Yes|Lock")),
        stop(),
    ]


_SURE: Steps = [click("button", "Yes, I'm sure"), stop()]


def subscribe(values: dict[str, str]) -> Steps:
    return [*_thread(values["thread"]), click("link", re.compile("Subscribe'")), *_SURE]


EXPERTS: dict[int, Callable[[dict[str, str]], Steps]] = {
    20: starter,
    21: most_views,
    22: open_thread,
    23: reply,
    24: start,
    25: lock,
    26: subscribe,
}
"""By the template's number."""
