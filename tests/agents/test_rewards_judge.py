"""The judge, against a server that speaks OpenAI's protocol: what it asks, what becomes of every answer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agents.clients.rate_limit import RateLimiter
from agents.rewards import CombinedReward, Endpoint, JudgeSettings, LLMJudge
from agents.rewards.judge.reward import PROMPT, read_score
from agents.rewards.judge.store import JudgeStore, Spending
from envs.errors import BudgetSpent, ConfigError, RewardFailed
from envs.network.client import TryAgain
from tests.support.http_server import serving
from tests.support.reward_toy import make_reward_input

Answer = Callable[[Request], Awaitable[Response]]
FIELDS = {"question": "Who won {it}?", "answer": "Broncos"}


def says(text: Any, *, tokens: int | None = 30) -> Answer:
    async def answer(_: Request) -> Response:
        body: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        if tokens is not None:
            body["usage"] = {"total_tokens": tokens}
        return JSONResponse(body)

    return answer


def status(code: int, text: str = "", **headers: str) -> Answer:
    async def answer(_: Request) -> Response:
        return Response(text, code, headers)

    return answer


async def hangs(_: Request) -> Response:
    await asyncio.sleep(60)
    raise AssertionError("nobody waits so long")


class CutShort(Response):
    """Begins and never ends, so that the server closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})


async def hangs_up(_: Request) -> Response:
    return CutShort()


@dataclass
class Judge:
    """A model that answers by script; the last answer is for ever."""

    script: list[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str | None] = field(default_factory=list)
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0

    async def answer(self, request: Request) -> Response:
        self.requests.append(await request.json())
        self.headers.append(request.headers.get("Authorization"))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await (self.script.pop(0) if len(self.script) > 1 else self.script[0])(request)
        finally:
            self.at_once -= 1


def with_judge(script: list[Answer], talk: Callable[[Judge], Awaitable[None]]) -> Judge:
    judge = Judge(script)

    async def main() -> None:
        app = Starlette(routes=[Route("/v1/chat/completions", judge.answer, methods=["POST"])])
        async with serving(app) as url:
            judge.url = f"{url}/v1"
            await talk(judge)

    asyncio.run(main())
    return judge


def endpoint_of(judge: Judge, **changes: Any) -> Endpoint:
    return Endpoint(**{"url": judge.url, "model": "toy", "backoff_s": 0.01, **changes})


def test_what_is_asked_and_what_comes_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", "secret")

    async def talk(judge: Judge) -> None:
        reward = LLMJudge(endpoint_of(judge, api_key_variable="TOY_KEY", extra={"seed": 3}))
        reward.check({"question", "answer"})
        result = await reward.score(make_reward_input("the Broncos {did}", fields=FIELDS))
        assert (result.reward, result.metrics) == (0.75, {"score": 7.5, "cached": 0.0})
        again = await reward.score(make_reward_input("the Broncos {did}", fields=FIELDS))
        assert (again.reward, again.metrics["cached"]) == (0.75, 1.0)
        await reward.score(make_reward_input("Panthers", fields=FIELDS))
        assert await reward.store.read_spending() == Spending(requests=2, tokens=60)

    judge = with_judge([says("It agrees.\nScore: 7.5\n")], talk)
    assert len(judge.requests) == 2
    assert judge.headers == ["Bearer secret"] * 2
    request = judge.requests[0]
    assert {key: request[key] for key in ("model", "temperature", "max_tokens", "seed")} == {
        "model": "toy",
        "temperature": 0.0,
        "max_tokens": 1024,
        "seed": 3,
    }
    [message] = request["messages"]
    assert message["role"] == "user"
    assert "Question:\nWho won {it}?\n" in message["content"]
    assert "Answer to judge:\nthe Broncos {did}\n" in message["content"]
    assert "from 0 (wrong) to 10\n(right)" in message["content"]


@pytest.mark.parametrize(
    "trouble",
    [
        status(429, "slow down"),
        status(429, **{"Retry-After": "0"}),
        status(503),
        status(500, "<html>"),
        status(200, "{not json"),
        status(200, '{"choices": []}'),
        status(200, "[]"),
        says(None),
        says("I give it a 7"),
        says("Score: 11"),
        pytest.param(hangs, marks=pytest.mark.heavy),
        hangs_up,
    ],
    ids=range(12),
)
def test_trouble_that_passes(trouble: Answer) -> None:
    async def talk(judge: Judge) -> None:
        reward = LLMJudge(endpoint_of(judge, request_timeout_s=1.0 if trouble is hangs else 30.0))
        assert (await reward.score(make_reward_input("x", fields=FIELDS))).reward == 0.3

    assert len(with_judge([trouble, trouble, says("Score: 3")], talk).requests) == 3


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (status(429, "slow\ndown"), "answered 429: slow down, at the last of 3 attempts"),
        (status(200, "{not json"), "no chat completion .*{not json, at the last of 3 attempts"),
        (says("7"), "ends with '7', not with a line like 'Score: 7', at the last of 3"),
        (says("Score: -1"), "a score of -1, not within 0 to 10, at the last of 3"),
        (hangs, "no reply within 0.2 s, at the last of 3"),
    ],
)
def test_trouble_that_stays_is_a_failure_and_no_zero(trouble: Answer, message: str) -> None:
    async def talk(judge: Judge) -> None:
        reward = LLMJudge(
            endpoint_of(judge, max_attempts=3, request_timeout_s=0.2 if trouble is hangs else 30.0)
        )
        with pytest.raises(RewardFailed, match=message):
            await reward.score(make_reward_input("x", fields=FIELDS))

    assert len(with_judge([trouble], talk).requests) == 3


async def test_nobody_there() -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9/v1", model="toy", max_attempts=2, backoff_s=0.01)
    with pytest.raises(RewardFailed, match=r"ConnectError.*at the last of 2 attempts"):
        await LLMJudge(endpoint).score(make_reward_input("x", fields=FIELDS))


@pytest.mark.parametrize(
    ("code", "error"), [(401, ConfigError), (403, ConfigError), (404, ConfigError), (400, RewardFailed)]
)
def test_a_refusal_is_not_asked_again(code: int, error: type[Exception]) -> None:
    async def talk(judge: Judge) -> None:
        with pytest.raises(error, match=f"answered {code}: no such thing"):
            await LLMJudge(endpoint_of(judge)).score(make_reward_input("x", fields=FIELDS))

    assert len(with_judge([status(code, "no such thing")], talk).requests) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of every `asyncio.sleep`, none of which takes any."""
    seconds: list[float] = []
    sleep = asyncio.sleep

    async def note(delay: float) -> None:
        seconds.append(delay)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    return seconds


def test_an_endpoint_says_how_long_to_wait(waits: list[float]) -> None:
    async def talk(judge: Judge) -> None:
        await LLMJudge(endpoint_of(judge)).score(make_reward_input("x", fields=FIELDS))

    with_judge([status(429, **{"Retry-After": "7"}), says("Score: 3")], talk)
    assert 7.0 in waits


def test_budgets() -> None:
    async def talk(judge: Judge) -> None:
        few = LLMJudge(endpoint_of(judge), JudgeSettings(max_requests=2))
        await few.score(make_reward_input("a", fields=FIELDS))
        await few.score(make_reward_input("b", fields=FIELDS))
        await few.score(make_reward_input("b", fields=FIELDS))  # remembered: costs nothing
        weighted_sum = CombinedReward({"few": 1.0}, rewards={"few": few})
        with pytest.raises(BudgetSpent, match=r"budget of 2 requests is spent .* raise its max_requests"):
            await weighted_sum.score(make_reward_input("c", fields=FIELDS))

        cheap = LLMJudge(endpoint_of(judge), JudgeSettings(max_tokens=40))
        await cheap.score(make_reward_input("a", fields=FIELDS))
        await cheap.score(make_reward_input("b", fields=FIELDS))
        with pytest.raises(BudgetSpent, match=r"40 tokens is spent \(2 requests, 60 tokens so far\)"):
            await cheap.score(make_reward_input("c", fields=FIELDS))

    assert len(with_judge([says("Score: 3")], talk).requests) == 4


def test_a_remembered_score_of_another_range_is_asked_for_again(tmp_path: Path) -> None:
    async def talk(judge: Judge) -> None:
        for max_score in (10, 5):
            settings = JudgeSettings(max_score=max_score, store=tmp_path / "store.sqlite")
            reward = LLMJudge(endpoint_of(judge), settings, prompt="Judge {final_response}")
            results = [await reward.score(make_reward_input("x", fields={})) for _ in range(2)]
            assert [(r.metrics["score"], r.metrics["cached"]) for r in results] == [
                (max_score - 1, 0.0),
                (max_score - 1, 1.0),
            ]

    assert len(with_judge([says("Score: 9"), says("Score: 4")], talk).requests) == 2


def test_tokens_that_nobody_reports_cannot_be_limited() -> None:
    async def talk(judge: Judge) -> None:
        await LLMJudge(endpoint_of(judge)).score(make_reward_input("x", fields=FIELDS))
        with pytest.raises(ConfigError, match="limit max_requests instead"):
            await LLMJudge(endpoint_of(judge), JudgeSettings(max_tokens=10)).score(
                make_reward_input("x", fields=FIELDS)
            )

    with_judge([says("Score: 3", tokens=None)], talk)


def test_no_more_requests_at_once_than_were_allowed() -> None:
    pairs = asyncio.Barrier(2)

    async def in_pairs(request: Request) -> Response:
        await pairs.wait()
        return await says("Score: 3")(request)

    async def talk(judge: Judge) -> None:
        reward = LLMJudge(endpoint_of(judge, max_concurrency=2))
        await asyncio.gather(*(reward.score(make_reward_input(f"{i}", fields=FIELDS)) for i in range(6)))
        assert judge.most_at_once == 2

    with_judge([in_pairs], talk)


def test_requests_are_spaced(waits: list[float]) -> None:
    async def talk(judge: Judge) -> None:
        reward = LLMJudge(endpoint_of(judge, max_concurrency=6, requests_per_s=0.01))
        await asyncio.gather(*(reward.score(make_reward_input(f"{i}", fields=FIELDS)) for i in range(6)))

    with_judge([says("Score: 3")], talk)
    assert {round(seconds, -2) for seconds in waits} == {0, 100, 200, 300, 400, 500}


def test_a_judge_serves_one_event_loop_after_the_other() -> None:
    rewards: list[LLMJudge] = []

    async def talk(judge: Judge) -> None:
        rewards.append(LLMJudge(endpoint_of(judge, max_concurrency=1)))
        await asyncio.gather(*(rewards[0].score(make_reward_input(f"{i}", fields=FIELDS)) for i in range(3)))

    with_judge([says("Score: 3")], talk)
    for _ in range(2):
        assert asyncio.run(rewards[0].score(make_reward_input("1", fields=FIELDS))).metrics["cached"] == 1.0


async def test_pace_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 50.0
    monkeypatch.setattr("agents.clients.rate_limit.time.monotonic", lambda: seconds)
    limiter = RateLimiter(10.0)
    assert [limiter.wait_s() for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])
    seconds += 0.25
    assert limiter.wait_s() == pytest.approx(0.05)
    assert [RateLimiter(None).wait_s() for _ in range(3)] == [0.0] * 3
    monkeypatch.undo()
    store = JudgeStore(name="toy", max_replies=2)
    for key in "ab":
        await store.put(key, key)
    assert await store.get("a") == "a"
    await store.put("c", "c")  # the one that was asked for least lately goes
    assert [await store.get(key) for key in "abc"] == ["a", None, "c"]


@pytest.mark.parametrize(
    "reply",
    [
        "**Score: 7**",
        "**Score:** 7",
        "Score: 7",
        "why\n\nScore: 7 \n",
        "Score: 1\nScore: 7",
        "Score: 7.0",
        "Score: +7",
    ],
)
def test_scores(reply: str) -> None:
    assert read_score(reply) == 7.0


@pytest.mark.parametrize(
    "reply",
    ["", "7", "score: 7", "Score: 7/10", "Score: 7\nbecause", "Score: nan", "Score:7", "The Score: 7"],
)
def test_replies_that_are_no_score(reply: str) -> None:
    with pytest.raises(TryAgain, match="not with a line like 'Score: 7'"):
        read_score(reply)


def test_settings_that_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Endpoint(url="http://127.0.0.1:9/v1", model="toy")
    with pytest.raises(ConfigError, match="takes 'answer', which nothing fills"):
        LLMJudge(endpoint).check({"question"})
    LLMJudge(endpoint, prompt="{transcript} {{}} {min_score}").check(set())
    for prompt in ("{", "{0}", "{}", "{item.seed}", "{a[0]}", "", "Judge. {{x}} {min_score}"):
        with pytest.raises(ConfigError, match="judge: the prompt"):
            LLMJudge(endpoint, prompt=prompt)
    with pytest.raises(ValidationError, match="min_score below a max_score"):
        JudgeSettings(min_score=1.0, max_score=1.0)
    values: tuple[dict[str, Any], ...] = (
        {"url": "127.0.0.1:9"},
        {"max_attempts": 0},
        {"requests_per_s": 0.0},
    )
    for bad in (*values, {"max_concurrency": -1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            Endpoint(**{"url": "http://127.0.0.1:9/v1", "model": "toy", **bad})
    monkeypatch.delenv("NO_KEY", raising=False)
    endpoint_with_key = Endpoint(url="http://127.0.0.1:9/v1", model="toy", api_key_variable="NO_KEY")
    with pytest.raises(ConfigError, match="NO_KEY is not set"):
        LLMJudge(endpoint_with_key).check({"question", "answer"})
    assert "{final_response}" in PROMPT
