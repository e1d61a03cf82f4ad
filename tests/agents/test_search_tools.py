"""Tools that search: the web by a real HTTP server in SearXNG's and Serper's forms, a corpus in an
episode."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from agents.agent import FormatAgent
from agents.clients.rate_limit import RateLimiter
from agents.clients.web_search import Format, WebEndpoint, WebSearch, web_endpoint
from agents.rewards import REWARDS
from agents.rollout.env_checks import check_env
from agents.samplers.sampler import ScriptedSampler
from agents.tools.registry import get_tool
from agents.tools.search import search_tool, web_search_tool
from agents.tools.toolbox import Toolbox
from agents.tools.types import ToolResult, ToolStatus
from agents.types import EpisodeLimits, StopReason, Trajectory
from envs.errors import ConfigError, MissingDependency, SearchFailed
from envs.registry import get_env
from envs.retrieval.cache import CachedRetriever, SearchCache
from envs.retrieval.redis_server import EmbeddedServer, Redis
from envs.retrieval.remote import RemoteRetriever
from envs.runtime.pool import EnvPool
from envs.types import Environment, Item
from tests.envs.test_retrieval import write_corpus
from tests.support.http_server import serving
from tests.support.needs import needs
from tests.support.toy import ToyEnv, encode, toy_spec
from tests.support.toy_episode import play_toy

PAGES = [
    ("Oslo", "http://oslo.no", "Capital of\nNorway"),
    ("Bergen", "http://bergen.no", "Rain"),
    ("Voss", "http://voss.no", "Hills"),
    ("Moss", "", ""),
]
OBSERVATION = (
    '<information>Doc 1(Title: "Oslo") Capital of Norway (http://oslo.no)\n'
    'Doc 2(Title: "Bergen") Rain (http://bergen.no)\n'
    'Doc 3(Title: "Voss") Hills (http://voss.no)</information>'
)


class Engine:
    """A search engine with both forms; `answers` are statuses to begin with, or bodies."""

    def __init__(self, answers: Sequence[int | str] = ()) -> None:
        self.answers = list(answers)
        self.queries: list[tuple[str, float]] = []
        self.app = Starlette(
            routes=[
                Route("/search", self.searxng, methods=["GET"]),
                Route("/search", self.serper, methods=["POST"]),
            ]
        )

    async def searxng(self, request: Request) -> Response:
        assert request.query_params["format"] == "json"
        pages = [{"url": u, "title": t, "content": c, "engine": "any", "score": 1.0} for t, u, c in PAGES]
        return self._answer(
            request.query_params["q"], {"query": "", "number_of_results": 3, "results": pages}
        )

    async def serper(self, request: Request) -> Response:
        if request.headers.get("X-API-KEY") != "right":
            return JSONResponse({"message": "Unauthorized.", "statusCode": 403}, status_code=403)
        body = await request.json()
        assert body.keys() == {"q", "num"}
        pages = [{"title": t, "link": u, "snippet": c, "position": n} for n, (t, u, c) in enumerate(PAGES, 1)]
        return self._answer(body["q"], {"searchParameters": body, "organic": pages, "credits": 1})

    def _answer(self, query: str, reply: dict[str, Any]) -> Response:
        self.queries.append((query, time.monotonic()))
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, str):
                return Response(answer)
            headers = {"Retry-After": "0"} if answer == 429 else None
            return Response("not now", answer, headers)
        return JSONResponse(reply)

    def search(
        self, *queries: str, format: Format = "searxng", cache: SearchCache | None = None, **limits: Any
    ) -> list[ToolResult]:
        """What the tool answers, each query after the other."""

        async def main() -> list[ToolResult]:
            async with serving(self.app) as url:
                endpoint = WebEndpoint(url, format, **({"backoff_s": 0.001, "requests_per_s": None} | limits))
                retriever = CachedRetriever(WebSearch(endpoint), cache)
                tool = web_search_tool(retriever)
                try:
                    return [await tool.call({"query": query}) for query in queries]
                finally:
                    await retriever.close()

        return asyncio.run(main())


@pytest.mark.parametrize("format", ["searxng", "serper"])
def test_both_forms_are_queried_and_their_results_written_alike(
    format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "right")
    engine = Engine()
    variable = "SERPER_API_KEY" if format == "serper" else None
    (result,) = engine.search("norway & é?", format=format, api_key_variable=variable)
    assert (result.status, result.observation) == (ToolStatus.OK, OBSERVATION)
    assert [query for query, _ in engine.queries] == ["norway & é?"]


def test_what_fails_for_a_while_is_asked_again() -> None:
    engine = Engine([500, 429, "<html>", 503])
    (result,) = engine.search("q", max_attempts=5)
    assert result.observation == OBSERVATION
    assert len(engine.queries) == 5
    with pytest.raises(SearchFailed, match="answered 502: not now, at the last of 2 attempts"):
        Engine([502, 502]).search("q", max_attempts=2)
    with pytest.raises(SearchFailed, match="expected 'results', a list"):
        Engine(['{"results": "none"}']).search("q")
    with pytest.raises(SearchFailed, match="ConnectError"):
        asyncio.run(
            WebSearch(WebEndpoint("http://127.0.0.1:1", "searxng", max_attempts=1)).search(["q"], top_k=1)
        )


def test_a_refusal_is_an_error_of_the_user_or_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal, empty = Engine([400]).search("strange", " ")
    assert (refusal.status, refusal.observation) == (
        ToolStatus.RAISED,
        "the search was refused: HTTP 400: not now",
    )
    assert empty.observation == "the query is empty; write what to look for"
    with pytest.raises(ConfigError, match=r"answered 403.*search\.formats"):
        Engine([403]).search("q")
    monkeypatch.setenv("SERPER_API_KEY", "wrong")
    with pytest.raises(ConfigError, match="Unauthorized"):
        Engine().search("q", format="serper", api_key_variable="SERPER_API_KEY")
    monkeypatch.delenv("SERPER_API_KEY")
    with pytest.raises(ConfigError, match="the environment variable SERPER_API_KEY is not set"):
        Engine().search("q", format="serper", api_key_variable="SERPER_API_KEY")


async def test_a_redirection_does_not_take_the_key_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "right")
    engine = Engine()
    keys: list[str | None] = []

    class Recorder:
        """Records the keys that reach the engine."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            keys.append(Request(scope).headers.get("X-API-KEY"))
            await engine.app(scope, receive, send)

    async with serving(Starlette(routes=[Mount("/", Recorder())])) as there:

        async def redirect(request: Request) -> Response:
            return RedirectResponse(f"{there}/search?{request.url.query}", 307)

        routes = [Route("/search", redirect, methods=["GET", "POST"])]
        async with serving(Starlette(routes=routes)) as here:
            keyed = WebSearch(WebEndpoint(here, "serper", api_key_variable="SERPER_API_KEY"))
            with pytest.raises(ConfigError, match=f"redirects to {there}/search.*not sent the key"):
                await keyed.search(["q"], top_k=1)
            assert keys == []
            (passages,) = await WebSearch(WebEndpoint(here, "searxng")).search(["q"], top_k=1)
            assert [passage.passage_id for passage in passages] == ["http://oslo.no"]
            assert keys == [None]


def test_every_request_waits_for_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places themselves are in `test_rewards_judge.py`."""
    waits_s = []
    wait_s = RateLimiter.wait_s

    def note(limiter: RateLimiter) -> float:
        waits_s.append(wait_s(limiter))
        return waits_s[-1]

    monkeypatch.setattr(RateLimiter, "wait_s", note)
    engine = Engine()
    engine.search(*"abcdef", requests_per_s=50)
    assert len(engine.queries) == len(waits_s) == 6


@needs(Redis())
def test_the_web_is_asked_once_for_the_same(tmp_path: Path) -> None:
    server, engine = EmbeddedServer(tmp_path), Engine()
    try:
        first, again, second = engine.search("a", "a", "b", cache=SearchCache(server))
        assert first.observation == again.observation == second.observation == OBSERVATION
        assert [query for query, _ in engine.queries] == ["a", "b"]
    finally:
        server.close()


def test_the_endpoint_is_named_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINGSPAN_WEB_SEARCH", "searxng+http://127.0.0.1:8888")
    monkeypatch.setenv("WINGSPAN_WEB_SEARCH_PER_S", "2")
    assert web_endpoint() == WebEndpoint("http://127.0.0.1:8888", "searxng", requests_per_s=2.0)
    assert list(Toolbox(map(get_tool, ["web_search", "search"])).tools) == ["web_search", "search"]
    for name, value, why in (
        ("WINGSPAN_WEB_SEARCH_PER_S", "many", "'many'; give requests a second"),
        ("WINGSPAN_WEB_SEARCH_PER_S", "0", "requests_per_s=0.0; give a number above 0"),
        ("WINGSPAN_WEB_SEARCH", "searxng+there", "'there' is no http:// or https:// URL"),
        ("WINGSPAN_WEB_SEARCH", "http://there", r"export WINGSPAN_WEB_SEARCH=serper\+https"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(ConfigError, match=why):
            Toolbox(map(get_tool, ["web_search"]))


LIMITS = EpisodeLimits(
    max_turns=6, max_tokens_per_turn=400, context_length=20_000, episode_timeout_s=60, step_timeout_s=30
)


async def play_episode(
    *texts: str, tools: Toolbox | None, env: Environment, item: Item, format: str = "searchr1"
) -> Trajectory:
    return await play_toy(
        ScriptedSampler(texts, encode=encode),
        agent=FormatAgent(format, schemas=tools.schemas if tools else ()),
        limits=LIMITS,
        tools=tools,
        reward=REWARDS.find("qa_exact_match") if tools else None,
        env=env,
        item=item,
    )


async def test_the_search_r1_agent_plays_searchqa_with_the_search_tool() -> None:
    spec = get_env("searchqa-mini")
    item = next(item for item in spec.split(0).train if item.metadata["hops"] == 3)
    steps = spec.expert(item)

    pool = EnvPool(spec.make, capacity=1)
    texts = [f"<think>{step.thought}</think>\n{step.action}" for step in steps]
    async with pool.lease() as env:
        by_tool = await play_episode(*texts, tools=Toolbox(map(get_tool, ["search"])), env=env, item=item)
        by_action = await play_episode(*texts, tools=None, env=env, item=item, format="raw")
    await pool.close()
    for trajectory in (by_tool, by_action):
        assert trajectory.stop_reason is StopReason.TERMINATED
        assert (trajectory.reward, trajectory.success, len(trajectory.turns)) == (1.0, True, 4)
    for by_tool_turn, second in zip(by_tool.turns[:-1], by_action.turns[:-1], strict=True):
        # The tool shows a passage more than the stand-in's actions do.
        assert by_tool_turn.observation.startswith(second.observation.removesuffix("</information>"))
    assert by_tool.metrics["tool_calls/search"] == 3
    assert by_tool.metrics["reward/f1"] == 1.0
    assert by_action.metrics["env_metrics/f1"] == 1.0


async def test_the_search_tool_searches_what_the_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", ["red thing", "blue thing"])
    monkeypatch.setenv("WINGSPAN_RETRIEVER", str(corpus))
    check_env(toy_spec(), tools=Toolbox(map(get_tool, ["search"])), reward=None)

    result = await Toolbox(map(get_tool, ["search"])).call("search", {"query": "blue"}, env=ToyEnv())
    assert result.observation == '<information>Doc 1(Title: "T1") blue thing</information>'
    monkeypatch.setenv("WINGSPAN_RETRIEVER", str(tmp_path / "none.jsonl"))
    with pytest.raises(MissingDependency, match="there is no such corpus"):
        Toolbox(map(get_tool, ["search"]))
    monkeypatch.delenv("WINGSPAN_RETRIEVER")
    tools = Toolbox(map(get_tool, ["search"]))
    check_env(get_env("searchqa-mini"), tools=tools, reward=None)
    for is_served in (False, True):
        with pytest.raises(ConfigError, match=r"nothing to search.*export WINGSPAN_RETRIEVER"):
            check_env(toy_spec(), tools=tools, reward=None, is_served=is_served)
    with pytest.raises(ConfigError, match="nothing to search"):
        await Toolbox(map(get_tool, ["search"])).call("search", {"query": "blue"}, env=ToyEnv())


async def test_a_retriever_that_gives_no_answer_voids_the_episode() -> None:
    unreachable_retriever = RemoteRetriever("http://127.0.0.1:1", pause_s=0.001)
    tool = search_tool(lambda _: unreachable_retriever)
    with pytest.raises(SearchFailed, match="no retriever"):
        await Toolbox([tool]).call("search", {"query": "q"})
