"""The state of one visit to a shop, and the effects of actions. What is not an action has no effect.

Pages, actions and their effects are upstream's (`web_agent_site/envs/web_agent_text_env.py`), including its
peculiarities: every page accepts a search; an action's argument is read in lower case; a search or a return
to the results clears the choice of options, and a product's other pages keep it.
"""

import re
from dataclasses import dataclass, field

from envs.builtin.webshop.catalogue import Product
from envs.builtin.webshop.goals import Goal
from envs.builtin.webshop.pages import (
    Button,
    Page,
    PageKind,
    detail_page,
    done_page,
    product_page,
    results_page,
    search_page,
)
from envs.builtin.webshop.reward import Score
from envs.builtin.webshop.shop import Shop
from envs.builtin.webshop.views import Clicks

MAX_ACTION_LENGTH = 1000
"""Characters; a longer text is not an action, and would be slow to parse."""
_ACTION = re.compile(r"(.+)\[(.+)\]")
_BUTTONS = {button.lower(): button for button in Button}


@dataclass(slots=True)
class Session:
    """A visit, from the instruction to the purchase."""

    shop: Shop
    goal: Goal
    page: Page = field(init=False)
    score: Score | None = None
    """The purchase's, which ends the visit."""
    _results: tuple[Product, ...] = ()
    _page_number: int = 1
    """The page of the results; counted from 1."""
    _product: Product | None = None
    _choices: dict[str, str] = field(default_factory=dict)
    """Option → value."""
    _visited_asins: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._start()

    @property
    def clicks(self) -> Clicks:
        """The clicks that pages mark."""
        return Clicks(tuple(self._choices.values()), tuple(self._visited_asins))

    @property
    def state(self) -> tuple[object, ...]:
        """What the rest of the visit depends on: the page, and behind it the results, the product and the
        options chosen. The search page forgets them all."""
        page = (self.page.kind, [piece.text for piece in self.page.pieces])
        if self.page.kind is PageKind.SEARCH:
            return page
        results = [product.asin for product in self._results]
        product = None if self._product is None else self._product.asin
        return *page, results, self._page_number, product, sorted(self._choices.items())

    def act(self, action: str) -> None:
        """Carry out `search[words]` or `click[a clickable of the page]`."""
        match = _ACTION.match(action) if len(action) <= MAX_ACTION_LENGTH else None
        if match is None:
            return
        name, argument = match[1], match[2].lower()
        if name == "search":
            self._results = self.shop.search(argument)
            self._show_results(1)
        elif name == "click" and argument in self.page.clickables:
            self._click(argument)

    def _click(self, argument: str) -> None:
        match _BUTTONS.get(argument), self.page.kind:
            case Button.SEARCH, _:
                pass
            case Button.BUY, _:
                assert self._product is not None
                values = tuple(self._choices.values())
                self.score = self.shop.score(self._product, self.goal, choices=values)
                self.page = done_page(self._product.asin, self._choices, self.score.reward)
            case Button.BACK, _:
                self._start()
            case Button.NEXT, PageKind.RESULTS:
                self._show_results(self._page_number + 1)
            case Button.PREVIOUS, PageKind.RESULTS:
                self._show_results(self._page_number - 1)
            case Button.PREVIOUS, PageKind.PRODUCT:
                self._show_results(self._page_number)
            case (Button.DESCRIPTION | Button.FEATURES | Button.REVIEWS) as topic, _ if self._product:
                self.page = detail_page(self.goal.instruction, self._product, topic)
            case _:
                self._open(argument)

    def _start(self) -> None:
        self._forget()
        self._visited_asins = set()
        self.page = search_page(self.goal.instruction)

    def _show_results(self, page_number: int) -> None:
        self._forget()
        self._page_number = page_number
        self.page = results_page(self.goal.instruction, self._results, page_number)

    def _open(self, argument: str) -> None:
        """Open a product of the results, choose a value of an option, or go from details to the product."""
        if self.page.kind is PageKind.RESULTS:
            self._product = next(product for product in self._results if product.asin.lower() == argument)
            self._visited_asins.add(self._product.asin)
        elif argument in self.page.options:
            self._choices[self.page.options[argument]] = argument
        assert self._product is not None
        self.page = product_page(self.goal.instruction, self._product)

    def _forget(self) -> None:
        self._product = None
        self._choices = {}
