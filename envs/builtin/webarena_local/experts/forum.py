"""Players of the forum's templates."""

import re

from envs.browser.solver import acting, click, stop, write
from envs.builtin.webarena_local.experts.moves import DOWN, Player, Steps, Values, told


def _thread(subject: str) -> Steps:
    return [write("searchbox", "Search", subject, enter=True), click("link", subject)]


def starter(values: Values) -> Steps:
    """Who wrote the first post."""
    return [*_thread(values["thread"]), told(r"By: '\n[^\n]*link '(\w+)'")]


def most_views(values: Values) -> Steps:
    """The largest number in the forum's column, of which half a page is seen at a time."""
    counts: list[int] = []

    def noted(seen: str) -> str:
        counts.extend(map(int, re.findall(r"StaticText '(\d+)'\n[^\n]*StaticText 'By: '", seen)))
        return "scroll [down]"

    def largest(seen: str) -> str:
        noted(seen)
        return f"stop [{max(counts)}]"

    return [*_forum(values), acting(noted), acting(noted), acting(largest)]


def _forum(values: Values) -> Steps:
    is_far_down = values["forum"] == "Home Computing"
    return [*([DOWN] if is_far_down else []), click("link", values["forum"])]


def open_thread(values: Values) -> Steps:
    """By the search."""
    return [*_thread(values["thread"]), stop()]


def reply(values: Values) -> Steps:
    """One more post."""
    return [
        *_thread(values["thread"]),
        click("link", re.compile("Post reply")),
        write("textbox", "Message", values["message"]),
        DOWN,
        click("button", "Submit"),
        stop(),
    ]


def start(values: Values) -> Steps:
    """A thread of one's own."""
    return [
        *_forum(values),
        click("link", re.compile("New topic")),
        write("textbox", "Subject", values["subject"]),
        write("textbox", "Message", values["message"]),
        DOWN,
        click("button", "Submit"),
        stop(),
    ]


def lock(values: Values) -> Steps:
    """By the moderators' menu."""
    return [
        *_thread(values["thread"]),
        click("button", nth=-1),
        click("link", "Lock topic"),
        click("button", re.compile("Confirm|Yes|Lock")),
        stop(),
    ]


_SURE: Steps = [click("button", "Yes, I'm sure"), stop()]


def subscribe(values: Values) -> Steps:
    """To be told of answers."""
    return [*_thread(values["thread"]), click("link", re.compile("Subscribe'")), *_SURE]


PLAYERS: dict[int, Player] = {
    20: starter,
    21: most_views,
    22: open_thread,
    23: reply,
    24: start,
    25: lock,
    26: subscribe,
}
"""By template."""
