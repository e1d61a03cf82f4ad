"""WebArena: its tasks as the package ships them, its three ways of judging, and tasks played to their end."""

import asyncio
import json
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from envs.builtin.browser.expert_steps import click, find
from envs.builtin.browser.leases import BrowserLease
from envs.builtin.browser.program import CHROMIUM
from envs.builtin.webarena import login, spec
from envs.builtin.webarena.env import SiteState, WebEnv
from envs.builtin.webarena.evaluators import (
    HelperCall,
    clean,
    contains,
    exact_match,
    is_word,
    must_include,
    read_call,
    score,
    url_matches,
)
from envs.builtin.webarena.helpers import HELPERS
from envs.builtin.webarena.judge import ModelJudge
from envs.builtin.webarena.login import log_in, storage_state
from envs.builtin.webarena.sites import PUBLIC, SITES_ANSWER, Sites
from envs.builtin.webarena.tasks import TASK_FILE, RequiredContents, Task, read_tasks, tasks
from envs.errors import ConfigError, EnvCrashed, MissingDependency
from envs.network.client import Backoff
from envs.types import Item, StepResult
from tests.support.chat_server import chat_server, says
from tests.support.http_server import serving_in_thread
from tests.support.needs import needs
from tests.support.web_site import Site, site

chromium = needs(CHROMIUM)
needs_tasks = needs(TASK_FILE)


def task(number: int = 0, *, start: str = "__SHOPPING__", logged_in: bool = False, **how: Any) -> Task:
    """In the form of `test.raw.json`."""
    evaluation = {"reference_answers": None, "reference_url": "", "program_html": [], **how}
    return Task.model_validate(
        {
            "sites": ["shopping"],
            "task_id": number,
            "require_login": True,
            "storage_state": "./.auth/shopping_state.json" if logged_in else None,
            "start_url": start,
            "geolocation": None,
            "intent_template": "",
            "instantiation_dict": {},
            "intent": "What does the red lamp cost?",
            "require_reset": False,
            "eval": evaluation,
            "intent_template_id": 1,
        }
    )


@needs_tasks
def test_the_tasks_are_the_benchmarks() -> None:
    """Counts as of its own repository."""
    all_tasks = tasks()
    assert list(all_tasks) == list(range(812))
    kinds = [kind for case in all_tasks.values() for kind in case.eval.eval_types]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "program_html": 411,
        "string_match": 335,
        "url_match": 205,
    }
    assert sum(case.eval.needs_judge for case in all_tasks.values()) == 118
    assert all_tasks[7].start_urls == ("__MAP__",)
    assert {name for case in all_tasks.values() for name in case.logins} == set(login.ACCOUNTS)
    calls = [
        call.name
        for case in all_tasks.values()
        for target in case.eval.program_html
        for call in (read_call(target.url), read_call(target.locator))
        if call is not None
    ]
    assert set(calls) == set(HELPERS)
    sites = Sites({name: f"http://{name}.test" for name in PUBLIC}, PUBLIC)
    for case in all_tasks.values():
        assert "__" not in "".join(sites.fill_in(url) for url in case.start_urls)


@needs_tasks
def test_templates_are_on_one_side_and_items_are_numbered_as_the_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    split = spec.split(0)
    assert (len(split.train) + len(split.test)) == 812
    templates = [
        {tasks()[item.index].intent_template_id for item in side} for side in (split.train, split.test)
    ]
    assert not templates[0] & templates[1]
    assert 50 <= len(split.test) <= 110
    assert split == spec.split(0) != spec.split(1)
    assert spec.make_item(44).metadata == {"site": "gitlab"}
    with pytest.raises(ConfigError, match=r"webarena_811; there is no 'webarena_812'"):
        spec.make_item(812)
    monkeypatch.setenv("WEBARENA_JUDGE_URL", "none")
    split = spec.split(0)
    assert (len(split.train) + len(split.test)) == 812 - 118


def test_a_broken_file_of_tasks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.json"
    path.write_text('[\n{"task_id": 1,\n')
    with pytest.raises(ConfigError, match=r"tasks.json, line 3: no JSON"):
        read_tasks(path)
    path.write_text(
        '[{"task_id": "one", "sites": [], "intent": "", "start_url": "", "eval": {"eval_types": []}}]'
    )
    with pytest.raises(ConfigError, match=r"task 0.task_id: .* got 'one'"):
        read_tasks(path)


def test_answers_are_compared_as_webarena_compares_them() -> None:
    assert clean("  'Red Lamp' ") == "red lamp"
    assert clean('"Red "Lamp""') == 'red "lamp"'
    assert exact_match("Quest Lumaflex™ Band", "quest lumaflex™ band")
    assert not exact_match("12.50", "12.5")
    assert must_include("557m", "It is 557m.")
    assert must_include("0", "10 items")  # as part of a list; alone it is a word
    assert not must_include("0", "10 items", as_word=True)
    assert must_include("0", "There are 0. None.", as_word=True)
    assert must_include("0", "$0, or none", as_word=True)
    assert must_include("6", "6—because there are six", as_word=True)
    assert must_include("6", "from 1\u20136", as_word=True)
    assert must_include("ab", "cabs", as_word=True)


def test_a_character_stands_alone_where_nltk_cuts_around_it() -> None:
    """On texts drawn at random, quotes apart, of which NLTK makes something else now and then."""
    tokenize = pytest.importorskip("nltk.tokenize.destructive").NLTKWordTokenizer().tokenize
    rng = random.Random(0)
    parts = [
        "0",
        "0",
        "0",
        "1",
        "a",
        " ",
        " ",
        " ",
        ".",
        ",",
        ":",
        ";",
        "$",
        "%",
        "(",
        ")",
        "-",
        "!",
        "/",
        " the ",
    ]
    for _ in range(3000):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(1, 8))).strip()
        sentences = re.split(r"(?<=[.!?])\s+", text)
        assert is_word("0", text) == any("0" in tokenize(case) for case in sentences), text
    for dash in "\u2010\u2011\u2012\u2013\u2014\u2015\u2212":
        for text in (f"0{dash}because", f"because{dash}0", f"1{dash}0", f"0{dash}", f"a {dash}0"):
            assert is_word("0", text) == ("0" in tokenize(text)), text


def test_addresses_are_compared_as_webarena_compares_them() -> None:
    assert url_matches("http://h:1/dashboard/todos/", reference="http://h:1/dashboard/todos")
    assert url_matches("http://h:1/a/b/c?x=1", reference="http://h:1/a/b")  # GOLD in PRED
    assert not url_matches("http://h:1/a", reference="http://h:1/a/b")
    assert url_matches("http://h:1/b", reference="http://h:1/a |OR| http://h:1/b")
    assert url_matches("http://h:1/s?q=x&sort=asc&p=2", reference="http://h:1/s?sort=asc&q=x")
    assert not url_matches("http://h:1/s?q=x", reference="http://h:1/s?sort=asc&q=x")
    assert url_matches("http://h:1/s?q=y", reference="http://h:1/s?q=x |OR| http://h:1/s?q=y")
    with pytest.raises(ConfigError, match="url_note 'EXACT'"):
        url_matches("http://h", reference="http://h", note="EXACT")


def test_parts_of_pages_are_compared_as_webarena_compares_them() -> None:
    assert contains("12.50 &amp; more", RequiredContents(must_include=("& more", "13 |OR| 12.50")))
    assert not contains("12.50", RequiredContents(must_include=("12.50", "more")))
    assert contains(" 64.00\n", RequiredContents(exact_match="64.00"))
    assert not contains("None", RequiredContents(exact_match=""))


def test_calls_are_read_and_not_run() -> None:
    assert read_call("func:f('a', __page__)") == HelperCall("f", ("a", "__page__"))
    assert read_call("document.title") is None
    for text in ("func:__import__('os').system('x')", "func:f(1)", "func:f(x=1)", "func:f("):
        with pytest.raises(ConfigError, match="func:"):
            read_call(text)


def test_sites_have_public_names() -> None:
    sites = Sites({"shopping": "http://10.0.0.1:70", "shopping_admin": "http://10.0.0.1:70/admin"}, PUBLIC)
    assert sites.to_public("http://10.0.0.1:70/a?b") == "http://onestopmarket.com/a?b"
    assert sites.to_public("http://10.0.0.1:70/admin/x") == "http://luma.com/admin/x"
    assert sites.to_public("http://10.0.0.1:700/a") == "http://10.0.0.1:700/a"
    for text in ("http://onestopmarket.com/a", "https://onestopmarket.com/a", "onestopmarket.com/a"):
        assert sites.to_local(text) == "http://10.0.0.1:70/a"
    assert sites.to_local("http://onestopmarket.com.evil/a") == "http://onestopmarket.com.evil/a"


def test_what_is_missing_is_named_before_a_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in PUBLIC:
        monkeypatch.delenv(f"WA_{name.upper()}", raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("WEBARENA_LOGINS", str(tmp_path))
    monkeypatch.delenv("WEBARENA_JUDGE_URL", raising=False)
    with pytest.raises(MissingDependency) as error:
        spec.SPEC.check()
    for part in ("WA_GITLAB=http://…", "python -m envs.builtin.webarena.login", "WEBARENA_JUDGE_URL=none"):
        assert part in str(error.value)
    with site() as shop:
        for name in PUBLIC:
            monkeypatch.setenv(f"WA_{name.upper()}", shop.url)
        monkeypatch.setenv("WA_MAP", "http://127.0.0.1:9")
        missing = SITES_ANSWER.find_remedy()
        assert missing is not None
        assert missing.startswith("start map (http://127.0.0.1:9: ")
    with pytest.raises(
        MissingDependency, match=r"shopping_state.json is missing, .*envs.builtin.webarena.login"
    ):
        storage_state(["shopping"])
    (tmp_path / "shopping_state.json").write_text("{}")
    with pytest.raises(ConfigError, match="no storage state"):
        storage_state(["shopping"])


def test_a_judge_says_so_in_its_last_line() -> None:
    def ask(text: str) -> bool:
        with chat_server(lambda body: says(text)) as server:
            judge = ModelJudge(server.url, "toy")
            answer = asyncio.run(judge.same_answer(question="the question", reference="r", answer="a"))
            assert "the question" in server.requests[0]["messages"][0]["content"]
        return answer

    assert ask("Well.\nCorrect")
    assert ask("**Verdict: correct**")
    assert not ask("incorrect")
    assert not ask("Partially correct.")
    for text in ("I cannot say.", "It is not correct.", "Correct?\nNo"):
        with pytest.raises(EnvCrashed, match="gives no verdict"):
            ask(text)


def test_a_judge_that_is_busy_is_asked_again_and_one_that_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("envs.network.client.ASK", Backoff(max_attempts=3, first_s=0.01))
    statuses: list[int] = []

    async def answer(_: Request) -> Response:
        status = statuses.pop(0)
        body = {"choices": [{"message": {"content": "correct"}}]} if status == 200 else {"error": "no"}
        return JSONResponse(body, status_code=status)

    app = Starlette(routes=[Route("/chat/completions", answer, methods=["POST"])])
    with serving_in_thread(app) as url:

        def ask(*replies: int) -> bool:
            statuses[:] = replies
            return asyncio.run(ModelJudge(url, "toy").same_answer(question="q", reference="r", answer="a"))

        assert ask(429, 503, 200)
        with pytest.raises(EnvCrashed, match="answered 503"):
            ask(503, 503, 503)
        with pytest.raises(ConfigError, match=r"answered 401: .*correct the URL or the key"):
            ask(401)


class Shop:
    """A `Venue` whose one site is a shop on loopback."""

    is_alive = True

    def __init__(self, shop: Site, *, state: Any = None) -> None:
        self.sites = Sites({"shopping": shop.url}, PUBLIC)
        self._state = state

    async def prepare_sites(self, task: Task) -> SiteState:
        return SiteState(self.sites, self._state if task.logins else None)

    async def close(self) -> None: ...


Action = str | Callable[[str], str]


async def play(shop: Site, case: Task, *actions: Action, state: Any = None) -> list[Any]:
    """The opening, and what each action was answered with."""
    env = WebEnv(
        tasks=lambda: {case.task_id: case},
        provider=Shop(shop, state=state),
        helpers=HELPERS,
        judge=lambda: None,
    )
    try:
        results: list[Any] = [await env.reset(Item(item_id=f"webarena_{case.task_id}", env="webarena"))]
        page = results[0]
        for action in actions:
            results.append(await env.step(action if isinstance(action, str) else action(page)))
            page = results[-1].observation
        return results
    finally:
        await env.close()


@asynccontextmanager
async def one_browser() -> AsyncIterator[None]:
    """Hold a browser, which all that is played within shares."""
    lease = await BrowserLease.acquire()
    try:
        yield
    finally:
        await lease.release()


def play_all(shop: Site, *cases: tuple[Task, Sequence[Action]]) -> list[list[Any]]:
    """What `play` returns for each of the cases, played one after another in one browser."""

    async def main() -> list[list[Any]]:
        async with one_browser():
            return [await play(shop, case, *actions) for case, actions in cases]

    return asyncio.run(main())


RED = click("link", "Red lamp").resolve
ORDER = click("button", "Order").resolve


@chromium
def test_a_question_is_asked_and_its_answer_judged() -> None:
    case = task(eval_types=["string_match"], reference_answers={"must_include": ["12.50"]})
    with site() as shop:
        (opening, next_page, rejection, parse_error, end), (_, wrong_end) = play_all(
            shop,
            (case, [RED, "goto [http://reddit.com]", "say hello", "```stop [It is $12.50]```"]),
            (case, ["stop [80]"]),
        )
        assert opening.startswith("OBSERVATION:\nTab 0 (current): Shop\n\n[1] RootWebArea 'Shop'")
        assert opening.endswith(
            "\nURL: http://onestopmarket.com/\nOBJECTIVE: What does the red lamp cost?\nPREVIOUS ACTION: None"
        )
        number = find(opening, "link", "Red lamp")
        assert next_page.observation.endswith(
            f"PREVIOUS ACTION: click [{number}] where [{number}] is link 'Red lamp'"
        )
        assert "URL: http://onestopmarket.com/product/1\n" in next_page.observation
        assert "no page of the sites" in rejection.observation
        assert "'say hello' is no action" in parse_error.observation
        assert end == StepResult("The task is done.", 1.0, terminated=True, success=True)
        assert wrong_end == StepResult("The task has ended; it is not done.", 0.0, terminated=True)


@chromium
def test_an_address_and_pages_are_judged() -> None:
    where = task(eval_types=["url_match"], reference_url="__SHOPPING__/product/1")
    order = task(
        eval_types=["url_match", "program_html"],
        reference_url="__SHOPPING__/orders",
        program_html=[
            {
                "url": "last",
                "locator": "document.querySelector('#orders li').outerText",
                "required_contents": {"exact_match": "Red lamp"},
            },
            {
                "url": "__SHOPPING__/product/1",
                "locator": "",
                "required_contents": {"must_include": ["12.50 |OR| 12,50", "& free <mail>"]},
            },
            {
                "url": "__SHOPPING__/product/1",
                "locator": "document.querySelector('#price').outerText",
                "prep_actions": [
                    "document.querySelector('#price').append('!')",
                    "nothing.at.all()",
                    "document.querySelector('#price').append('?')",
                ],
                "required_contents": {"exact_match": "12.50!"},
            },
            {  # the policy's own page, which another one was opened beside
                "url": "last",
                "locator": "document.querySelector('#orders li').outerText",
                "required_contents": {"exact_match": "Red lamp"},
            },
        ],
    )
    html_first = order.model_copy(
        update={"eval": order.eval.model_copy(update={"eval_types": ("program_html", "url_match")})}
    )
    full = [*["new_tab"] * 11, "tab_focus [0]", "stop"]  # as many tabs as there may be
    with site() as shop:
        episodes = play_all(
            shop,
            (where, [RED, "stop []"]),
            (where, ["stop"]),
            (order, [RED, "stop"]),
            (order, [RED, ORDER, "stop"]),
            (html_first, [RED, ORDER, "stop"]),
            (order, [RED, ORDER, *full]),
        )
    assert [results[-1].success for results in episodes] == [True, False, False, True, True, True]


@chromium
async def test_a_page_that_a_site_cannot_serve_is_not_judged() -> None:
    content = {"url": "__SHOPPING__/status/503", "locator": "", "required_contents": {"exact_match": "lamp"}}
    case = task(eval_types=["program_html"], program_html=[content])
    with site() as shop, pytest.raises(EnvCrashed, match=f"cannot be judged: {shop.url} answers 503"):
        await play(shop, case, "stop [done]")


@chromium
async def test_a_login_is_made_once_and_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBARENA_LOGINS", str(tmp_path))
    monkeypatch.setitem(login.FORMS, "shopping", ("/login", "Email", "Password", "Sign In"))
    case = task(eval_types=["string_match"], logged_in=True, reference_answers={"exact_match": "x"})
    with site() as shop:
        sites = Sites({"shopping": shop.url}, PUBLIC)
        async with one_browser():
            await log_in(sites, names=["shopping"], folder=tmp_path)
            assert "Hello Ada" in (await play(shop, case, state=storage_state(case.logins)))[0]
            assert "Sign in" in (await play(shop, task(eval_types=["url_match"])))[0]
            monkeypatch.setitem(login.ACCOUNTS, "shopping", {"username": "x", "password": "y"})
            with pytest.raises(ConfigError, match=r"shopping .* rejects WebArena's account 'x'"):
                await log_in(sites, names=["shopping"], folder=tmp_path)


async def test_a_task_that_needs_a_judge_is_refused_without_one() -> None:
    case = task(eval_types=["string_match"], reference_answers={"fuzzy_match": ["about twelve"]})
    with site() as shop, pytest.raises(ConfigError, match=r"webarena_0 needs a judge .*WEBARENA_JUDGE_URL"):
        await play(shop, case)


class Page:
    """What is looked at, where only its address counts."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def open_tab(self, url: str) -> AsyncIterator["Page"]:
        yield Page(url)

    async def content(self) -> str:
        return f"<p>{self.url}</p>"

    async def evaluate(self, expression: str) -> Any:
        raise ValueError(expression)


class Judge:
    """Says yes to what it was told to."""

    async def same_answer(self, *, question: str, reference: str, answer: str) -> bool:
        return (reference, answer) == ("a dozen", "twelve")

    async def same_reason(self, *, task: str, reason: str, answer: str) -> bool:
        return (reason, answer) == ("sold out", "there are none left")


def judge(case: Task, answer: str = "", *, url: str = "http://s.test/", base: str = "http://s.test") -> float:
    return asyncio.run(
        score(
            case,
            answer=answer,
            pages=Page(url),
            sites=Sites({"shopping": base}, PUBLIC),
            judge=Judge(),
            helpers=HELPERS,
        )
    )


def test_a_judge_is_asked_where_words_may_differ() -> None:
    fuzzy = task(eval_types=["string_match"], reference_answers={"fuzzy_match": ["a dozen"]})
    assert (judge(fuzzy, "Twelve"), judge(fuzzy, "ten")) == (1.0, 0.0)
    never = task(
        eval_types=["string_match"], reference_answers={"fuzzy_match": "N/A"}, string_note="sold out"
    )
    assert [judge(never, text) for text in ("n/a", "There are none left", "done")] == [1.0, 1.0, 0.0]


def _looks(url: str, locator: str, contents: Mapping[str, Any]) -> Task:
    target = {"url": url, "locator": locator, "required_contents": contents}
    return task(eval_types=["program_html"], program_html=[target])


def test_helpers_are_asked_by_name() -> None:
    post = _looks("func:reddit_get_post_url('__last_url__')", "", {"must_include": ["/f/books/12/</p>"]})
    assert judge(post, url="http://s.test/f/books/12/a-title/-/comment/5") == 1.0
    assert judge(post, url="http://s.test/user/ada") == 0.0
    role = _looks(
        "last", "func:gitlab_get_project_memeber_role(__page__, 'ada')", {"must_include": ["Guest"]}
    )
    assert judge(role) == 0.0  # no such member
    with pytest.raises(ConfigError, match="func:run is unknown; there are gitlab_get"):
        judge(_looks("func:run('x')", "", {}))
    with pytest.raises(ConfigError, match=r"locator '\.price' is unknown"):
        judge(_looks("last", ".price", {}))


class _Magento(BaseHTTPRequestHandler):
    """Magento's REST interface, as far as the helpers ask it."""

    def do_POST(self) -> None:
        account = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        right = account == {"username": "admin", "password": "admin1234"}
        self._answer("a-token" if right and self.path == "/rest/default/V1/integration/admin/token" else None)

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer a-token":
            return self._answer(None)
        reviews = [
            {"nickname": "Bo", "ratings": [{"rating_name": "Rating", "percent": 20}]},
            {"nickname": "Ada", "ratings": [{"rating_name": "Rating", "percent": 80}]},
        ]
        if self.path.startswith("/rest/V1/orders?") and "created_at" in self.path and "DESC" in self.path:
            return self._answer({"items": [{"increment_id": "000000189"}]})
        return self._answer(
            {"/rest/V1/products/B01/reviews": reviews, "/rest/V1/products/B02/reviews": []}.get(self.path)
        )

    def _answer(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(401 if value is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_the_shop_is_asked_through_its_own_interface() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Magento)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    last = "func:shopping_get_latest_order_url()"
    author, rating = (f"func:shopping_get_sku_latest_review_{part}" for part in ("author", "rating"))
    assert judge(_looks(last, "", {"must_include": ["/sales/order/view/order_id/189/"]}), base=base) == 1.0
    assert judge(_looks("last", f"{author}('B01')", {"exact_match": "Ada"}), base=base) == 1.0
    assert judge(_looks("last", f"{rating}('B01')", {"exact_match": "80"}), base=base) == 1.0
    assert judge(_looks("last", f"{author}('B02')", {"exact_match": "Ada"}), base=base) == 0.0
    server.shutdown()
    server.server_close()
    with pytest.raises(EnvCrashed, match=r"integration/admin/token: ConnectError"):
        judge(_looks(last, "", {}), base=base)
