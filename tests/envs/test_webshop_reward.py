"""WebShop's reward: purchases worked by hand, and upstream's own cases.

The arithmetic: (attributes met + options met + 1 if the price fits) / (attributes + options + 1), times the
factor of the type.
"""

import random
from typing import Any

import pytest

pytest.importorskip("rapidfuzz", reason="pip install rapidfuzz")

from envs.builtin.webshop.catalogue import PATH_SIGN, Product
from envs.builtin.webshop.goals import Goal
from envs.builtin.webshop.reward import are_similar, count_options, has_attribute, nouns, score_purchase

SHOES = f"Clothing {PATH_SIGN} Men {PATH_SIGN} Shoes"
LAMPS = f"Home {PATH_SIGN} Lighting {PATH_SIGN} Lamps"
JBL = (
    "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar Home Theater "
    "System Subwoofer"
)
PANASONIC = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater "
    "System"
)


def product(**changes: Any) -> Product:
    defaults: dict[str, Any] = {
        "asin": "B1",
        "title": "Peak Basketball Shoes",
        "category": "fashion",
        "query": "men's athletic shoes",
        "product_category": SHOES,
        "description": "Shoes to play in.",
        "features": ("Breathable mesh", "Rubber sole"),
        "prices": (30.0,),
        "price_tag": "$30.0",
        "options": {},
        "attributes": ("non slip", "memory foam"),
    }
    return Product(**(defaults | changes))


def goal(*, title: str = "Peak Basketball Shoes", **changes: Any) -> Goal:
    defaults: dict[str, Any] = {
        "product": product(title=title),
        "instruction": "",
        "attributes": ("non slip", "memory foam"),
        "options": (("", "black"), ("", "9 wide")),
        "price_upper": 40.0,
    }
    return Goal(**(defaults | changes))


ELSE = {"query": "desk lamps", "product_category": LAMPS}
"""What makes a product one of another type by all but its title."""

CASES = [
    ("all that is asked for", {}, {}, 30, ["black", "9 wide"], 5 / 5),
    ("options in another order", {}, {}, 30, ["9 wide", "black"], 5 / 5),
    ("no option chosen", {}, {}, 30, [], 3 / 5),
    ("one option wrong", {}, {}, 30, ["blue", "9 wide"], 4 / 5),
    ("a shade of the colour", {}, {}, 30, ["a3-black", "9 wide"], 5 / 5),
    ("too dear", {}, {}, 40.01, ["black", "9 wide"], 4 / 5),
    ("just the limit", {}, {}, 40, ["black", "9 wide"], 5 / 5),
    ("one attribute missing", {"attributes": ("non slip",)}, {}, 30, ["black", "9 wide"], 4 / 5),
    (
        "an attribute in the title alone",
        {"attributes": (), "title": "Peak Basketball Shoes non slip Memory Foam"},
        {},
        30,
        ["black", "9 wide"],
        5 / 5,
    ),
    (
        "an attribute across two features",
        {"attributes": ("memory foam",), "features": ("all non", "slip")},
        {},
        30,
        ["black", "9 wide"],
        5 / 5,
    ),
    (
        "an attribute in the description alone",
        {"attributes": ("memory foam",), "description": "They are NON SLIP."},
        {},
        30,
        ["black", "9 wide"],
        5 / 5,
    ),
    ("no options asked for", {}, {"options": ()}, 30, ["blue"], 3 / 3),
    ("nothing but the type", {"attributes": ()}, {"options": ()}, 99, [], 0 / 3),
    # types: 3 nouns in the goal's title
    ("same category, other query", {"query": "sneakers"}, {}, 30, ["black", "9 wide"], 1.0),
    ("same query, other category", {"product_category": LAMPS}, {}, 30, ["black", "9 wide"], 1.0),
    ("a third of the title", ELSE | {"title": "Lamp for Shoes"}, {}, 30, ["black", "9 wide"], 1.0),
    ("nothing of the title, all else the same", {"title": "Lamp"}, {}, 30, ["black", "9 wide"], 0.0),
    (
        "a fifth of the title, all else another: half",
        ELSE | {"title": "Shoes"},
        {"title": "Peak Basketball Shoes Mesh Foam"},
        30,
        ["black", "9 wide"],
        0.5,
    ),
    (
        "an eleventh of the title, same query: a tenth",
        {"title": "Shoes"},
        {"title": "Shoes Aa Bb Cc Dd Ee Ff Gg Hh Ii Jj"},
        30,
        ["black", "9 wide"],
        0.1,
    ),
    # upstream's share is of the goal's nouns as they stand, repeated ones too: 1 of 10, not 1 of 4
    (
        "a tenth of a title that repeats itself, all else another: half",
        ELSE | {"title": "Shoes"},
        {"title": "Shoes Mesh Mesh Mesh Foam Foam Foam Peak Peak Peak"},
        30,
        ["black", "9 wide"],
        0.5,
    ),
    ("a goal without nouns", ELSE, {"title": "5 of 10"}, 30, ["black", "9 wide"], 0.5),
    ("two of three categories", {"query": "x", "title": "Shoes", "product_category":
     f"Shoes {PATH_SIGN} Clothing"}, {"title": "Shoes Aa Bb Cc Dd"}, 30, ["black", "9 wide"], 1.0),
    # named options, as synthetic goals have them
    ("a named option", {}, {"options": (("size", "9 wide"),)}, 30, ["9 wide"], 4 / 4),
    ("a named colour", {}, {"options": (("color", "black"),)}, 30, ["black"], 4 / 4),
    # of a named value no colour is taken out, but of the chosen one: black is a word of "color a1-black"
    ("a named shade", {}, {"options": (("color", "a1-black"),)}, 30, ["a1-black"], 4 / 4),
    # ... and navy is none of "color deep marine"
    ("another named shade", {}, {"options": (("color", "deep marine"),)}, 30, ["navy deep"], 3 / 4),
]  # fmt: skip


@pytest.mark.parametrize(("bought_fields", "goal_fields", "price", "choices", "reward"), [case[1:] for case in
CASES], ids=[
    case[0] for case in CASES
])  # fmt: skip
def test_rewards_computed_by_hand(
    bought_fields: dict[str, Any],
    goal_fields: dict[str, Any],
    price: float,
    choices: list[str],
    reward: float,
) -> None:
    score = score_purchase(product(**bought_fields), goal(**goal_fields), price=price, choices=choices)
    assert score.reward == pytest.approx(reward, abs=1e-12)
    assert (score.reward == 1.0) == (reward == 1.0)


def test_upstreams_cases() -> None:
    """Of `tests/web-agent-site/engine/test_goal.py`; its first pair of titles depends on spaCy's version."""
    assert are_similar("essential oil", "essential oils")
    assert not are_similar("tea bag", "tea tree")
    assert (
        count_options(
            ["pack of 12", "blue", "XL"], goal(options=(("", "grey"), ("", "XL"), ("", "pack of 12")))
        )
        == 2
    )
    assert count_options(["powder snow"], goal(options=(("", "cool powder snow"),))) == 1
    assert count_options([], goal()) == 0

    def titles(bought_title: str, goal_title: str) -> float:
        return score_purchase(
            product(title=bought_title), goal(title=goal_title), price=1, choices=()
        ).title_score

    assert titles(PANASONIC, JBL) == pytest.approx(0.3, abs=0.02)
    assert titles(PANASONIC, JBL.partition(" Home")[0]) == pytest.approx(0.15, abs=0.02)
    assert (
        titles("Minkissy 2pcs Stainless Steel Eyebrow Tweezers", "Rusticware 921ORB Kitchen Cabinet Knob")
        == 0
    )


@pytest.mark.parametrize(
    ("title", "words"),
    [
        ("Men's D.O.N. Shoes for the Gym, 2 Pack", "men d.o.n shoes gym pack"),
        ("High-Top Sneakers w/ 3.5mm Jack & USB-C", "high top sneakers w jack usb c"),
        ("12 of 14", ""),
    ],
)
def test_nouns_of_a_title(title: str, words: str) -> None:
    assert nouns(title) == tuple(words.split())


def test_a_reward_is_from_0_to_1_and_never_falls_when_more_criteria_are_met() -> None:
    rng = random.Random(4)
    words = ("non slip", "memory foam", "waterproof", "black", "9 wide", "navy blue")
    for _ in range(300):
        purchase = product(
            title=rng.choice(("Peak Shoes", "Lamp", "Shoes")),
            attributes=tuple(rng.sample(words, 2)),
            query=rng.choice("ab"),
        )
        random_goal = goal(
            attributes=tuple(rng.sample(words, rng.randrange(1, 4))),
            options=tuple(("", word) for word in rng.sample(words, rng.randrange(3))),
        )
        choices = rng.sample(words, rng.randrange(3))
        price = rng.choice((10, 40, 90))
        score = score_purchase(purchase, random_goal, price=price, choices=choices)
        assert 0 <= score.reward <= 1
        all_choices = [*choices, *(value for _, value in random_goal.options)]
        more = score_purchase(purchase, random_goal, price=price, choices=all_choices)
        assert more.reward >= score.reward
        assert more.options == len(random_goal.options)
        assert score_purchase(purchase, random_goal, price=10, choices=choices).reward >= score.reward
        assert score.attributes == sum(
            has_attribute(purchase, attribute) for attribute in random_goal.attributes
        )
