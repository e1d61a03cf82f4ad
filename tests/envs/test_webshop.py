"""WebShop's shop, held against what upstream's own engine answered on the same files.

Those files (`webshop_sample`) are in upstream's formats, with what its loader has to cope with: ranges and
missing prices, slashes and capitals in options, options that are null, a product listed twice, numbers that
are none, HTML in titles.
"""

import asyncio
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("bm25s", reason="pip install bm25s")
pytest.importorskip("Stemmer", reason="pip install pystemmer")
pytest.importorskip("rapidfuzz", reason="pip install rapidfuzz")

from envs.builtin.webshop.catalogue import load_products
from envs.builtin.webshop.data import WEBSHOP, WEBSHOP_FULL, Stock, stock_of
from envs.builtin.webshop.env import Variant, WebShopEnv
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.pages import PageKind
from envs.builtin.webshop.search import Index, analyze
from envs.builtin.webshop.session import Session
from envs.builtin.webshop.shop import Shop, load
from envs.builtin.webshop.spec import halves
from envs.builtin.webshop.views import SEPARATOR, View, show
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.remote.agentgym import ACTIONS
from envs.runtime.pool import EnvPool
from envs.types import Item

SAMPLE = Path(__file__).parent / "webshop_sample"
UPSTREAM = json.loads((SAMPLE / "upstream.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.setenv("WINGSPAN_DATA", str(SAMPLE.parent))


def sample(kind: GoalKind) -> Stock:
    return stock_of(replace(WEBSHOP, name=SAMPLE.name), kind)


@pytest.fixture(scope="module", params=GoalKind)
def shop(request) -> tuple[GoalKind, Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINGSPAN_DATA", str(SAMPLE.parent))
        return request.param, load(sample(request.param))


def session(shop: Shop, number: int, *actions: str) -> Session:
    visit = Session(shop, shop.goal(number))
    for action in actions:
        visit.act(action)
    return visit


def test_the_goals_are_upstreams_in_its_order(shop):
    kind, ours = shop
    expected = UPSTREAM[kind]["goals"]
    assert [[g.asin, g.instruction, [*g.attributes], g.price_upper] for g in ours.goals] == expected


def test_every_page_action_and_reward_is_upstreams(shop):
    kind, ours = shop
    rewards = set()
    for episode in UPSTREAM[kind]["episodes"]:
        view, visit = View(episode["view"]), Session(ours, ours.goal(episode["session"]))
        for turn, expected in enumerate(episode["observations"]):
            if turn:
                visit.act(episode["actions"][turn - 1])
            place = (kind, view, episode["actions"][:turn])
            assert show(visit.page, view, visit.past) == UPSTREAM["pages"][expected], place
            assert [*visit.page.actions.clickables] == episode["clickables"][turn], place
            assert visit.page.actions.has_search_bar == (visit.page.kind is PageKind.SEARCH)
        assert visit.score is not None
        assert visit.score.reward == pytest.approx(episode["reward"])
        rewards.add(episode["reward"])
    assert len(rewards) >= 3


class Seen(HTMLParser):
    """What a browser would show of a page, text by text, and what upstream's selectors find in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.clickables: list[str] = []
        self.has_search_bar = False
        self._hidden = self._clickable = False
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        told = dict(attrs)
        self._hidden = tag == "title"
        self._clickable = told.get("class") in ("btn", "product-link")
        self.has_search_bar |= told.get("id") == "search_input"
        if told.get("type") == "radio":
            self.clickables.append(told["value"])

    def handle_endtag(self, tag):
        self._hidden = self._clickable = False

    def handle_data(self, data):
        if data.strip() and not self._hidden:
            self.texts.append(data.strip())
            if self._clickable:
                self.clickables.append(data.lower())


def test_the_html_view_says_and_offers_what_the_text_view_does(shop):
    kind, ours = shop
    for episode in UPSTREAM[kind]["episodes"]:
        visit = Session(ours, ours.goal(episode["session"]))
        for action in episode["actions"]:
            seen = Seen(show(visit.page, View.HTML, visit.past))
            assert SEPARATOR.join(seen.texts) == show(visit.page, View.TEXT, visit.past)
            assert {*seen.clickables} == {*visit.page.actions.clickables}
            assert seen.has_search_bar == visit.page.actions.has_search_bar
            visit.act(action)


def test_what_is_kept_of_a_product(shop):
    _, ours = shop
    assert len(ours.products) == 19
    slippers, shoes = ours.products["B0SAMPLE01"], ours.products["B0SAMPLE03"]
    assert slippers.query == "women's slippers"
    assert slippers.prices == (18.99, 24.99)
    assert slippers.price_tag == "$18.99 to $24.99"
    assert 18.99 <= ours.prices["B0SAMPLE01"] <= 24.99
    assert slippers.options == {"color": ("a1 | black", "navy blue", "white"), "size": ("5.5", "6 wide", "7")}
    assert (shoes.prices, shoes.options) == ((1299.0,), {"size": ("9", "10")})
    assert ours.products["B0SAMPLE04"].prices == (100.0,)
    assert ours.products["B0SAMPLE04"].features == ("A gentle scrub that isn't harsh",)
    assert ours.products["B0SAMPLE19"].attributes == ("DUMMY_ATTR",)


def test_the_way_back_forgets_options_and_a_look_at_the_details_does_not(shop):
    _, ours = shop
    visit = session(
        ours, 0, "search[faux fur slippers]", "click[b0sample01]", "click[navy blue]", "click[Features]"
    )
    assert "Rubber sole" in show(visit.page, View.TEXT, visit.past)
    visit.act("click[< Prev]")
    assert visit.past.chosen == ("navy blue",)
    visit.act("click[white]")
    assert visit.past.chosen == ("white",)
    visit.act("click[< prev]")
    assert visit.page.kind is PageKind.RESULTS
    visit.act("click[B0SAMPLE01]")
    assert visit.past.chosen == ()
    visit.act("search[lamp]")
    assert visit.page.kind is PageKind.RESULTS
    visit.act("click[next >]")
    assert "Page 2" in show(visit.page, View.TEXT, visit.past)
    visit.act("click[back to search]")
    assert visit.page.kind is PageKind.SEARCH


@pytest.mark.parametrize(
    "action",
    [
        *("", "search", "search[]", "click[]", "click[search]", "click[buy now]", "SEARCH[lamp]"),
        *("click[b0sample01]", "search[a [lamp]]", "click[" + "[" * 100_000, "lamp\nsearch[lamp]"),
        "search[" + "x" * 100_000 + "]",
    ],
)
def test_what_is_no_action_changes_nothing(shop, action):
    _, ours = shop
    visit = session(ours, 0, action)
    assert visit.page == session(ours, 0).page
    assert visit.score is None


def test_words_are_lucenes():
    assert [*analyze("The Women's running shoes, 3.5 mm & 6s for U.S. men\u2019s feet")] == (
        ["women", "run", "shoe", "3.5", "mm", "6s", "u.", "men", "feet"]
    )


def test_search_is_bm25_by_hand_and_equals_go_by_their_order():
    texts = ["red lamp", "red red lamp", "blue lamp", "a chair", "red lamp"]
    index = Index(texts)
    assert index.search("red", limit=9) == [1, 0, 4]
    assert index.search("red", limit=2) == [1, 0]
    assert index.search("chair", limit=9) == [3]
    assert index.search("nothing of the kind", limit=9) == []
    assert Index(["of the"]).search("red", limit=9) == []


ITEMS, ATTRIBUTES, HUMANS = WEBSHOP.required_paths
BAD = [
    (ITEMS, lambda text: text[: len(text) // 2], "expected JSON"),
    (ITEMS, lambda text: text.rstrip()[:-1], "expected ',' or ']', found the end of the file"),
    (ITEMS, lambda text: "{}", r"line 1: expected '\[', found '\{\}'"),
    (ITEMS, lambda text: "[]", "expected products, found none"),
    (ITEMS, lambda text: text + "x", "expected nothing after the closing"),
    (ITEMS, lambda text: text.replace('"name"', '"nome"', 1), "line 2, entry 1: name: expected"),
    (ITEMS, lambda text: text.replace('"$21.50"', '"cheap"'), "entry 2: pricing: expected dollars"),
    (ITEMS, lambda text: text.replace('"$21.50"', "21.5"), "entry 2: pricing: expected: Input"),
    (ATTRIBUTES, lambda text: "[]", "expected '{'"),
    (ATTRIBUTES, lambda text: text.replace("[", "5, [", 1), "line 3: expected"),
    (HUMANS, lambda text: text.replace('"instruction"', '"said"', 1), "entry 1 .B0SAMPLE01.: 0.instruction"),
    (HUMANS, lambda text: "", "line 1: expected '{', found the end of the file"),
]


@pytest.mark.parametrize(("name", "spoil", "said"), BAD)
def test_a_bad_file_is_told_with_place_expectation_and_remedy(tmp_path, monkeypatch, name, spoil, said):
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    folder = tmp_path / WEBSHOP.name
    folder.mkdir()
    for file in WEBSHOP.required_paths:
        text = (SAMPLE / file).read_text(encoding="utf-8")
        (folder / file).write_text(spoil(text) if file == name else text, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as error:
        load(stock_of(WEBSHOP, GoalKind.HUMAN))
    assert str(folder / name) in str(error.value)
    assert "wingspan data pull webshop" in str(error.value)


def test_bytes_that_are_no_text_are_told(tmp_path):
    path = tmp_path / "items.json"
    path.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(ConfigError, match="line 1: expected UTF-8 text"):
        load_products(path, {}, remedy="get it anew")


def test_where_the_data_are_missing_the_command_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    for name in ("webshop", "webshop:html?catalogue=full&goals=human"):
        command = "wingspan data pull webshop" + ("-full" if "full" in name else "")
        spec = get_env(name)
        with pytest.raises(MissingDependency, match=command):
            spec.check()
        with pytest.raises(MissingDependency, match=command):
            spec.split(0)
    get_env("webshop-mini").check()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("webshop:txt", "did you mean 'webshop:text'"),
        ("webshop:text?goals=all", "goals is 'all'; there is synthetic, human"),
        ("webshop:text?catalogue=mini", "catalogue is 'mini'; there is small, full"),
        ("webshop-mini:html?actions=1", "actions is 1, not true or false"),
        ("webshop-mini:html?color=red", "no option color"),
    ],
)
def test_a_wrong_name_is_refused_with_what_there_is(name, said):
    with pytest.raises(ConfigError, match=said):
        get_env(name)


def test_a_shop_with_too_few_goals_has_no_split():
    shop = load(sample(GoalKind.HUMAN))
    with pytest.raises(ConfigError, match="has 4 goals"):
        halves(shop, 0)


def test_an_episode_ends_with_the_purchase_and_lists_what_can_be_done():
    stock = sample(GoalKind.HUMAN)
    listing = Variant(name="sample", stock=stock)

    async def play():
        pool = EnvPool(lambda: WebShopEnv(listing), capacity=2)
        async with pool.lease() as env:
            shop = env.unwrapped
            assert isinstance(shop, WebShopEnv)
            opening = await env.reset(Item(item_id="sample_0", env="sample"))
            told = json.loads(opening.rpartition(ACTIONS)[2])
            assert told == {"has_search_bar": True, "clickables": ["search"]}
            assert (await env.step("look around")).observation == opening
            assert await shop.inspect("available_actions") == told
            assert opening == await shop.inspect("observation") + "\n" + ACTIONS + json.dumps(told)
            assert await shop.inspect("instruction_text") in opening
            assert Seen(await shop.inspect("html")).has_search_bar
            with pytest.raises(ConfigError, match="tells no 'weather'"):
                await shop.inspect("weather")
            found = await env.step("search[oak table]")
            assert "b0sample06" in json.loads(found.observation.rpartition(ACTIONS)[2])["clickables"]
            await env.step("click[B0SAMPLE06]")
            result = await env.step("click[Buy Now]")
            with pytest.raises(RuntimeError, match="after the end"):
                await env.step("click[Buy Now]")
            assert "Thank you" in await shop.inspect("observation")
        await pool.close()
        return result

    result = asyncio.run(play())
    assert result.terminated
    assert 0 <= result.reward <= 1
    assert result.success == (result.reward == 1.0)
    assert {"attributes_met", "price_met", "type_met"} <= {*result.metrics}


def test_the_downloads_are_told_by_address():
    for data in (WEBSHOP, WEBSHOP_FULL):
        assert {file.path for file in data.files} == {*data.required_paths}
        assert all(file.url.startswith("https://") for file in data.files)
