"""How a page is shown: upstream's `text` and `text_rich` observations, or HTML by its ids and classes."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from html import escape

from envs.builtin.webshop.pages import Page, PageKind, Piece, Role

SEPARATOR = " [SEP] "


class View(StrEnum):
    """Upstream's `observation_mode`."""

    TEXT = "text"
    RICH = "text_rich"
    HTML = "html"


@dataclass(frozen=True, slots=True)
class Past:
    """What the rich view marks as clicked."""

    chosen: Collection[str]
    """Values of options of the product that is shown."""
    visited: Collection[str]
    """Products, since the last return to the search page."""


def show(page: Page, view: View, past: Past) -> str:
    """`page` as `view`."""
    return _VIEWS[view](page, past)


def _text(page: Page, past: Past) -> str:
    return SEPARATOR.join(piece.text.strip() for piece in page.pieces)


def _rich(page: Page, past: Past) -> str:
    shown = ""
    for piece in page.pieces:
        text = piece.text
        if piece.role is Role.BUTTON:
            text = f"[button] {text} [button_]"
        elif piece.role is Role.PRODUCT:
            text = f"\n[clicked button] {text} [clicked button_]" if text in past.visited else _link(text)
        elif piece.role is Role.OPTION and text in past.chosen:
            shown = f"You have clicked {text}.\n{shown}"
            text = f"  [clicked button] {text} [clicked button_]"
        elif piece.role is Role.OPTION:
            text = f"  [button] {text} [button_]"
        shown += text + "\n"
    return shown


def _link(text: str) -> str:
    return f"\n[button] {text} [button_]"


def _html(page: Page, past: Past) -> str:
    body = "".join(_element(piece, past) for piece in page.pieces)
    bar = '<input id="search_input" type="text" name="search_query">' if page.kind is PageKind.SEARCH else ""
    head = "<!DOCTYPE html>\n<html><head><title>WebShop</title></head>\n"
    return f'{head}<body class="{page.kind}">\n{bar}{body}</body></html>'


def _element(piece: Piece, past: Past) -> str:
    text = escape(piece.text)
    if piece.role is Role.BUTTON:
        return f'<button type="submit" class="btn">{text}</button>\n'
    if piece.role is Role.PRODUCT:
        return f'<a class="product-link" href="#{text}">{text}</a>\n'
    if piece.role is Role.OPTION:
        checked = " checked" if piece.text in past.chosen else ""
        name = escape(piece.option)
        return f'<label><input type="radio" name="{name}" value="{text}"{checked}>{text}</label>\n'
    tag, _, kind = piece.tag.partition(".")
    return f'<{tag} class="{kind}">{text}</{tag}>\n' if kind else f"<{tag}>{text}</{tag}>\n"


_VIEWS: dict[View, Callable[[Page, Past], str]] = {View.TEXT: _text, View.RICH: _rich, View.HTML: _html}
