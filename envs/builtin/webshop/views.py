"""Renders pages: upstream's `text` and `text_rich` observations, or HTML with upstream's ids and classes."""

from collections.abc import Collection
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
class Clicks:
    """Earlier clicks that a page marks."""

    choices: Collection[str]
    """Option values of the product on the page."""
    products: Collection[str]
    """Asins, since the last return to the search page."""


def render(page: Page, view: View, clicks: Clicks) -> str:
    """`page` as `view`."""
    match view:
        case View.TEXT:
            return SEPARATOR.join(piece.text.strip() for piece in page.pieces)
        case View.RICH:
            return _render_rich(page, clicks)
        case View.HTML:
            return _render_html(page, clicks)


def _render_rich(page: Page, clicks: Clicks) -> str:
    text = ""
    for piece in page.pieces:
        line = piece.text
        if piece.role is Role.BUTTON:
            line = f"[button] {line} [button_]"
        elif piece.role is not Role.TEXT:
            is_product = piece.role is Role.PRODUCT
            is_clicked = line in (clicks.products if is_product else clicks.choices)
            if is_clicked and not is_product:
                text = f"You have clicked {line}.\n{text}"
            tag, indent = "clicked button" if is_clicked else "button", "\n" if is_product else "  "
            line = f"{indent}[{tag}] {line} [{tag}_]"
        text += line + "\n"
    return text


def _render_html(page: Page, clicks: Clicks) -> str:
    body = "".join(_element(piece, clicks) for piece in page.pieces)
    bar = '<input id="search_input" type="text" name="search_query">' if page.kind is PageKind.SEARCH else ""
    head = "<!DOCTYPE html>\n<html><head><title>WebShop</title></head>\n"
    return f'{head}<body class="{page.kind}">\n{bar}{body}</body></html>'


def _element(piece: Piece, clicks: Clicks) -> str:
    text = escape(piece.text)
    if piece.role is Role.BUTTON:
        return f'<button type="submit" class="btn">{text}</button>\n'
    if piece.role is Role.PRODUCT:
        return f'<a class="product-link" href="#{text}">{text}</a>\n'
    if piece.role is Role.OPTION:
        attribute = " checked" if piece.text in clicks.choices else ""
        name = escape(piece.option)
        return f'<label><input type="radio" name="{name}" value="{text}"{attribute}>{text}</label>\n'
    tag, _, kind = piece.tag.partition(".")
    return f'<{tag} class="{kind}">{text}</{tag}>\n' if kind else f"<{tag}>{text}</{tag}>\n"
