"""Scripted experts for the task templates of `tasks.json`."""

import re
from collections.abc import Callable, Mapping

from envs.builtin.browser.expert_steps import (
    SCROLL_DOWN,
    Steps,
    answer_with,
    click,
    replace_text,
    stop,
    write,
)
from envs.registry import ExpertStep

Values = Mapping[str, str]
"""What a task's template was filled with, by the name in the template."""


def _find_product(task: Values) -> Steps:
    return [write("textbox", "Search", task["product"], enter=True), click("link", task["product"])]


def _click_first_product(observation: str) -> str:
    link = re.search(r"article ''\n\t*\[(\d+)\] link", observation)
    if link is None:
        raise LookupError("the observation has no product")
    return f"click [{link[1]}]"


def _find_thread(task: Values) -> Steps:
    return [write("searchbox", "Search", task["thread"], enter=True), click("link", task["thread"])]


def _open_forum(task: Values) -> Steps:
    is_far_down = task["forum"] == "Home Computing"
    return [*([SCROLL_DOWN] if is_far_down else []), click("link", task["forum"])]


def _count_views(task: Values) -> Steps:
    counts: list[int] = []  # half of the forum's column is in the viewport at a time

    def scroll(observation: str) -> str:
        counts.extend(map(int, re.findall(r"StaticText '(\d+)'\n[^\n]*StaticText 'By: '", observation)))
        return "scroll [down]"

    def answer(observation: str) -> str:
        scroll(observation)
        return f"stop [{max(counts)}]"

    return [*_open_forum(task), ExpertStep("", scroll), ExpertStep("", scroll), ExpertStep("", answer)]


def _open_ticket(task: Values) -> Steps:
    return [click("link", task["project"]), write("textbox", "", f"#{task['ticket']}", enter=True)]


SUMMARIES = {
    "search index being too large": "Search index is too large",
    "memory leak": "Memory leak in the collector",
    "speed of the label index": "Speed up the label index",
}
"""A ticket in the words of a template → its summary."""


def _find_page(task: Values) -> Steps:
    return [
        write("textbox", "Search term", task["title"], enter=True),
        click("link", re.compile(rf"^' ?{re.escape(task['title'])}'")),
    ]


_PUBLISH: Steps = [click("button", "More actions"), click("button", "Publish"), stop()]

_SHOP: Mapping[int, Callable[[Values], Steps]] = {
    1: lambda task: [*_find_product(task), answer_with(r"StaticText '\$([\d.]+)'\n(?:.*\n){0,3}.*In stock")],
    2: lambda task: [*_find_product(task), SCROLL_DOWN, answer_with(r"'Made in'[^\n]*\n[^\n]*cell '(\w+)'")],
    3: lambda task: [
        click("link", re.compile("Account")),
        click("link", "Order History"),
        SCROLL_DOWN,
        answer_with(rf"cell '{task['order']}'\n.*\n.*\n.*cell '\$([\d.]+)'"),
    ],
    4: lambda task: [
        click("link", task["category"]),
        write("combobox", re.compile("Sort by"), "Price low to high"),
        ExpertStep("", _click_first_product),
        stop(),
    ],
    5: lambda task: [*_find_product(task), stop()],
    6: lambda task: [
        *_find_product(task),
        click("button", "Add to cart"),
        click("button", "View cart"),
        *replace_text("spinbutton", "", task["number"]),
        click("button", "Update"),
        stop(),
    ],
    7: lambda task: [
        *_find_product(task),
        click("link", "Add to wish list"),
        click("link", "Add to 'Birthday' wish list"),
        stop(),
    ],
    8: lambda task: [
        *_find_product(task),
        click("link", "Write a review"),
        SCROLL_DOWN,
        SCROLL_DOWN,
        write("textbox", re.compile("Title"), task["title"]),
        write("combobox", re.compile("Score"), task["score"]),
        write("textbox", re.compile("Body"), "I have had it for some weeks now."),
        click("button", "Save review"),
        stop(),
    ],
    9: lambda task: [
        click("link", re.compile("Account")),
        click("link", "Address Book"),
        SCROLL_DOWN,
        click("link", "Add a new address"),
        write("textbox", re.compile("First name"), "Emma"),
        write("textbox", re.compile("Last name"), "Lopez"),
        write("textbox", re.compile("First line"), task["line"]),
        SCROLL_DOWN,
        write("textbox", re.compile("City"), task["city"]),
        write("textbox", re.compile("Post/Zip"), task["postcode"]),
        write("combobox", re.compile("Country"), "United States"),
        click("button", "Save"),
        stop(),
    ],
    10: lambda task: [
        *_find_product(task),
        click("button", "Add to cart"),
        click("button", "View cart"),
        SCROLL_DOWN,
        click("link", "Proceed to checkout"),
        click("button", re.compile("Ship to your default")),
        click("link", "Continue"),
        SCROLL_DOWN,
        click("button", "Place order"),
        stop(),
    ],
}

_FORUM: Mapping[int, Callable[[Values], Steps]] = {
    20: lambda task: [*_find_thread(task), answer_with(r"By: '\n[^\n]*link '(\w+)'")],
    21: _count_views,
    22: lambda task: [*_find_thread(task), stop()],
    23: lambda task: [
        *_find_thread(task),
        click("link", re.compile("Post reply")),
        write("textbox", "Message", task["message"]),
        SCROLL_DOWN,
        click("button", "Submit"),
        stop(),
    ],
    24: lambda task: [
        *_open_forum(task),
        click("link", re.compile("New topic")),
        write("textbox", "Subject", task["subject"]),
        write("textbox", "Message", task["message"]),
        SCROLL_DOWN,
        click("button", "Submit"),
        stop(),
    ],
    25: lambda task: [
        *_find_thread(task),
        click("button", nth=-1),
        click("link", "Lock topic"),
        click("button", re.compile("Confirm|Yes|Lock")),
        stop(),
    ],
    26: lambda task: [
        *_find_thread(task),
        click("link", re.compile("Subscribe'")),
        click("button", "Yes, I'm sure"),
        stop(),
    ],
}

_FORGE: Mapping[int, Callable[[Values], Steps]] = {
    40: lambda task: [*_open_ticket(task), answer_with(r"'Owned by:'[^\n]*\n[^\n]*cell '([^']+)'")],
    41: lambda task: [
        click("link", task["project"]),
        click("link", "Contributing"),
        answer_with(r"Ask ([\w ]+), who"),
    ],
    42: lambda task: [
        click("link", task["project"]),
        click("link", "VIEW TICKETS"),
        click("link", re.compile("Active Tickets'")),
        SCROLL_DOWN,
        click("link", SUMMARIES[task["subject"]]),
        stop(),
    ],
    43: lambda task: [
        click("link", task["project"]),
        click("link", "BROWSE SOURCE"),
        click("link", "Revision Log"),
        stop(),
    ],
    44: lambda task: [
        click("link", task["project"]),
        click("link", "NEW TICKET"),
        write("textbox", "Summary:", task["summary"]),
        write("combobox", "Priority:", task["priority"]),
        SCROLL_DOWN,
        click("button", "Create ticket"),
        stop(),
    ],
    45: lambda task: [
        *_open_ticket(task),
        SCROLL_DOWN,
        write("textbox", re.compile("WikiFormatting"), task["comment"]),
        click("button", "Submit changes"),
        stop(),
    ],
    46: lambda task: [
        *_open_ticket(task),
        click("link", "Modify"),
        SCROLL_DOWN,
        click("radio", re.compile("resolve")),
        write("combobox", "", task["resolution"]),
        click("button", "Submit changes"),
        stop(),
    ],
    47: lambda task: [
        click("link", task["project"]),
        write("textbox", "", f"wiki:{task['page']}", enter=True),
        click("button", "Create this page"),
        write("textbox", nth=1, name="", text=task["text"]),
        SCROLL_DOWN,
        click("button", "Submit changes"),
        stop(),
    ],
}

_CMS: Mapping[int, Callable[[Values], Steps]] = {
    60: lambda task: [
        *_find_page(task),
        answer_with(r"textbox 'Author\*?'[^\n]*\n[^\n]*StaticText '([^']+)'"),
    ],
    61: lambda task: [*_find_page(task), answer_with(r"StaticText '[^']*?\b(three|\d+)\b[^']*'")],
    62: lambda task: [*_find_page(task), stop()],
    63: lambda task: [*_find_page(task), *_PUBLISH],
    64: lambda task: [
        *_find_page(task),
        *replace_text("textbox", re.compile("Title"), task["new_title"]),
        *_PUBLISH,
    ],
    65: lambda task: [
        *_find_page(task),
        click("button", "More actions"),
        click("link", "Unpublish"),
        click("button", re.compile("unpublish")),
        stop(),
    ],
    66: lambda task: [
        *_find_page(task),
        *replace_text("textbox", re.compile("Summary"), task["summary"]),
        *_PUBLISH,
    ],
    67: lambda task: [
        write("textbox", "Search term", task["section"], enter=True),
        click("link", f"Explore child pages of '{task['section']}'"),
        click("link", "Add child page"),
        click("link", "Info page"),
        write("textbox", re.compile("Title"), task["title"]),
        write("textbox", re.compile("Summary"), task["summary"]),
        *_PUBLISH,
    ],
}

EXPERTS = {**_SHOP, **_FORUM, **_FORGE, **_CMS}
"""`intent_template_id` → function from the values of a task to the steps that solve it."""
