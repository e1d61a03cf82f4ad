"""The generated shop: always the same, hard enough to need its search, and every goal can be reached."""

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bm25s", reason="pip install bm25s")
pytest.importorskip("Stemmer", reason="pip install pystemmer")
pytest.importorskip("rapidfuzz", reason="pip install rapidfuzz")

from envs.builtin.webshop.catalogue import Product
from envs.builtin.webshop.data import WEBSHOP_MINI
from envs.builtin.webshop.env import Variant, WebShopEnv, load_shop
from envs.builtin.webshop.expert import solve
from envs.builtin.webshop.goals import NO_LIMIT, Goal, GoalKind
from envs.builtin.webshop.mini.data import write
from envs.builtin.webshop.mini.words import DEPARTMENTS
from envs.builtin.webshop.pages import PER_PAGE
from envs.builtin.webshop.reward import are_similar, has_attribute
from envs.builtin.webshop.session import Session
from envs.builtin.webshop.shop import Shop
from envs.builtin.webshop.views import Clicks, View, render
from envs.registry import get_env
from envs.types import Item

BYTES = "613c5ab93727e5ced5cc7d12d10662d5e57c91d2fd8c41bcb43043a2451a7139"


VARIANTS = {kind: Variant(name="webshop-mini", data=WEBSHOP_MINI, goals=kind) for kind in GoalKind}


@pytest.fixture(scope="module")
def shop() -> Shop:
    return load_shop(VARIANTS[GoalKind.HUMAN])


def test_it_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    write(tmp_path)
    digest = hashlib.sha256()
    for name in WEBSHOP_MINI.required_paths:
        digest.update((tmp_path / name).read_bytes())
    assert digest.hexdigest() == BYTES


def test_there_are_a_thousand_products_and_goals(shop: Shop) -> None:
    assert len(shop.products) == 1000
    assert len(shop.goals) == 1000
    assert {product.category for product in shop.products.values()} == {
        department.name for department in DEPARTMENTS
    }
    assert len({goal.instruction for goal in shop.goals}) > 900
    assert all(goal.price_upper < NO_LIMIT for goal in shop.goals)
    assert all(len(product.title.split()) <= 8 for product in shop.products.values())


def test_no_product_is_in_both_splits(shop: Shop) -> None:
    for seed in (0, 1):
        split = get_env("webshop-mini").split(seed)
        train, test = (
            {shop.find_goal(item.index).product.asin for item in items} for items in (split.train, split.test)
        )
        assert not train & test
        assert len(split.test) == 100
        assert len(split.train) == 900


def test_a_third_of_the_test_goals_ask_for_what_a_training_goal_asks_for(shop: Shop) -> None:
    """docs/webshop.md has the numbers."""

    def wish(item: Item) -> tuple[str, frozenset[str], frozenset[tuple[str, str]]]:
        goal = shop.find_goal(item.index)
        return goal.product.query, frozenset(goal.attributes), frozenset(goal.options)

    def words(item: Item) -> str:
        return shop.find_goal(item.index).instruction

    counts = []
    for seed in (0, 1, 2):
        split = get_env("webshop-mini").split(seed)
        assert not {*map(words, split.train)} & {*map(words, split.test)}
        wishes = {*map(wish, split.train)}
        counts.append(sum(wish(item) in wishes for item in split.test))
    assert counts == [36, 35, 29]
    first = get_env("webshop-mini").split(0)
    texts = {words(item).partition(", and price")[0] for item in first.train}
    assert sum(words(item).partition(", and price")[0] in texts for item in first.test) == 1


def test_no_two_words_are_similar(shop: Shop) -> None:
    words = {word for department in DEPARTMENTS for word in (*department.attributes, *department.materials)}
    assert not [pair for pair in itertools.combinations(sorted(words), 2) if are_similar(*pair)]
    for product in list(shop.products.values())[::7]:
        assert {word for word in words if has_attribute(product, word)} == {*product.attributes}


def test_near_duplicates_differ_in_one_thing_and_some_are_traps(shop: Shop) -> None:
    """Many of the products that have all attributes of a goal are too expensive or lack an option."""
    faults: Counter[str] = Counter()
    for goal in shop.goals[::10]:
        alternatives = [
            product
            for product in shop.products.values()
            if product.query == goal.product.query
            and all(has_attribute(product, attribute) for attribute in goal.attributes)
        ]
        for product in alternatives:
            values = {value for values in product.options.values() for value in values}
            faults["expensive"] += shop.prices[product.asin] > goal.price_upper
            faults["option"] += any(value not in values for _, value in goal.options)
            faults["fits"] += best_reward(shop, product, goal) == 1
    assert min(faults["expensive"], faults["option"]) > 30, faults
    assert faults["fits"] >= 100


def best_reward(shop: Shop, product: Product, goal: Goal) -> float:
    """The reward of buying the product with those of the goal's options that it has."""
    values = {value for values in product.options.values() for value in values}
    choices = [value for _, value in goal.options if value in values]
    return shop.score(product, goal, choices=choices).reward


def test_search_matters(shop: Shop) -> None:
    """A search for the kind of product alone rarely has a fitting one on its first page."""
    is_on_first_page = Counter(
        any(best_reward(shop, product, goal) == 1 for product in shop.search(goal.product.query)[:PER_PAGE])
        for goal in shop.goals[::5]
    )
    assert is_on_first_page[False] > is_on_first_page[True]


@pytest.mark.parametrize("kind", GoalKind)
async def test_the_buyer_reaches_full_marks_by_the_pages_alone(kind: GoalKind) -> None:
    """`python -m bench.experts webshop-mini`, also with `--test`, plays them all."""
    shop = load_shop(VARIANTS[kind])
    env = WebShopEnv(VARIANTS[kind])
    lengths = Counter[Any]()
    for number in range(0, len(shop.goals), 9):
        steps = solve(shop, shop.find_goal(number))
        await env.reset(Item(item_id=f"webshop-mini_{number}", env="webshop-mini"))
        results = [await env.step(step.resolve("")) for step in steps]
        assert results[-1].success
        assert results[-1].reward == 1.0
        assert [result.terminated for result in results] == [False] * (len(results) - 1) + [True]
        lengths[len(steps)] += 1
    assert sum(lengths[turns] for turns in (3, 4, 5, 6)) > 0.9 * sum(lengths.values())


def test_the_buyer_clicks_only_and_repeats_only_what_is_on_the_page(shop: Shop) -> None:
    read = 0
    for number in range(0, len(shop.goals), 50):
        goal = shop.find_goal(number)
        visit = Session(shop, goal)
        for step in solve(shop, goal):
            action = step.resolve("")
            name, _, argument = action.removesuffix("]").partition("[")
            assert name == "search" or argument.lower() in visit.page.clickables
            if "[SEP]" in step.thought:
                row, _, limit = step.thought.removesuffix(".").rpartition(" below ")
                assert row in render(visit.page, View.TEXT, Clicks((), ()))
                *_, asin, title, price = row.split(" [SEP] ")
                assert asin == argument
                assert all(word in title.split() for word in [goal.product.query, *goal.attributes])
                assert float(price.removeprefix("$")) <= float(limit) == goal.price_upper
                read += 1
            else:
                assert step.thought.endswith(f": {argument}.")
            visit.act(action)
    assert read >= 18


def test_the_first_use_generates_it_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    env = get_env("webshop-mini")
    assert env.requirements[0].find_remedy() is None
    assert len(env.split(0).test) == 100
    assert (tmp_path / "webshop-mini" / "items_shuffle_1000.json").exists()


@pytest.mark.parametrize("view", [View.TEXT, View.RICH])
async def test_a_state_is_the_page_and_the_choices_and_where_the_page_leads(view: View) -> None:
    env = WebShopEnv(Variant(name="webshop-mini", data=WEBSHOP_MINI, goals=GoalKind.HUMAN, view=view))

    async def key_after(*clicks: str, search: bool = True) -> str | None:
        await env.reset(Item(item_id="webshop-mini_0", env="webshop-mini"))
        for action in [*["search[black radio]"] * search, *(f"click[{click}]" for click in clicks)]:
            await env.step(action)
        return env.state_key()

    async def clickables() -> list[str]:
        return [*(await env.inspect("available_actions"))["clickables"]]

    start, results_page = await key_after(search=False), await key_after()
    first, second = (await clickables())[2:4]
    item_page, values = await key_after(first), (await clickables())[6:]
    choices = [await key_after(first, value) for value in values]
    other_pages = [await key_after(second), await key_after("next >"), await key_after(first, "features")]
    keys = [start, results_page, item_page, *choices, *other_pages]
    assert len(choices) == 2
    assert len(set(keys)) == len(keys)
    assert await key_after("buy now", "nothing") == results_page
    assert await key_after("back to search") == start
    assert await key_after(first, "features", "< prev") == item_page
    assert await key_after(first, values[0], values[1]) == choices[1]
    # a view that marks products one has seen shows another page after a visit
    assert (await key_after(first, "< prev") == results_page) == (view is View.TEXT)
    assert await key_after(first, "buy now") is None
