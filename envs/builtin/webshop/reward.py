"""What a purchase is worth: attributes, options and price that fit, times how well the type of product fits.

The paper's reward as upstream computes it (`web_agent_site/engine/goal.py`), with titles' nouns found without
spaCy (`nouns.py`) and texts compared by rapidfuzz, which scores as upstream's thefuzz does on top of
Levenshtein.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio

from envs.builtin.webshop.catalogue import PATH_SIGN, Product
from envs.builtin.webshop.goals import Goal
from envs.builtin.webshop.nouns import nouns

ALIKE = 85
"""Two texts are alike above this score of 100."""
TEXTS = 1 << 16
"""Pairs of texts whose likeness is kept."""
SAME_TITLE, OTHER_TITLE = 0.2, 0.1
"""Shares of the goal's nouns: above the first the title speaks for the type, below the second against it."""

_COLOURS = """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy
    camel camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral
    cranberry cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite
    grass gray green grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta
    maroon mauve merlot midnight mint mocha multicolor mushroom mustard natural navy nude olive orange
    peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver skull slate
    steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
    """
COLOURS = tuple(_COLOURS.split())
"""What upstream reduces an option to: the first that it contains (`web_agent_site/engine/normalize.py`)."""

_NO_WORD = re.compile(r"\W")
_BEYOND_ASCII = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of a purchase, and what it is made of."""

    reward: float
    """From 0 to 1; 1 is success."""
    attributes: int
    """Of the goal's, how many the product has."""
    options: int
    """Of the goal's, how many were chosen."""
    price_fits: bool
    type_factor: float
    """1, or 0.5, 0.1 or 0 for a product of another type."""
    query_match: bool
    category_match: bool
    title_score: float
    attributes_wanted: int
    options_wanted: int

    @property
    def shares(self) -> dict[str, float]:
        """What upstream tells of a purchase: how much of each part is met, from 0 to 1."""
        parts = {
            "attributes_met": self.attributes / self.attributes_wanted if self.attributes_wanted else 1.0,
            "price_met": float(self.price_fits),
            "type_met": self.type_factor,
        }
        return parts | ({"options_met": self.options / self.options_wanted} if self.options_wanted else {})


def score_of(product: Product, goal: Goal, *, price: float, chosen: Iterable[str]) -> Score:
    """What it is worth to buy `product` for `price` dollars with `chosen` options, when asked for `goal`."""
    title_score = _title_score(product.title, goal.title)
    query_match = product.query == goal.query
    category_match = len(_categories(product) & _categories(goal)) >= 2
    type_factor = _type_factor(title_score, matches=query_match or category_match)
    attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    options = options_met(chosen, goal)
    price_fits = price <= goal.price_upper
    wanted = len(goal.attributes) + len(goal.options) + 1
    return Score(
        reward=(attributes + options + price_fits) / wanted * type_factor,
        attributes=attributes,
        options=options,
        price_fits=price_fits,
        type_factor=type_factor,
        query_match=query_match,
        category_match=category_match,
        title_score=title_score,
        attributes_wanted=len(goal.attributes),
        options_wanted=len(goal.options),
    )


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether the product has the attribute, among its own or said in its texts."""
    return any(alike(attribute_text, wanted) for attribute_text in product.attributes) or any(
        wanted in text.lower() for text in (product.title, " ".join(product.features), product.description)
    )


def options_met(chosen: Iterable[str], goal: Goal) -> int:
    """How many of the goal's options are like one that was chosen."""
    colours = [_colour_of(value) for value in chosen]
    return sum(any(alike(one, wanted) for one in colours) for wanted in map(_wanted, goal.options))


@lru_cache(maxsize=TEXTS)
def alike(one: str, other: str) -> bool:
    """Whether the words of two texts are about the same, in whatever order."""
    return round(token_set_ratio(_words(one), _words(other))) > ALIKE


def _words(text: str) -> str:
    return _NO_WORD.sub(" ", text.translate(_BEYOND_ASCII)).lower().strip()


def _colour_of(value: str) -> str:
    return next((colour for colour in COLOURS if colour in value), value)


def _wanted(option: tuple[str, str]) -> str:
    """What upstream compares: of a named option, a colour only where that is all of its value or name."""
    name, value = option
    if not name:
        return _colour_of(value)
    return next((colour for colour in COLOURS if colour in option), f"{name} {value}")


def _title_score(title: str, wanted: str) -> float:
    noun_set = nouns(wanted)
    # Upstream divides by all nouns of the goal's title, repeated ones too, of which each counts once above.
    return len(set(nouns(title)) & set(noun_set)) / len(noun_set) if noun_set else SAME_TITLE


def _type_factor(title_score: float, *, matches: bool) -> float:
    if title_score == 0:
        return 0.0
    if title_score < OTHER_TITLE:
        return 0.1
    return 1.0 if matches or title_score > SAME_TITLE else 0.5


def _categories(subject: Product | Goal) -> frozenset[str]:
    return frozenset(part.strip() for part in subject.product_category.split(PATH_SIGN))
