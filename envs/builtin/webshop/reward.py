"""The reward of a purchase: the share of attributes, options and price that fit, times a factor of the type.

This is the paper's reward as upstream computes it (`web_agent_site/engine/goal.py`), except for two
libraries. rapidfuzz compares texts, with the scores of upstream's thefuzz on top of Levenshtein. The nouns of
a title are found without a tagger: upstream asks spaCy for the words that are nouns or names, and in titles,
which are written like names, nearly all words are. Here a noun is any word that begins with a letter and is
not a function word; docs/webshop.md says how often the reward differs.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio

from envs.builtin.webshop.catalogue import PATH_SIGN, Product
from envs.builtin.webshop.goals import Goal

MIN_SIMILARITY = 85
"""Two texts are similar above this score, of at most 100."""
CACHED_PAIRS = 1 << 16
"""Pairs of texts whose similarity is cached."""
CACHED_TITLES = 1 << 14
"""Titles whose nouns are cached."""
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
"""Upstream reduces an option to the first of these in it (`web_agent_site/engine/normalize.py`)."""

_FUNCTION_WORDS = """
    a an the this that these those each every all any both some no another other
    of in on at by for from with without to into onto up down out off over under through across around between
    within per as than like via and or but nor so yet plus
    i me my you your he him his she her it its we us our they them their who which what
    is are was were be been being am do does did has have had can could will would may might must should shall
    not if when while because very too also only just
    one two three four five six seven eight nine ten
    """
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_NOUN = re.compile(r"[^\W\d_](?:[\w.]*[^\W_])?")
"""Begins with a letter; dots within it belong to it (`d.o.n`), hyphens and slashes end it."""
_POSSESSIVE = re.compile(r"['\u2019]s\b")
_STARTS_WITH_A_DIGIT = re.compile(r"\b\d[\w.]*")
_NON_WORD = re.compile(r"\W")
_BEYOND_ASCII = dict.fromkeys(range(128, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The reward of a purchase and its parts."""

    reward: float
    """The reward from 0 to 1; 1 is success."""
    attributes: int
    """Number of the goal's that the product has."""
    options: int
    """Number of the goal's that were chosen."""
    price_fits: bool
    type_factor: float
    """1, or 0.5, 0.1 or 0 for a product of another type."""
    title_score: float
    goal: Goal

    @property
    def shares(self) -> dict[str, float]:
        """How much of each part is met, from 0 to 1, as upstream reports it."""
        num_attributes, num_options = len(self.goal.attributes), len(self.goal.options)
        parts = {
            "attributes_met": self.attributes / num_attributes if num_attributes else 1.0,
            "price_met": float(self.price_fits),
            "type_met": self.type_factor,
        }
        return parts | ({"options_met": self.options / num_options} if num_options else {})


def score_purchase(product: Product, goal: Goal, *, price: float, choices: Iterable[str]) -> Score:
    """Score buying `product` for `price` dollars with the option values `choices`, when asked for `goal`."""
    title_score = _title_score(product.title, goal.product.title)
    has_query = product.query == goal.product.query
    has_category = len(_categories(product) & _categories(goal.product)) >= 2
    type_factor = _type_factor(title_score, matches=has_query or has_category)
    attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    options = count_options(choices, goal)
    price_fits = price <= goal.price_upper
    num_criteria = len(goal.attributes) + len(goal.options) + 1
    return Score(
        reward=(attributes + options + price_fits) / num_criteria * type_factor,
        attributes=attributes,
        options=options,
        price_fits=price_fits,
        type_factor=type_factor,
        title_score=title_score,
        goal=goal,
    )


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether the product's attributes include a similar one, or its texts mention it."""
    return any(are_similar(candidate, attribute) for candidate in product.attributes) or any(
        attribute in text.lower() for text in (product.title, " ".join(product.features), product.description)
    )


def count_options(choices: Iterable[str], goal: Goal) -> int:
    """How many of the goal's options are similar to one of `choices`."""
    values = [_reduce_to_colour(choice) for choice in choices]
    return sum(
        any(are_similar(value, option) for value in values) for option in map(_normalize, goal.options)
    )


@lru_cache(maxsize=CACHED_PAIRS)
def are_similar(first: str, second: str) -> bool:
    """Whether two texts have about the same words, in any order."""
    return round(token_set_ratio(_words(first), _words(second))) > MIN_SIMILARITY


@lru_cache(maxsize=CACHED_TITLES)
def nouns(title: str) -> tuple[str, ...]:
    """The words of `title` that count as nouns or names, in lower case, repeated as in the title."""
    matches = _NOUN.findall(_STARTS_WITH_A_DIGIT.sub(" ", _POSSESSIVE.sub(" ", title.lower())))
    return tuple(word for word in matches if word not in FUNCTION_WORDS)


def _words(text: str) -> str:
    return _NON_WORD.sub(" ", text.translate(_BEYOND_ASCII)).lower().strip()


def _reduce_to_colour(value: str) -> str:
    return next((colour for colour in COLOURS if colour in value), value)


def _normalize(option: tuple[str, str]) -> str:
    """The text that upstream compares; a named option becomes a colour only if its name or value is just
    that."""
    name, value = option
    if not name:
        return _reduce_to_colour(value)
    return next((colour for colour in COLOURS if colour in option), f"{name} {value}")


def _title_score(title: str, goal_title: str) -> float:
    goal_nouns = nouns(goal_title)
    # Upstream counts a repeated noun once in the numerator, but each time in the denominator.
    return len(set(nouns(title)) & set(goal_nouns)) / len(goal_nouns) if goal_nouns else SAME_TITLE


def _type_factor(title_score: float, *, matches: bool) -> float:
    if title_score == 0:
        return 0.0
    if title_score < OTHER_TITLE:
        return 0.1
    return 1.0 if matches or title_score > SAME_TITLE else 0.5


def _categories(product: Product) -> frozenset[str]:
    return frozenset(part.strip() for part in product.product_category.split(PATH_SIGN))
