"""The shop's pages: their content, in order. `views.py` renders them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from envs.builtin.webshop.catalogue import Product

RESULTS = 50
"""The most products that a search finds."""
PER_PAGE = 10


class PageKind(StrEnum):
    """The kinds of page, named as in upstream's addresses."""

    SEARCH = "index"
    RESULTS = "search_results"
    PRODUCT = "item_page"
    DETAIL = "item_sub_page"
    DONE = "done"


class Button(StrEnum):
    """What can be clicked besides products and options."""

    SEARCH = "Search"
    BACK = "Back to Search"
    PREVIOUS = "< Prev"
    NEXT = "Next >"
    DESCRIPTION = "Description"
    FEATURES = "Features"
    REVIEWS = "Reviews"
    BUY = "Buy Now"


class Role(StrEnum):
    """The part that a piece plays on its page."""

    TEXT = "text"
    BUTTON = "button"
    PRODUCT = "product"
    """An asin, which links to its product's page."""
    OPTION = "option"


@dataclass(frozen=True, slots=True)
class Piece:
    """A text on a page."""

    text: str
    role: Role = Role.TEXT
    tag: str = "p"
    """The HTML tag, with a class where one identifies the piece: `h4.product-title`."""
    option: str = ""
    """The name of the option, if the piece is one of its values."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    kind: PageKind
    pieces: tuple[Piece, ...]
    clickables: tuple[str, ...]
    """Buttons, then products (both in lower case), then values of options."""
    options: Mapping[str, str]
    """Value → name of its option; the later option where two have the same value."""


def search_page(instruction: str) -> Page:
    """The first page of an episode."""
    return _page(
        PageKind.SEARCH,
        (
            Piece("WebShop", tag="h2"),
            Piece("Instruction: ", tag="h4"),
            Piece(instruction, tag="h4"),
            _button(Button.SEARCH),
        ),
    )


def results_page(instruction: str, results: Sequence[Product], number: int) -> Page:
    """Page `number` of `results`, counted from 1; it may be empty."""
    pieces = [
        *_head(instruction),
        _button(Button.BACK),
        Piece(f"Page {number} (Total results: {len(results)})", tag="h3"),
    ]
    if number > 1:
        pieces.append(_button(Button.PREVIOUS))
    pieces.append(_button(Button.NEXT))
    for product in results[(number - 1) * PER_PAGE : number * PER_PAGE]:
        pieces += (
            Piece(product.asin, Role.PRODUCT, "a.product-link"),
            Piece(product.title, tag="h4.product-title"),
            Piece(product.price_tag, tag="h5.product-price"),
        )
    return _page(PageKind.RESULTS, pieces)


def product_page(instruction: str, product: Product) -> Page:
    """A product with its options."""
    pieces = [*_head(instruction), _button(Button.BACK), _button(Button.PREVIOUS)]
    for name, values in product.options.items():
        pieces.append(Piece(name, tag="h4"))
        pieces += (Piece(value, Role.OPTION, "label", name) for value in values)
    pieces += (
        Piece(product.title, tag="h2"),
        Piece(f"Price: {product.price_tag}", tag="h4"),
        Piece("Rating: N.A.", tag="h4"),
        _button(Button.DESCRIPTION),
        _button(Button.FEATURES),
        _button(Button.REVIEWS),
        _button(Button.BUY),
    )
    return _page(PageKind.PRODUCT, pieces)


def detail_page(instruction: str, product: Product, topic: Button) -> Page:
    """A product's description, features or reviews; upstream has no reviews."""
    texts = {Button.DESCRIPTION: (product.description,), Button.FEATURES: product.features}.get(topic, ())
    gap = " " if topic is Button.FEATURES else ""
    pieces = [*_head(instruction), _button(Button.BACK), _button(Button.PREVIOUS)]
    pieces += (Piece(gap + text, tag="p.product-info") for text in texts if gap + text)
    return _page(PageKind.DETAIL, pieces)


def done_page(asin: str, choices: Mapping[str, str], reward: float) -> Page:
    """The last page: as upstream's, it shows the purchase, headings without values, and the score."""
    choices_json = json.dumps(choices, ensure_ascii=True, sort_keys=True)
    for sign in "<>&'":
        choices_json = choices_json.replace(sign, f"\\u{ord(sign):04x}")
    texts = (
        *("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *("Purchased", "asin", asin, "options", choices_json, "attrs", "None"),
        *("category", "None", "query", "None", "product category", "None"),
        *("Target", "asin", "options", "attrs", "price upper", "instuction text"),
        *("category", "product category", "query", "Goal ", "None", "Reward"),
        *("Your score (min 0.0, max 1.0)", str(reward), "Reward Details ", "None"),
    )
    return _page(PageKind.DONE, [Piece(text, tag="h4") for text in texts])


def _page(kind: PageKind, pieces: Sequence[Piece]) -> Page:
    buttons: list[str] = []
    links: list[str] = []
    options: dict[str, str] = {}
    for piece in pieces:
        if piece.role is Role.BUTTON:
            buttons.append(piece.text.lower())
        elif piece.role is Role.PRODUCT:
            links.append(piece.text.lower())
        elif piece.role is Role.OPTION:
            options[piece.text] = piece.option
    clickables = tuple(dict.fromkeys([*buttons, *links, *options]))
    return Page(kind, tuple(pieces), clickables, options)


def _head(instruction: str) -> tuple[Piece, Piece]:
    return Piece("Instruction:", tag="h4"), Piece(instruction, tag="h4")


def _button(button: Button) -> Piece:
    return Piece(button.value, Role.BUTTON, "button")
