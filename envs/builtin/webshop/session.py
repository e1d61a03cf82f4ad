"""One buyer in a shop: where it is, what it has chosen, and what an action does. No action does nothing.

Pages, actions and their effects are upstream's (`web_agent_site/envs/web_agent_text_env.py`), its
peculiarities among them: a search may be made on any page; an action's argument is read in lower case; going
back to the results, or searching, forgets the options that were chosen; a product's other pages keep them.
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
from envs.builtin.webshop.views import Past

LONGEST_ACTION = 1000
"""Characters; what is longer is no action, and would be slow to read."""
_ACTION = re.compile(r"(.+)\[(.+)\]")
_DETAILS = {button.lower(): button for button in (Button.DESCRIPTION, Button.FEATURES, Button.REVIEWS)}


@dataclass(slots=True)
class Session:
    """A visit, from the instruction to the purchase."""

    shop: Shop
    goal: Goal
    page: Page = field(init=False)
    score: Score | None = None
    """Of the purchase, which ends the visit."""
    _found: tuple[Product, ...] = ()
    _number: int = 1
    """Of the page of results."""
    _product: Product | None = None
    _chosen: dict[str, str] = field(default_factory=dict)
    _visited: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._start()

    @property
    def past(self) -> Past:
        """What was clicked, as far as pages show it."""
        return Past(tuple(self._chosen.values()), tuple(self._visited))

    def act(self, action: str) -> None:
        """Carry out `search[words]` or `click[what the page has]`."""
        match = _ACTION.match(action) if len(action) <= LONGEST_ACTION else None
        if match is None:
            return
        name, argument = match[1], match[2].lower()
        if name == "search":
            self._search(argument)
        elif name == "click" and argument in self.page.actions.clickables:
            self._click(argument)

    def _click(self, argument: str) -> None:
        kind = self.page.kind
        if argument == Button.SEARCH.lower():
            return
        if argument == Button.BUY.lower():
            self._buy()
        elif argument == Button.BACK.lower():
            self._start()
        elif argument == Button.NEXT.lower() and kind is PageKind.RESULTS:
            self._results(self._number + 1)
        elif argument == Button.PREVIOUS.lower() and kind is PageKind.RESULTS:
            self._results(self._number - 1)
        elif argument == Button.PREVIOUS.lower() and kind is PageKind.PRODUCT:
            self._results(self._number)
        elif argument in _DETAILS and self._product is not None:
            self.page = detail_page(self.goal.instruction, self._product, _DETAILS[argument])
        else:
            self._open(argument)

    def _start(self) -> None:
        self._forget()
        self._visited = set()
        self.page = search_page(self.goal.instruction)

    def _search(self, words: str) -> None:
        self._found = self.shop.search(words)
        self._results(1)

    def _results(self, number: int) -> None:
        self._forget()
        self._number = number
        self.page = results_page(self.goal.instruction, self._found, number)

    def _open(self, argument: str) -> None:
        """A product out of the results, a value of an option, or back to the product from its details."""
        if self.page.kind is PageKind.RESULTS:
            self._product = next(button for button in self._found if button.asin.lower() == argument)
            self._visited.add(self._product.asin)
        elif argument in self.page.options:
            self._chosen[self.page.options[argument]] = argument
        assert self._product is not None
        self.page = product_page(self.goal.instruction, self._product)

    def _buy(self) -> None:
        assert self._product is not None
        asin = self._product.asin
        self.score = self.shop.score(self._product, self.goal, chosen=tuple(self._chosen.values()))
        self.page = done_page(asin, self._chosen, self.score.reward)

    def _forget(self) -> None:
        self._product = None
        self._chosen = {}
