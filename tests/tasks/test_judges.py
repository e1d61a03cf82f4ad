"""Judges in pipelines and on disk, against a server that speaks OpenAI's protocol, and across processes."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agents.clients.endpoint import Endpoint
from agents.rewards import JudgeSettings, LLMJudge
from agents.rewards.judge.reward import SingleFlight
from agents.rewards.judge.store import JudgeStore, Spending
from agents.samplers.sampler import ScriptedSampler
from envs.errors import BudgetSpent, ConfigError, RewardFailed
from tasks.config.agent import AgentSettings
from tasks.config.episodes import check_agent, reward_of
from tasks.data.items import split
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import RolloutSpec
from tests.support.chat_server import Body, chat_server, in_turn, says
from tests.support.question_toy import pipeline_of, write_questions
from tests.support.reward_toy import make_reward_input
from tests.support.stage_files import AGENT_STAGES, changed_keys, keys, write_stage_files
from tests.support.toy import encode, toy_tokenizer

ROOT = Path(__file__).parents[2]
FIELDS = {"question": "9 + 9?", "answer": "18"}
PROMPT = "{question}\n{final_response}\nScore it from {min_score} to {max_score}."


@pytest.fixture
def questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_questions()


def agent_with(url: str, **changes: Any) -> dict[str, Any]:
    judge = {"url": url, "model": "toy", "max_attempts": 1, **changes}
    return {"instructions": False, "format": "raw", "reward": "fair", "judges": {"fair": judge}}


@pytest.mark.usefixtures("questions")
async def test_a_pipeline_names_its_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four samples, of which three answer alike at the same time: two requests."""
    monkeypatch.setenv("TOY_KEY", "secret")
    Path("data/fair.md").write_text(PROMPT)

    def script(body: Body) -> Body:
        prompt = body["messages"][0]["content"]
        return says("Well.\nScore: " + ("4" if "18" in prompt else "1"))

    def answers(episode_id: str, turn: int) -> str:
        return "19" if episode_id.endswith("/2/1") else "18"

    with chat_server(script, key="secret", tokens=lambda _: 30) as server:
        agent = agent_with(server.url, key_from="TOY_KEY", prompt="data/fair.md", min_score=1, max_score=5)
        agent["reward"] = {"fair": 2.0, "string_equal": 0.5}
        pipeline = pipeline_of(agent)
        check_agent(pipeline)
        assert server.requests == []  # no money is spent on checks
        (item,) = split(pipeline.data).test
        runner = make_runner(
            pipeline, sampler=ScriptedSampler(answers, encode=encode), tokenizer=toy_tokenizer()
        )
        runner.check([item])

        spec = RolloutSpec(name="p", max_turns={"math": 4}, num_samples=4, temperature=1.0)
        try:
            [group] = await runner.run([item], spec)
        finally:
            await runner.close()
    assert [t.reward for t in group] == [2 * 0.75 + 0.5, 2 * 0.75 + 0.5, 0.0, 2 * 0.75 + 0.5]
    assert [t.metrics["reward/fair/score"] for t in group] == [4, 4, 1, 4]
    assert len(server.requests) == 2
    assert server.requests[0]["messages"][0]["content"].startswith("9 + 9?\n")


@pytest.mark.usefixtures("questions")
def test_the_same_judge_is_one_for_all_of_a_process() -> None:
    with chat_server(in_turn(says("Score: 3"))) as server:
        settings = AgentSettings.model_validate(agent_with(server.url, max_requests=1))
        first, second = reward_of(settings), reward_of(settings)
        assert first is not None
        assert second is first
        asyncio.run(first.score(make_reward_input("x", fields=FIELDS)))
        with pytest.raises(BudgetSpent, match="budget of 1 requests is spent"):
            asyncio.run(second.score(make_reward_input("y", fields=FIELDS)))


@pytest.mark.usefixtures("questions")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key_from": "NO_SUCH_KEY"}, r"agent\.judges\.fair: .*NO_SUCH_KEY is not set; put the key into it"),
        ({"key_from": "sk-123"}, r"agent\.judges\.fair: .*no name of an environment variable"),
        ({"key_from": "WRONG_KEY"}, r"agent\.judges\.fair: .*answered 401"),
        ({"url": "http://127.0.0.1:9/v1"}, r"agent\.judges\.fair: no endpoint: .*start the server"),
        ({"url": "127.0.0.1:9"}, r"agent\.judges\.fair: endpoint: url="),
        ({"prompt": "data/none.md"}, r"agent\.judges\.fair\.prompt: cannot read data/none\.md"),
        ({"prompt": "data/train.jsonl"}, r"agent\.judges\.fair: judge: the prompt"),
    ],
)
def test_what_cannot_be_asked_is_found_before_the_run(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong")
    with chat_server(in_turn(says("Score: 3")), key="secret") as server:
        with pytest.raises(ConfigError, match=message):
            check_agent(pipeline_of(agent_with(server.url) | agent_of(server.url, changes)))
        assert server.requests == []


def agent_of(url: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {"judges": {"fair": {"url": url, "model": "toy", "max_attempts": 1, **changes}}}


@pytest.mark.usefixtures("questions")
def test_judges_that_judge_nothing_or_have_anothers_name_are_refused() -> None:
    agent = agent_with("http://127.0.0.1:9/v1")
    with pytest.raises(ConfigError, match=r"'fair' judges nothing; name it in agent\.reward"):
        check_agent(pipeline_of(agent | {"reward": "string_equal"}))
    agent["judges"]["string_equal"] = agent["judges"].pop("fair")
    with pytest.raises(ConfigError, match="'string_equal' is another reward's name"):
        check_agent(pipeline_of(agent | {"reward": "string_equal"}))
    with pytest.raises(ConfigError, match="unknown reward 'fare'"):
        check_agent(pipeline_of(agent_with("http://127.0.0.1:9/v1") | {"reward": "fare"}))


def test_a_judges_prompt_is_an_input_of_the_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.config.pipelines import load_pipeline

    monkeypatch.chdir(tmp_path)
    write_stage_files(tmp_path)
    Path("fair.md").write_text(PROMPT)
    agent = agent_with("http://127.0.0.1:9/v1", prompt="fair.md")
    overrides = {f"agent.{key}": agent[key] for key in ("reward", "judges")}
    before = keys(load_pipeline("textcraft-cpu", overrides=overrides))
    Path("fair.md").write_text(PROMPT + " Be strict.")
    after = keys(load_pipeline("textcraft-cpu", overrides=overrides))
    assert changed_keys(before, after) == AGENT_STAGES


WORKER = """
import asyncio, json, sys
from agents.clients.endpoint import Endpoint
from agents.rewards import JudgeSettings, LLMJudge
from envs.errors import BudgetSpent
from tests.support.question_toy import pipeline_of, write_questions
from tests.support.reward_toy import make_reward_input

url, store, who = sys.argv[1:]
judge = LLMJudge(
    Endpoint(url, "toy", max_attempts=1), JudgeSettings(max_requests=10, store=store), name="fair"
)

async def main():
    counts = {"asked": 0, "cached": 0, "refused": 0}
    for number in range(8):
        given = make_reward_input(f"{who} {number}", fields={"question": "?", "answer": "!"})
        try:
            result = await judge.score(given)
        except BudgetSpent:
            counts["refused"] += 1
        else:
            counts["cached" if result.metrics["cached"] else "asked"] += 1
    print(json.dumps(counts))

asyncio.run(main())
"""


@pytest.mark.heavy
def test_budget_and_replies_are_those_of_all_processes_and_outlive_them(tmp_path: Path) -> None:
    def workers(*names: str) -> list[dict[str, int]]:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, server.url, str(tmp_path / "deep" / "judge.db"), name],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
            for name in names
        ]
        return [json.loads(process.communicate(timeout=300)[0]) for process in processes]

    with chat_server(in_turn(says("Score: 3")), tokens=lambda _: 30) as server:
        results = workers("a", "b", "c")
        assert sum(result["asked"] for result in results) == len(server.requests) == 10
        assert sum(result["refused"] for result in results) == 3 * 8 - 10
        again = workers("a")  # what the first one asked is known; nothing more may be
        assert again == [{"asked": 0, "cached": results[0]["asked"], "refused": results[0]["refused"]}]
        assert len(server.requests) == 10
        store = JudgeStore(tmp_path / "deep" / "judge.db", name="fair")
        assert asyncio.run(store.read_spending()) == Spending(requests=10, tokens=300)
        assert (
            asyncio.run(JudgeStore(tmp_path / "deep" / "judge.db", name="other").read_spending())
            == Spending()
        )
        more = LLMJudge(
            Endpoint(server.url, "toy"),
            JudgeSettings(max_requests=11, store=tmp_path / "deep" / "judge.db"),
            name="fair",
        )
        asyncio.run(more.score(make_reward_input("new", fields=FIELDS)))  # a raised limit goes on


async def test_a_new_file_that_another_process_writes_is_waited_for(tmp_path: Path) -> None:
    writer = sqlite3.connect(tmp_path / "judge.db", isolation_level=None)
    writer.execute("begin immediate")
    reading = asyncio.ensure_future(JudgeStore(tmp_path / "judge.db", name="fair").read_spending())
    await asyncio.sleep(0.3)
    writer.execute("create table somebodys (key text)")
    writer.execute("commit")
    writer.close()
    assert (await reading) == Spending()


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database at all, but long enough to be looked into" * 99)
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "text.db", tmp_path / "file" / "judge.db"):
        judge = LLMJudge(Endpoint("http://127.0.0.1:9/v1", "toy"), JudgeSettings(store=path))
        with pytest.raises(ConfigError, match=r"the judge's file .*; name another"):
            judge.check({"question", "answer"})


async def test_equal_questions_at_the_same_time_are_asked_once_and_share_what_comes() -> None:
    def script(body: Body) -> Body:
        return says("Score: 3" if "good" in body["messages"][0]["content"] else "no score")

    with chat_server(script) as server:
        judge = LLMJudge(Endpoint(server.url, "toy", max_attempts=2, backoff_s=0.01))
        texts = ["good", "bad", "good", "bad", "good"]
        scoring = (judge.score(make_reward_input(text, fields=FIELDS)) for text in texts)
        results: list[Any] = await asyncio.gather(*scoring, return_exceptions=True)
        assert len(server.requests) == 1 + 2  # of the bad one there are two attempts
    good, bad, *rest = results
    assert [result.metrics["cached"] for result in (good, rest[0], rest[2])] == [0.0, 1.0, 1.0]
    assert isinstance(bad, RewardFailed)
    assert isinstance(rest[1], RewardFailed)


async def test_who_leaves_does_not_break_off_what_others_wait_for() -> None:
    flights: SingleFlight[str] = SingleFlight()
    may_finish, tasks = asyncio.Event(), []

    async def work() -> str:
        tasks.append(asyncio.current_task())
        await may_finish.wait()
        return "done"

    first, second = (asyncio.create_task(flights.do("k", work)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    assert len(tasks) == 1
    may_finish.set()
    assert await second == ("done", False)
    assert first.cancelled()
    may_finish.clear()
    third = asyncio.create_task(flights.do("k", work))  # what has ended is begun anew
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(tasks) == 2
    third.cancel()
    await asyncio.sleep(0)
    fourth = asyncio.create_task(flights.do("k", work))  # nobody waited: it was broken off
    assert tasks[1] is not None
    await asyncio.wait({tasks[1]}, timeout=60)
    assert tasks[1].cancelled()
    may_finish.set()
    assert await fourth == ("done", True)
