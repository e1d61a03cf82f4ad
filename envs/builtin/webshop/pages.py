"""The shop's pages as what stands on them, in order; how that is shown is `views.py`'s."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from envs.builtin.webshop.catalogue import Product

RESULTS = 50
"""Products that a search finds at most."""
PER_PAGE = 10


class PageKind(StrEnum):
    """Where a buyer can be; named as upstream's addresses."""

    SEARCH = "index"
    RESULTS = "search_results"
    PRODUCT = "item_page"
    DETAIL = "item_sub_page"
    DONE = "done"


class Button(StrEnum):
    """What can be clicked beside products and options."""

    SEARCH = "Search"
    BACK = "Back to Search"
    PREVIOUS = "< Prev"
    NEXT = "Next >"
    DESCRIPTION = "Description"
    FEATURES = "Features"
    REVIEWS = "Reviews"
    BUY = "Buy Now"


class Role(StrEnum):
    """What a piece of a page is."""

    TEXT = "text"
    BUTTON = "button"
    PRODUCT = "product"
    """A product's number, which leads to its page."""
    OPTION = "option"


@dataclass(frozen=True, slots=True)
class Piece:
    """A text on a page."""

    text: str
    role: Role = Role.TEXT
    tag: str = "p"
    """HTML's, with its class where that tells what it is: `h4.product-title`."""
    option: str = ""
    """Of an option's value: the option's name."""


@dataclass(frozen=True, slots=True)
class AvailableActions:
    """What can be done on a page, as upstream and AgentGym tell it."""

    has_search_bar: bool
    clickables: tuple[str, ...]
    """In lower case: buttons, then products, then options."""


@dataclass(frozen=True, slots=True)
class Page:
    """One page."""

    kind: PageKind
    pieces: tuple[Piece, ...]
    actions: AvailableActions
    """What can be done here."""
    options: Mapping[str, str]
    """Value → name of its option; of a value that two options have, the later one."""


def search_page(instruction: str) -> Page:
    """Where an episode begins."""
    return _page(
        PageKind.SEARCH,
        (
            Piece("WebShop", tag="h2"),
            Piece("Instruction: ", tag="h4"),
            Piece(instruction, tag="h4"),
            _button(Button.SEARCH),
        ),
    )


def results_page(instruction: str, found: Sequence[Product], number: int) -> Page:
    """The `number`-th page of what was found, counted from 1; it may be empty."""
    pieces = [
        *_head(instruction),
        _button(Button.BACK),
        Piece(f"Page {number} (Total results: {len(found)})", tag="h3"),
    ]
    if number > 1:
        pieces.append(_button(Button.PREVIOUS))
    pieces.append(_button(Button.NEXT))
    for product in found[(number - 1) * PER_PAGE : number * PER_PAGE]:
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


def detail_page(instruction: str, product: Product, which: Button) -> Page:
    """A product's description, features, or reviews, of which upstream has none."""
    texts = {Button.DESCRIPTION: (product.description,), Button.FEATURES: product.features}.get(which, ())
    gap = " " if which is Button.FEATURES else ""
    pieces = [*_head(instruction), _button(Button.BACK), _button(Button.PREVIOUS)]
    pieces += (Piece(gap + text, tag="p.product-info") for text in texts if gap + text)
    return _page(PageKind.DETAIL, pieces)


def done_page(asin: str, choices: Mapping[str, str], reward: float) -> Page:
    """The end: upstream's shows what was bought, headings whose values it leaves out, and the score."""
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
    return Page(kind, tuple(pieces), AvailableActions(kind is PageKind.SEARCH, clickables), options)


def _head(instruction: str) -> tuple[Piece, Piece]:
    return Piece("Instruction:", tag="h4"), Piece(instruction, tag="h4")


def _button(button: Button) -> Piece:
    return Piece(button.value, Role.BUTTON, "button")
