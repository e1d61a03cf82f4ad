"""Players of the shop's templates."""

import re

from envs.browser.solver import acting, click, stop, write
from envs.builtin.webarena_local.experts.moves import DOWN, Player, Steps, Values, anew, told


def _product(title: str) -> Steps:
    return [write("textbox", "Search", title, enter=True), click("link", title)]


def price(values: Values) -> Steps:
    """What a product costs."""
    return [*_product(values["product"]), told(r"StaticText '\$([\d.]+)'\n(?:.*\n){0,3}.*In stock")]


def origin(values: Values) -> Steps:
    """Where it is made."""
    return [*_product(values["product"]), DOWN, told(r"'Made in'[^\n]*\n[^\n]*cell '(\w+)'")]


def order_total(values: Values) -> Steps:
    """What an order came to."""
    row = rf"cell '{values['order']}'\n.*\n.*\n.*cell '\$([\d.]+)'"
    return [click("link", re.compile("Account")), click("link", "Order History"), DOWN, told(row)]


def _first_article(seen: str) -> str:
    found = re.search(r"article ''\n\t*\[(\d+)\] link", seen)
    if found is None:
        raise LookupError("no product in what is seen")
    return f"click [{found[1]}]"


def cheapest(values: Values) -> Steps:
    """The first of a category, by price."""
    return [
        click("link", values["category"]),
        write("combobox", re.compile("Sort by"), "Price low to high"),
        acting(_first_article),
        stop(),
    ]


def find(values: Values) -> Steps:
    """A product's page."""
    return [*_product(values["product"]), stop()]


def into_cart(values: Values) -> Steps:
    """Some pieces of a product."""
    return [
        *_product(values["product"]),
        click("button", "Add to cart"),
        click("button", "View cart"),
        *anew("spinbutton", "", values["number"]),
        click("button", "Update"),
        stop(),
    ]


_BIRTHDAY: Steps = [click("link", "Add to 'Birthday' wish list"), stop()]


def wish(values: Values) -> Steps:
    """A product onto the wish list."""
    return [*_product(values["product"]), click("link", "Add to wish list"), *_BIRTHDAY]


def review(values: Values) -> Steps:
    """Title, score and text."""
    return [
        *_product(values["product"]),
        click("link", "Write a review"),
        DOWN,
        DOWN,
        write("textbox", re.compile("Title"), values["title"]),
        write("combobox", re.compile("Score"), values["score"]),
        write("textbox", re.compile("Body"), "I have had it for some weeks now."),
        click("button", "Save review"),
        stop(),
    ]


def address(values: Values) -> Steps:
    """One more address."""
    return [
        click("link", re.compile("Account")),
        click("link", "Address Book"),
        DOWN,
        click("link", "Add a new address"),
        write("textbox", re.compile("First name"), "Emma"),
        write("textbox", re.compile("Last name"), "Lopez"),
        write("textbox", re.compile("First line"), values["line"]),
        DOWN,
        write("textbox", re.compile("City"), values["city"]),
        write("textbox", re.compile("Post/Zip"), values["postcode"]),
        write("combobox", re.compile("Country"), "United States"),
        click("button", "Save"),
        stop(),
    ]


def order(values: Values) -> Steps:
    """Through the checkout."""
    return [
        *_product(values["product"]),
        click("button", "Add to cart"),
        click("button", "View cart"),
        DOWN,
        click("link", "Proceed to checkout"),
        click("button", re.compile("Ship to your default")),
        click("link", "Continue"),
        DOWN,
        click("button", "Place order"),
        stop(),
    ]


PLAYERS: dict[int, Player] = {
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
"""By template."""
