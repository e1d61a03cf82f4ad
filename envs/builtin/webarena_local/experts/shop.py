"""Scripted experts for the shop's task templates."""

import re
from collections.abc import Callable

from envs.browser.expert_steps import SCROLL_DOWN, Steps, answer_with, click, replace_text, stop, write
from envs.registry import ExpertStep


def _product(title: str) -> Steps:
    return [write("textbox", "Search", title, enter=True), click("link", title)]


def price(values: dict[str, str]) -> Steps:
    return [
        *_product(values["product"]),
        answer_with(r"StaticText '\$([\d.]+)'\n(?:.*\n){0,3}.*In stock"),
    ]


def origin(values: dict[str, str]) -> Steps:
    return [
        *_product(values["product"]),
        SCROLL_DOWN,
        answer_with(r"'Made in'[^\n]*\n[^\n]*cell '(\w+)'"),
    ]


def order_total(values: dict[str, str]) -> Steps:
    row = rf"cell '{values['order']}'\n.*\n.*\n.*cell '\$([\d.]+)'"
    return [
        click("link", re.compile("Account")),
        click("link", "Order History"),
        SCROLL_DOWN,
        answer_with(row),
    ]


def _click_first_product(observation: str) -> str:
    link = re.search(r"article ''\n\t*\[(\d+)\] link", observation)
    if link is None:
        raise LookupError("the observation has no product")
    return f"click [{link[1]}]"


def cheapest(values: dict[str, str]) -> Steps:
    return [
        click("link", values["category"]),
        write("combobox", re.compile("Sort by"), "Price low to high"),
        ExpertStep("", _click_first_product),
        stop(),
    ]


def find(values: dict[str, str]) -> Steps:
    return [*_product(values["product"]), stop()]


def into_cart(values: dict[str, str]) -> Steps:
    return [
        *_product(values["product"]),
        click("button", "Add to cart"),
        click("button", "View cart"),
        *replace_text("spinbutton", "", values["number"]),
        click("button", "Update"),
        stop(),
    ]


_BIRTHDAY: Steps = [click("link", "Add to 'Birthday' wish list"), stop()]


def wish(values: dict[str, str]) -> Steps:
    return [*_product(values["product"]), click("link", "Add to wish list"), *_BIRTHDAY]


def review(values: dict[str, str]) -> Steps:
    return [
        *_product(values["product"]),
        click("link", "Write a review"),
        SCROLL_DOWN,
        SCROLL_DOWN,
        write("textbox", re.compile("Title"), values["title"]),
        write("combobox", re.compile("Score"), values["score"]),
        write("textbox", re.compile("Body"), "I have had it for some weeks now."),
        click("button", "Save review"),
        stop(),
    ]


def address(values: dict[str, str]) -> Steps:
    return [
        click("link", re.compile("Account")),
        click("link", "Address Book"),
        SCROLL_DOWN,
        click("link", "Add a new address"),
        write("textbox", re.compile("First name"), "Emma"),
        write("textbox", re.compile("Last name"), "Lopez"),
        write("textbox", re.compile("First line"), values["line"]),
        SCROLL_DOWN,
        write("textbox", re.compile("City"), values["city"]),
        write("textbox", re.compile("Post/Zip"), values["postcode"]),
        write("combobox", re.compile("Country"), "United States"),
        click("button", "Save"),
        stop(),
    ]


def order(values: dict[str, str]) -> Steps:
    return [
        *_product(values["product"]),
        click("button", "Add to cart"),
        click("button", "View cart"),
        SCROLL_DOWN,
        click("link", "Proceed to checkout"),
        click("button", re.compile("Ship to your default")),
        click("link", "Continue"),
        SCROLL_DOWN,
        click("button", "Place order"),
        stop(),
    ]


EXPERTS: dict[int, Callable[[dict[str, str]], Steps]] = {
    1: price,
    2: origin,
    3: order_total,
    4: cheapest,
    5: find,
    6: into_cart,
    7: wish,
    8: review,
    9: address,
    10: order,
}
"""By the template's number."""
