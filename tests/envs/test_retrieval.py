"""Retrieval over a corpus on disk: ranks, files that are wrong, an index for all processes, servers."""

import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from envs.errors import ConfigError, MissingDependency, SearchFailed
from envs.retrieval.bm25 import Bm25
from envs.retrieval.remote import RemoteRetriever
from envs.retrieval.selection import configured_location, retriever_at, variable_of
from envs.retrieval.service import retriever_app
from envs.retrieval.types import Passage
from tests.support.http_server import serving

WORDS = [f"w{letter}{n}x" for n in range(20) for letter in "bcdfg"]  # that no stemmer changes


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """As wiki-18: an id, and a title in quotes before the text."""
    lines = (json.dumps({"id": str(n), "contents": f'"T{n}"\n{text}'}) for n, text in enumerate(texts))
    path.write_text("".join(line + "\n" for line in lines))
    return path


def texts(count: int, *, seed: int = 0) -> list[str]:
    """Of 5 to 39 words, so that the index stores each length exactly."""
    rng = random.Random(seed)
    weights = [1 / (n + 1) for n in range(len(WORDS))]
    return [" ".join(rng.choices(WORDS, weights, k=rng.randint(5, 38))) for _ in range(count)]


def ids(results: Sequence[Passage]) -> list[str]:
    return [passage.passage_id for passage in results]


def by_hand(
    query: str, passages: Sequence[str], *, k1: float = 1.2, b: float = 0.75
) -> list[tuple[float, int]]:
    """Robertson's BM25 with Lucene's idf, (score, number) of all that match, best first."""
    tokens = [[f"t{n}", *text.split()] for n, text in enumerate(passages)]
    mean = sum(map(len, tokens)) / len(tokens)
    scores = [0.0] * len(tokens)
    for term in query.split():
        having = sum(term in own_terms for own_terms in tokens)
        idf = math.log(1 + (len(tokens) - having + 0.5) / (having + 0.5))
        for number, own_terms in enumerate(tokens):
            frequency = Counter(own_terms)[term]
            norm = frequency + k1 * (1 - b + b * len(own_terms) / mean)
            scores[number] += idf * frequency * (k1 + 1) / norm
    return sorted(((s, n) for n, s in enumerate(scores) if s), key=lambda result: (-result[0], result[1]))


def test_ranks_are_bm25s_worked_out_by_hand(tmp_path: Path) -> None:
    passages = texts(300)
    retriever = Bm25(write_corpus(tmp_path / "c.jsonl", passages))
    rng = random.Random(1)
    for _ in range(40):
        query = " ".join(rng.sample(WORDS, rng.randint(1, 5)))
        reference = by_hand(query, passages)[:5]
        (results,) = retriever.search_sync([query], top_k=5)
        assert [result.score for result in results] == pytest.approx(
            [score for score, _ in reference], rel=1e-5
        )
        assert ids(results) == [str(number) for _, number in reference]


def test_passages_of_one_score_come_in_the_corpuss_order(tmp_path: Path) -> None:
    retriever = Bm25(write_corpus(tmp_path / "c.jsonl", ["one thing"] * 50))
    assert ids(retriever.search_sync(["thing"], top_k=3)[0]) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "query", ["", "the", '"AND (OR NOT x:y* ~', "\x00\ud7ff", "word " * 10_000, "漢字 é"]
)
def test_any_text_is_a_query(tmp_path: Path, query: str) -> None:
    retriever = Bm25(write_corpus(tmp_path / "c.jsonl", ["a word", "un café"]))
    (results,) = retriever.search_sync([query], top_k=3)
    assert len(results) <= 2
    assert ids(retriever.search_sync(["CAFE"], top_k=3)[0]) == ["1"]


async def test_the_same_corpus_has_the_same_answers_wherever_it_is_indexed(tmp_path: Path) -> None:
    passages = texts(500)
    queries = [" ".join(random.Random(n).sample(WORDS, 3)) for n in range(20)]
    answers, versions = [], []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        retriever = Bm25(write_corpus(tmp_path / name / "c.jsonl", passages))
        answers.append(retriever.search_sync(queries, top_k=4))
        versions.append(await retriever.version())
    assert answers[0] == answers[1]
    assert versions[0] == versions[1]


async def test_a_corpus_that_has_changed_is_indexed_anew(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", ["old thing"])
    old = Bm25(path)
    assert ids(old.search_sync(["thing"], top_k=3)[0]) == ["0"]
    again = Bm25(path)
    assert await again.version() == await old.version()
    write_corpus(path, ["new thing", "new thing"])
    new = Bm25(path)
    assert ids(new.search_sync(["thing"], top_k=3)[0]) == ["0", "1"]
    assert await new.version() != await old.version()
    assert {file.name for file in tmp_path.iterdir()} == {"c.jsonl", "c.jsonl.bm25", ".c.jsonl.bm25.lock"}


@pytest.mark.heavy
def test_processes_that_start_at_once_build_one_index(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", texts(3000))
    program = (
        "import sys; from pathlib import Path; from envs.retrieval import bm25\n"
        "build = bm25._build\n"
        "def counted(corpus, folder):\n"
        "    print('built'); return build(corpus, folder)\n"
        "bm25._build = counted\n"
        f"print(bm25.Bm25(Path(sys.argv[1])).search_sync([{WORDS[0]!r}], top_k=2))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=60)[0].splitlines() for process in running]
    assert sum(lines[0] == "built" for lines in outputs) == 1
    assert len({lines[-1] for lines in outputs}) == 1


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"id": "2", "contents": "\\"T\\"\\ncut o', r"line 3: not JSON .* Was the file cut off\?"),
        (b'["2", "text"]', "line 3: expected .* got a list"),
        (b'{"id": "2"}', "line 3: expected .* 'contents' is 'None'"),
        (b'{"id": "2", "contents": "  "}', "line 3: .* 'contents' is '  '"),
        (b'{"contents": "text"}', "line 3: .* 'id' is 'None'"),
        (b'{"id": "2", "contents": "\xff"}', "line 3: not JSON"),
    ],
)
def test_the_error_for_a_broken_line_has_its_number(tmp_path: Path, line: bytes, why: str) -> None:
    path = write_corpus(tmp_path / "wiki.jsonl", ["one", "two"])
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(ConfigError, match=rf"wiki\.jsonl, {why}"):
        Bm25(path).search_sync(["one"], top_k=1)
    assert not (tmp_path / "wiki.jsonl.bm25").exists()


def test_a_missing_and_an_empty_corpus_are_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"there is no corpus .*c\.jsonl"):
        Bm25(tmp_path / "c.jsonl").search_sync(["one"], top_k=1)
    (tmp_path / "c.jsonl").write_text("\n\n")
    with pytest.raises(ConfigError, match="holds no passages"):
        Bm25(tmp_path / "c.jsonl").search_sync(["one"], top_k=1)


def test_a_damaged_index_is_an_error(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", ["one"])
    Bm25(path).search_sync(["one"], top_k=1)
    (tmp_path / "c.jsonl.bm25" / "meta.json").write_text("{")
    with pytest.raises(ConfigError, match=r"c\.jsonl\.bm25: broken index .* delete the folder"):
        Bm25(path).search_sync(["one"], top_k=1)


def test_blank_lines_count_for_nothing(tmp_path: Path) -> None:
    path = write_corpus(tmp_path / "c.jsonl", ["one", "two"])
    path.write_text(path.read_text().replace("\n", "\n\n"))
    (results,) = Bm25(path).search_sync(["two"], top_k=2)
    assert [result.contents for result in results] == ['"T1"\ntwo']


async def use_service(corpus: Path, use: Callable[[str], Any]) -> Any:
    async with serving(retriever_app(Bm25(corpus), top_k=3)) as url:
        return await use(url)


async def test_the_server_answers_what_search_r1_asks(tmp_path: Path) -> None:
    """The bodies of its retrieval_request.py and generation.py, and what these read of the answer."""
    corpus = write_corpus(tmp_path / "c.jsonl", ["red thing", "blue thing", "green thing", "no match"])

    async def use(url: str) -> None:
        async with httpx.AsyncClient() as http:
            body = {"queries": ["blue thing", "red"], "topk": 2, "return_scores": True}
            results = (await http.post(f"{url}/retrieve", json=body)).json()["result"]
            assert [[result["document"]["contents"] for result in own_terms] for own_terms in results] == [
                ['"T1"\nblue thing', '"T0"\nred thing'],
                ['"T0"\nred thing'],
            ]
            assert all(isinstance(result["score"], float) for own_terms in results for result in own_terms)
            ids_only = (await http.post(f"{url}/retrieve", json={"queries": ["thing"]})).json()["result"]
            assert [result["id"] for result in ids_only[0]] == ["0", "1", "2"]
            for wrong in ({"queries": "thing"}, {"queries": ["thing"], "topk": -1}, {}):
                assert (await http.post(f"{url}/retrieve", json=wrong)).status_code == 422
            assert (await http.post(f"{url}/retrieve", content=b"{")).status_code == 422
            page = {"Origin": "http://evil.example"}
            assert (await http.post(f"{url}/retrieve", json=body, headers=page)).status_code == 403

    await use_service(corpus, use)


async def test_a_retriever_by_url_answers_as_the_one_behind_it(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", texts(200))
    queries = [" ".join(random.Random(n).sample(WORDS, 2)) for n in range(100)]

    async def use(url: str) -> None:
        here = Bm25(corpus)
        for address in (url, f"{url}/", f"{url}/retrieve"):
            there = RemoteRetriever(address)
            assert await there.search(queries, top_k=4) == await here.search(queries, top_k=4)
            assert await there.version() == await here.version()
            await there.close()
            await there.close()

    await use_service(corpus, use)


def as_upstream(*, fails: int = 0, answer: Any = None) -> tuple[Starlette, list[dict[str, Any]]]:
    """A server with upstream's one route; its first `fails` answers are 500."""
    bodies: list[dict[str, Any]] = []

    async def retrieve(request: Request) -> Response:
        bodies.append(await request.json())
        if len(bodies) <= fails:
            return Response("CUDA out of memory", 500)
        own_terms = [{"document": {"id": "7", "contents": '"T"\ntext', "title": "T"}, "score": 0.5}]
        return JSONResponse(
            {"result": [own_terms for _ in bodies[-1]["queries"]]} if answer is None else answer
        )

    return Starlette(routes=[Route("/retrieve", retrieve, methods=["POST"])]), bodies


async def test_search_r1s_own_server_is_asked_in_its_form_and_again_when_it_fails() -> None:
    app, bodies = as_upstream(fails=2)
    async with serving(app) as url:
        retriever = RemoteRetriever(url, pause_s=0.01)
        assert await retriever.search(["q"], top_k=3) == [[Passage("7", '"T"\ntext', 0.5)]]
        assert await retriever.version() is None
        await retriever.close()
    assert bodies == [{"queries": ["q"], "topk": 3, "return_scores": True}] * 3


async def test_a_server_that_gives_no_answer_voids_the_episode() -> None:
    async with serving(as_upstream(fails=99)[0]) as url:
        failing = RemoteRetriever(url, pause_s=0.001)
        with pytest.raises(SearchFailed, match=r"no retriever: .*/retrieve answered 500: CUDA out of memory"):
            await failing.search(["q"], top_k=3)
        await failing.close()
    client = RemoteRetriever(url, pause_s=0.001)
    with pytest.raises(SearchFailed, match=r"no retriever: .*/retrieve: ConnectError"):
        await client.search(["q"], top_k=3)
    await client.close()
    answers: list[Any] = [{"results": []}, {"result": [[{"text": "?"}]]}, [1], {"result": []}]
    for wrong in answers:
        async with serving(as_upstream(answer=wrong)[0]) as url:
            strange = RemoteRetriever(url, pause_s=0.001)
            with pytest.raises(SearchFailed, match=r"expected \{'result'|0 results for 1 queries"):
                await strange.search(["q"], top_k=3)
            await strange.close()


def test_a_place_is_a_url_or_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    assert variable_of("searchqa-mini") == "WINGSPAN_RETRIEVER_SEARCHQA_MINI"
    monkeypatch.setenv("WINGSPAN_RETRIEVER_SEARCHQA_MINI", "")
    assert configured_location("searchqa-mini") is None
    with pytest.raises(ConfigError, match="'ftp://there' is no http:// or https:// URL"):
        retriever_at("ftp://there")


@pytest.mark.heavy
def test_serve_retriever_serves_from_the_command_line(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "c.jsonl", ["red thing", "blue thing"])
    command = [str(Path(sys.executable).with_name("wingspan")), "serve-retriever", str(corpus), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url, _, version = server.stdout.readline().strip().partition(" retrieves by ")
            assert version.startswith("bm25/")
            body = {"queries": ["blue"], "topk": 1, "return_scores": False}
            answer = httpx.post(f"{url}/retrieve", json=body, timeout=30).json()
            document = {"id": "1", "contents": '"T1"\nblue thing'}
            assert answer == {"result": [[document]], "version": version}
        finally:
            server.terminate()
    done = subprocess.run([*command, "--kind", "ivf"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "name its model with --encoder" in done.stderr
