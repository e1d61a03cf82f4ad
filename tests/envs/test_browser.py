"""The browser that web tasks share: what is seen, done and kept out, in a real Chromium."""

import asyncio
import os
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.builtin.browser.accessibility_tree import ElementNumbers, Node, read_accessibility_tree
from envs.builtin.browser.actions import (
    ElementAction,
    InvalidAction,
    PageAction,
    describe_action,
    read_action,
)
from envs.builtin.browser.chromium import Chromium, abort_on_death
from envs.builtin.browser.expert_steps import find
from envs.builtin.browser.leases import BrowserLease
from envs.builtin.browser.program import CHROMIUM, probe_isolation
from envs.builtin.browser.session import MAX_TABS, BrowserSession
from envs.errors import EnvCrashed
from tests.support.kills import kill_browser
from tests.support.needs import needs
from tests.support.waiting import wait_until_async
from tests.support.web_site import Site, site

chromium = needs(CHROMIUM)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click [12]", ElementAction("click", 12)),
        ("I click. ```click [12]``` or ```click [13]```", ElementAction("click", 12)),
        ("```\nclick[12]\n```", ElementAction("click", 12)),
        ("type [3] [a [b] c] [0]", ElementAction("type", 3, "a [b] c", enter=False)),
        ("type [3] [abc] [1]", ElementAction("type", 3, "abc", enter=True)),
        ("type [3] [abc]", ElementAction("type", 3, "abc", enter=True)),
        ("press [ctrl+a]", PageAction("press", "Control+a")),
        ("press [Meta+arrowdown]", PageAction("press", "Meta+ArrowDown")),
        ("scroll [down]", PageAction("scroll", "down")),
        ("scroll up", PageAction("scroll", "up")),
        ("goto [http://onestopmarket.com/a?b=c]", PageAction("goto", "http://onestopmarket.com/a?b=c")),
        ("tab_focus [1]", PageAction("tab_focus", "1")),
        ("close_tab", PageAction("close_tab")),
        ("go_back", PageAction("go_back")),
        ("stop", PageAction("stop", "")),
        ("stop [42]", PageAction("stop", "42")),
    ],
)
def test_actions_are_read_as_webarena_reads_them(text: str, action: object) -> None:
    assert read_action(text) == action


@pytest.mark.parametrize(
    "text",
    ["", "``` ```", "click", "click [x]", "click 12", "type [1]", "jump [1]", "[click]", "stop" * 2000],
)
def test_an_invalid_action_is_refused(text: str) -> None:
    with pytest.raises(InvalidAction, match=r"."):
        read_action(text)


def test_actions_are_described_as_webarena_describes_them() -> None:
    assert describe_action(ElementAction("click", 4), "link 'x'") == "click [4] where [4] is link 'x'"
    assert (
        describe_action(ElementAction("type", 4, "abc", enter=True), "textbox 'q'")
        == "type [4] [abc ] where [4] is textbox 'q'"
    )
    assert describe_action(ElementAction("click", 9), None) == (
        'Attempt to perfom "click" on element "[9]" but no matching element found. '
        "Please check the observation more carefully."
    )


def _node(node: str, role: str, name: str, *children: str, **properties: object) -> Node:
    return {
        "nodeId": node,
        "backendDOMNodeId": int(node),
        "role": {"value": role},
        "name": {"value": name},
        "properties": [{"name": key, "value": {"value": value}} for key, value in properties.items()],
        "childIds": list(children),
    }


def test_a_tree_is_written_as_webarena_writes_it() -> None:
    """By hand, after the rules of its processor."""
    nodes = [
        _node("1", "RootWebArea", "Shop", "2", "3", "9", focused=True, focusable=True),
        _node("2", "generic", "", "4"),  # nothing to say: its children take its place
        _node("3", "link", "it's", "5", url="http://x", focusable=True),
        _node("4", "image", ""),
        _node("5", "StaticText", "it's"),  # told by its link
        _node("9", "button", "Buy\nnow", "6", required=False, level=2),
        _node("6", "StaticText", "far below"),
    ]
    bounds = {
        1: (0, 0, 10, 10),
        3: (5, 205, 50, 20),
        5: (5, 205, 50, 20),
        9: (0, 210, 9, 9),
        6: (0, 990, 9, 9),
    }
    snapshot = {
        "documents": [
            {
                "scrollOffsetY": 200,
                "nodes": {"backendNodeId": list(bounds)},
                "layout": {"nodeIndex": list(range(len(bounds))), "bounds": list(bounds.values())},
            }
        ]
    }
    numbers = ElementNumbers()
    tree = read_accessibility_tree(nodes, snapshot, document="d", numbers=numbers, viewport=(100, 100))
    assert tree.text.splitlines() == [
        "[1] RootWebArea 'Shop' focused: True",
        '\t[2] link "it\'s"',
        "\t[4] button 'Buy\\nnow' required: False",
    ]
    assert tree.elements[2].box == (5, 5, 50, 20)
    assert (
        read_accessibility_tree(nodes, snapshot, document="d", numbers=numbers, viewport=(100, 100)) == tree
    )
    after = read_accessibility_tree(nodes, snapshot, document="e", numbers=numbers, viewport=(100, 100))
    assert not set(after.elements) & set(tree.elements)  # another page has other numbers


async def open_session(lease: BrowserLease, shop: Site, *paths: str) -> BrowserSession:
    urls = [shop.url + path for path in paths or ("/",)]
    return await BrowserSession.open(lease.chromium, origins=[shop.url], urls=urls)


async def done(session: BrowserSession, text: str) -> str:
    await session.act(read_action(text))
    return await session.observe()


@chromium
async def test_a_browser_that_is_killed_is_noticed_at_once_and_replaced() -> None:
    before = set(psutil.Process().children(recursive=True))
    with site() as shop:
        leases = [await BrowserLease.acquire() for _ in range(2)]
        assert leases[0].chromium is leases[1].chromium
        sessions = [await open_session(lease, shop) for lease in leases]
        endless = "(fetch('/begun'), new Promise(() => 0))"
        waiting = asyncio.ensure_future(sessions[0].evaluate(endless))
        await wait_until_async(lambda: "GET /begun" in shop.requests)
        kill_browser(random.Random(0))
        with pytest.raises(EnvCrashed):
            await asyncio.wait_for(waiting, 5)
        with pytest.raises(EnvCrashed):
            await sessions[1].observe()
        assert not any(lease.is_alive for lease in leases)
        third = await BrowserLease.acquire()
        assert third.chromium is not leases[0].chromium
        session = await open_session(third, shop)
        assert "Red lamp" in await session.observe()
        for lease in (*leases, third):
            await lease.release()
    assert not [number for number in psutil.Process().children(recursive=True) if number not in before]


@chromium
async def test_what_a_dead_browser_was_asked_is_not_waited_for() -> None:
    """Playwright never answers some of what it was asked just before the end."""
    chromium = await Chromium.start()
    context = await chromium.context(origins=())
    is_asking = asyncio.Event()

    async def ask() -> None:
        assert context.browser is not None
        async with abort_on_death(context.browser, limit_s=60):
            is_asking.set()
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(ask())
    await is_asking.wait()
    kill_browser(random.Random(0))
    await asyncio.wait({waiting}, timeout=5)
    assert waiting.done()
    assert isinstance(waiting.exception(), TimeoutError)
    with pytest.raises(EnvCrashed, match="it has died"):
        await chromium.context(origins=())
    await chromium.close()


Use = Callable[[BrowserLease, Site], Coroutine[Any, Any, None]]
Play = Callable[[Use], None]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """Runs a test's `use` of a new shop and of the browser that these tests share, of which nothing is left
    at the end. The tests that kill browsers come before it."""
    before = set(psutil.Process().children(recursive=True))
    with asyncio.Runner() as runner:
        lease = runner.run(BrowserLease.acquire())

        def play(use: Use) -> None:
            with site() as shop:
                runner.run(use(lease, shop))

        yield play
        runner.run(lease.release())
    left = [process for process in psutil.Process().children(recursive=True) if process not in before]
    assert not [process for process in left if process.status() == psutil.STATUS_ZOMBIE]
    assert not left


@chromium
@pytest.mark.skipif(not probe_isolation().bubblewrap, reason="bubblewrap does not work here")
def test_the_browser_sees_no_files_and_runs_as_nobody(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        session = await open_session(lease, shop)
        page = await session.context.new_page()
        await page.goto("chrome://version")
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "--type=renderer" not in process.cmdline():
                    continue
                assert process.uids().real != 0
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert "NoNewPrivs:\t1" in status
                if probe_isolation().sandbox:
                    assert "Seccomp:\t2" in status
                assert not os.path.exists(f"/proc/{process.pid}/root/home")
        await session.close()

    play(use)


@chromium
def test_a_page_is_seen_and_acted_on(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        session = await open_session(lease, shop)
        observation = await session.observe()
        assert observation.startswith("Tab 0 (current): Shop\n\n[1] RootWebArea 'Shop' focused: True\n\t[")
        assert "link 'Red lamp'" in observation
        assert "The end of the page" not in observation
        for _ in range(3):
            observation = await done(session, "scroll [down]")
        assert "The end of the page" in observation
        for _ in range(3):
            observation = await done(session, "scroll [up]")
        observation = await done(session, f"type [{find(observation, 'combobox', 'Sort by')}] [price] [0]")
        observation = await done(session, f"type [{find(observation, 'textbox', 'Search')}] [a lamp] [1]")
        assert "RootWebArea 'Results for a lamp'" in observation
        assert "StaticText 'by Price'" in observation
        observation = await done(session, "go_back")
        observation = await done(session, f"click [{find(observation, 'link', 'In a new tab')}]")
        assert observation.startswith("Tab 0 (current): Shop | Tab 1: Red lamp\n")
        observation = await done(session, "tab_focus [1]")
        assert observation.startswith("Tab 0: Shop | Tab 1 (current): Red lamp\n")
        assert "heading 'Red lamp'" in observation
        observation = await done(session, f"click [{find(observation, 'button', 'Order')}]")
        assert "StaticText 'Red lamp'" in observation
        assert shop.orders == ["Red lamp"]
        assert (await done(session, "close_tab")).startswith("Tab 0 (current): Shop\n")
        stale = await done(session, "click [9999]")
        assert stale.partition("\n\n")[2].startswith("[")
        await done(session, "close_tab")
        last = max(session.tree.elements)
        assert await session.observe() == f"Tab 0 (current): \n\n[{last}] RootWebArea '' focused: True"
        await session.close()

    play(use)


@chromium
def test_the_same_page_has_the_same_text_whatever_the_browser_did_before(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        openings = []
        for path in ("/", "/product/1", "/"):
            session = await open_session(lease, shop, path)
            openings.append([await session.observe(), await done(session, "press [Tab]")])
            await session.close()
        pages = await asyncio.gather(open_session(lease, shop), open_session(lease, shop, "/product/2"))
        openings.append([await pages[0].observe(), await done(pages[0], "press [Tab]")])
        for page in pages:
            await page.close()
        assert openings[0] == openings[2] == openings[3] != openings[1]

    play(use)


@chromium
def test_nothing_but_the_named_sites_is_reached(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        with site() as second:
            shop.elsewhere = second.url
            session = await open_session(lease, shop, "/harm/page")
            for url in (
                f"{second.url}/goto",
                shop.url.replace("127.0.0.1", "localhost") + "/",
                shop.url.replace("http://", "http://x:y@") + "@" + second.url.removeprefix("http://"),
                "file:///etc/passwd",
                "chrome://version",
                "view-source:" + shop.url,
                "javascript:alert(1)",
                "data:text/html,x",
                "http://169.254.169.254/latest",
                "nonsense",
            ):
                with pytest.raises(InvalidAction, match="no page of the sites"):
                    await session.act(PageAction("goto", url))
            observation = await session.observe()
            assert "fetch kept" in observation
            for name in ("out", "file", "download"):
                await session.act(ElementAction("click", find(await session.observe(), "link", name)))
                if session.url != f"{shop.url}/harm/page":
                    await session.act(PageAction("goto", f"{shop.url}/harm/page"))
            await session.act(PageAction("goto", f"{shop.url}/harm/redirect"))
            assert "secret" not in await session.content()
            for text in ("go_back", "go_back", "go_forward", "go_forward"):
                await done(session, text)
            assert second.requests == []
            assert (
                await session.evaluate("'serviceWorker' in navigator && !!navigator.serviceWorker") is False
            )
            query = "navigator.permissions.query({name: 'geolocation'}).then(found => found.state)"
            assert await session.evaluate(query) != "granted"
            await session.close()

    play(use)


@chromium
def test_tabs_have_an_end(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        session = await open_session(lease, shop, "/harm/tabs")
        await done(session, f"click [{find(await session.observe(), 'button', 'More')}]")
        await session.settle()
        assert len(session.context.pages) <= MAX_TABS
        await session.close()

    play(use)


@chromium
def test_a_page_that_hangs_or_a_site_that_is_gone_is_a_fault(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("envs.builtin.browser.session.ANSWER_S", 1.0)
    monkeypatch.setattr("envs.builtin.browser.session.NAVIGATION_S", 2.0)

    async def use(lease: BrowserLease, shop: Site) -> None:
        session = await open_session(lease, shop)
        with site() as closed_site:
            pass
        with pytest.raises(EnvCrashed, match=f"{closed_site.url} does not answer|ERR_CONNECTION_REFUSED"):
            await BrowserSession.open(lease.chromium, origins=[closed_site.url], urls=[closed_site.url])
        with pytest.raises(EnvCrashed):
            await session.act(PageAction("goto", f"{shop.url}/harm/hang"))
        await session.close()
        session = await open_session(lease, shop)  # the browser goes on
        assert "Red lamp" in await session.observe()
        await session.close()

    play(use)


@chromium
def test_a_site_that_answers_with_a_servers_error_is_a_fault_unless_the_policy_asked(play: Play) -> None:
    async def use(lease: BrowserLease, shop: Site) -> None:
        for path in ("/status/500", "/status/503"):
            with pytest.raises(EnvCrashed, match=f"^{shop.url} answers {path[-3:]}$"):
                await open_session(lease, shop, "/", path)
        session = await open_session(lease, shop, "/status/404")
        assert "Status 404" in await session.observe()
        assert "Status 503" in await done(session, f"goto [{shop.url}/status/503]")
        assert session.is_alive
        with pytest.raises(EnvCrashed, match=f"^{shop.url} answers 502$"):
            async with session.open_tab(f"{shop.url}/status/502"):
                pass
        assert not session.is_alive
        await session.close()

    play(use)
