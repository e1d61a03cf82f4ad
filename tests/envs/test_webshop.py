"""WebShop's shop, compared with what upstream's own engine answered on the same files.

Those files (`webshop_sample`) are in upstream's formats, with everything that a loader has to handle: ranges
and missing prices, slashes and capitals in options, options that are null, a product listed twice, malformed
asins, HTML in titles.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.support.openings import read_opening

pytest.importorskip("bm25s", reason="pip install bm25s")
pytest.importorskip("Stemmer", reason="pip install pystemmer")
pytest.importorskip("rapidfuzz", reason="pip install rapidfuzz")

from envs.builtin.webshop.catalogue import load_products
from envs.builtin.webshop.data import WEBSHOP, WEBSHOP_FULL
from envs.builtin.webshop.env import Variant, WebShopEnv
from envs.builtin.webshop.goals import GoalKind
from envs.builtin.webshop.pages import PageKind
from envs.builtin.webshop.search import Index, analyze
from envs.builtin.webshop.session import Session
from envs.builtin.webshop.shop import Shop, load
from envs.builtin.webshop.spec import split_goals
from envs.builtin.webshop.views import SEPARATOR, View, render
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.remote.agentgym import ACTIONS
from envs.runtime.pool import EnvPool
from envs.types import Item

SAMPLE = Path(__file__).parent / "webshop_sample"
UPSTREAM = json.loads((SAMPLE / "upstream.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(SAMPLE.parent))


SAMPLE_DATA = replace(WEBSHOP, name=SAMPLE.name)


@pytest.fixture(scope="module", params=GoalKind)
def shop(request: pytest.FixtureRequest) -> tuple[GoalKind, Shop]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINGSPAN_DATA", str(SAMPLE.parent))
        return request.param, load(SAMPLE_DATA, request.param)


def session(shop: Shop, number: int, *actions: str) -> Session:
    visit = Session(shop, shop.find_goal(number))
    for action in actions:
        visit.act(action)
    return visit


def test_the_goals_are_upstreams_in_its_order(shop: tuple[GoalKind, Shop]) -> None:
    kind, ours = shop
    upstream_goals = UPSTREAM[kind]["goals"]
    assert [
        [g.product.asin, g.instruction, [*g.attributes], g.price_upper] for g in ours.goals
    ] == upstream_goals


def test_every_page_action_and_reward_is_upstreams(shop: tuple[GoalKind, Shop]) -> None:
    kind, ours = shop
    rewards = set()
    for episode in UPSTREAM[kind]["episodes"]:
        view, visit = View(episode["view"]), Session(ours, ours.find_goal(episode["session"]))
        for turn, page_number in enumerate(episode["observations"]):
            if turn:
                visit.act(episode["actions"][turn - 1])
            context = (kind, view, episode["actions"][:turn])
            assert render(visit.page, view, visit.clicks) == UPSTREAM["pages"][page_number], context
            assert [*visit.page.clickables] == episode["clickables"][turn], context
        assert visit.score is not None
        assert visit.score.reward == pytest.approx(episode["reward"])
        rewards.add(episode["reward"])
    assert len(rewards) >= 3


class BrowserPage(HTMLParser):
    """The texts that a browser would show of a page, and what upstream's selectors find in it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.clickables: list[str] = []
        self.has_search_bar = False
        self._is_hidden = self._is_clickable = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self._is_hidden = tag == "title"
        self._is_clickable = attributes.get("class") in ("btn", "product-link")
        self.has_search_bar |= attributes.get("id") == "search_input"
        if attributes.get("type") == "radio":
            self.clickables.append(attributes["value"] or "")

    def handle_endtag(self, tag: str) -> None:
        self._is_hidden = self._is_clickable = False

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._is_hidden:
            self.texts.append(data.strip())
            if self._is_clickable:
                self.clickables.append(data.lower())


def test_the_html_view_says_and_offers_what_the_text_view_does(shop: tuple[GoalKind, Shop]) -> None:
    kind, ours = shop
    for episode in UPSTREAM[kind]["episodes"]:
        visit = Session(ours, ours.find_goal(episode["session"]))
        for action in episode["actions"]:
            page = BrowserPage(render(visit.page, View.HTML, visit.clicks))
            assert SEPARATOR.join(page.texts) == render(visit.page, View.TEXT, visit.clicks)
            assert {*page.clickables} == {*visit.page.clickables}
            assert page.has_search_bar == (visit.page.kind is PageKind.SEARCH)
            visit.act(action)


def test_products_are_read_as_upstream_reads_them(shop: tuple[GoalKind, Shop]) -> None:
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


def test_the_way_back_forgets_options_and_a_look_at_the_details_does_not(shop: tuple[GoalKind, Shop]) -> None:
    _, ours = shop
    visit = session(
        ours, 0, "search[faux fur slippers]", "click[b0sample01]", "click[navy blue]", "click[Features]"
    )
    assert "Rubber sole" in render(visit.page, View.TEXT, visit.clicks)
    visit.act("click[< Prev]")
    assert tuple(visit.clicks.choices) == ("navy blue",)
    visit.act("click[white]")
    assert tuple(visit.clicks.choices) == ("white",)
    visit.act("click[< prev]")
    kinds = [visit.page.kind]
    visit.act("click[B0SAMPLE01]")
    assert tuple(visit.clicks.choices) == ()
    visit.act("search[lamp]")
    kinds.append(visit.page.kind)
    visit.act("click[next >]")
    assert "Page 2" in render(visit.page, View.TEXT, visit.clicks)
    visit.act("click[back to search]")
    assert [*kinds, visit.page.kind] == [PageKind.RESULTS, PageKind.RESULTS, PageKind.SEARCH]


@pytest.mark.parametrize(
    "action",
    [
        *("", "search", "search[]", "click[]", "click[search]", "click[buy now]", "SEARCH[lamp]"),
        *("click[b0sample01]", "search[a [lamp]]", "click[" + "[" * 100_000, "lamp\nsearch[lamp]"),
        "search[" + "x" * 100_000 + "]",
    ],
)
def test_an_invalid_action_changes_nothing(shop: tuple[GoalKind, Shop], action: str) -> None:
    _, ours = shop
    visit = session(ours, 0, action)
    assert visit.page == session(ours, 0).page
    assert visit.score is None


def test_words_are_lucenes() -> None:
    assert [*analyze("The Women's running shoes, 3.5 mm & 6s for U.S. men\u2019s feet")] == (
        ["women", "run", "shoe", "3.5", "mm", "6s", "u.", "men", "feet"]
    )


def test_search_is_bm25_by_hand_and_ties_keep_the_order() -> None:
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


@pytest.mark.parametrize(("name", "spoil", "message"), BAD)
def test_the_error_of_a_malformed_file_has_location_expectation_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[str], str], message: str
) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    folder = tmp_path / WEBSHOP.name
    folder.mkdir()
    for file in WEBSHOP.required_paths:
        text = (SAMPLE / file).read_text(encoding="utf-8")
        (folder / file).write_text(spoil(text) if file == name else text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as error:
        load(WEBSHOP, GoalKind.HUMAN)
    assert str(folder / name) in str(error.value)
    assert "wingspan data pull webshop" in str(error.value)


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.json"
    path.write_bytes(b'[{"asin": "\xff"}]')
    with pytest.raises(ConfigError, match="line 1: expected UTF-8 text"):
        load_products(path, {})


def test_missing_data_are_reported_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    ("name", "message"),
    [
        ("webshop:txt", "did you mean 'webshop:text'"),
        ("webshop:text?goals=all", "goals is 'all'; there is synthetic, human"),
        ("webshop:text?catalogue=mini", "catalogue is 'mini'; there is small, full"),
        ("webshop-mini:html?actions=1", "actions is 1, not true or false"),
        ("webshop-mini:html?color=red", "no option color"),
    ],
)
def test_a_wrong_name_is_refused_with_the_alternatives(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_env(name)


def test_a_shop_with_too_few_goals_has_no_split() -> None:
    shop = load(SAMPLE_DATA, GoalKind.HUMAN)
    with pytest.raises(ConfigError, match="has 4 goals"):
        split_goals(shop, 0)


async def test_an_episode_ends_with_the_purchase_and_lists_what_can_be_done() -> None:
    variant = Variant(name="sample", data=SAMPLE_DATA, goals=GoalKind.HUMAN)
    pool = EnvPool(lambda: WebShopEnv(variant), capacity=2)
    async with pool.lease() as env:
        shop = env.unwrapped
        assert isinstance(shop, WebShopEnv)
        opening = await read_opening(env, Item(item_id="sample_0", env="sample"))
        actions = json.loads(opening.rpartition(ACTIONS)[2])
        assert actions == {"has_search_bar": True, "clickables": ["search"]}
        assert (await env.step("look around")).observation == opening
        assert await shop.inspect("available_actions") == actions
        assert opening == await shop.inspect("observation") + "\n" + ACTIONS + json.dumps(actions)
        assert await shop.inspect("instruction_text") in opening
        assert BrowserPage(await shop.inspect("html")).has_search_bar
        with pytest.raises(ConfigError, match="no fact 'weather'"):
            await shop.inspect("weather")
        result = await env.step("search[oak table]")
        assert "b0sample06" in json.loads(result.observation.rpartition(ACTIONS)[2])["clickables"]
        await env.step("click[B0SAMPLE06]")
        result = await env.step("click[Buy Now]")
        with pytest.raises(RuntimeError, match="after the end"):
            await env.step("click[Buy Now]")
        assert "Thank you" in await shop.inspect("observation")
    await pool.close()
    assert result.terminated
    assert 0 <= result.reward <= 1
    assert result.success == (result.reward == 1.0)
    assert {"attributes_met", "price_met", "type_met"} <= {*result.metrics}


def test_downloads_have_addresses() -> None:
    for data in (WEBSHOP, WEBSHOP_FULL):
        assert {file.path for file in data.files} == {*data.required_paths}
        assert all(file.url.startswith("https://") for file in data.files)
