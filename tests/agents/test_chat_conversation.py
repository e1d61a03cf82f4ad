"""An endpoint's model in an episode, against a server: what it is asked, and what its answers become."""

import itertools
from typing import Any

import pytest

from agents.agent import Agent, FormatAgent, Opening
from agents.clients.endpoint import ChatClient, Endpoint
from agents.formats.calls import ParsedTurn
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.rollout import rollout
from agents.settings import EndpointSettings
from agents.tools.tool import tool
from agents.types import EpisodeLimits, FinishReason, SamplingParams, StopReason, Trajectory
from envs.errors import ConfigError
from envs.types import Item, Message
from tests.support.chat_server import ChatServer, Script, calls, chat_server, fails, in_turn, says
from tests.support.toy import toy_item, toy_spec


@tool
def add(first: int, second: int) -> int:
    """Add two numbers."""
    return first + second


def endpoint_of(server: ChatServer, **changes: Any) -> Endpoint:
    return Endpoint(server.url, changes.pop("model", "toy"), **{"backoff_s": 0.01, **changes})


def answer_question(server: ChatServer, **changes: Any) -> Trajectory:
    """The trajectory of one question."""
    arguments: dict[str, Any] = {"agent": "hermes", "tools": [add], "model": endpoint_of(server)}
    [trajectory] = rollout(["What is 2 + 3?"], **(arguments | changes))
    return trajectory


def steps(server: ChatServer, **changes: Any) -> Trajectory:
    """The trajectory of the toy's item, by actions in text."""
    arguments: dict[str, Any] = {"agent": "action", "env": toy_spec(), "model": endpoint_of(server)}
    [trajectory] = rollout([toy_item(target=3)], **(arguments | changes))
    return trajectory


def test_actions_in_text_and_what_is_asked() -> None:
    script = in_turn(says("Thought: one\nAction: add 1"), says("Action: add 2"))
    with chat_server(script) as server:
        trajectory = steps(
            server,
            sampling=SamplingParams(temperature=0.7, top_p=0.9, stop=("\nObservation:",)),
            limits=EpisodeLimits(max_tokens_per_turn=33),
        )
    assert (trajectory.stop_reason, trajectory.success, trajectory.reward) == (
        StopReason.TERMINATED,
        True,
        1.0,
    )
    assert [(t.thought, t.action, t.observation) for t in trajectory.turns] == [
        ("one", "add 1", "The total is 1."),
        ("", "add 2", "The total is 3."),
    ]
    assert trajectory.prompt_ids == ()
    assert [(t.completion.token_ids, t.completion.logprobs) for t in trajectory.turns] == [((), ())] * 2
    assert server.requests[0] == {
        "model": "toy",
        "messages": [{"role": "user", "content": "Goal: reach 3."}],
        "max_tokens": 33,
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["\nObservation:"],
    }
    assert server.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": "Thought: one\nAction: add 1"},
        {"role": "user", "content": "The total is 1."},
    ]


def test_function_calls_are_made_and_their_replies_have_their_ids() -> None:
    calls_of_add = [("add", {"first": 2, "second": 3}), ("add", {"first": "1", "second": 1})]
    script = in_turn(calls(*calls_of_add, content="Let me see."), says("<think>so</think>It is 5."))
    with chat_server(script) as server:
        trajectory = answer_question(server, instructions="Be exact.")
    assert trajectory.stop_reason is StopReason.TERMINATED
    first, last = trajectory.turns
    assert first.thought == "Let me see."
    assert first.action == 'add({"first": 2, "second": 3})\nadd({"first": "1", "second": 1})'
    assert first.observation == "5\n2"
    assert (last.thought, last.action) == ("so", "It is 5.")
    assert trajectory.metrics["tool_calls/add"] == 2
    assert server.requests[0]["tools"] == [add.schema]
    assert [m["role"] for m in server.requests[0]["messages"]] == ["system", "user"]
    assistant, *replies = server.requests[1]["messages"][2:]
    assert assistant["content"] == "Let me see."
    assert [call["function"]["name"] for call in assistant["tool_calls"]] == ["add", "add"]
    assert replies == [
        {"role": "tool", "content": "5", "tool_call_id": "id0"},
        {"role": "tool", "content": "2", "tool_call_id": "id1"},
    ]


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (calls(("add", '{"first": 2')), "arguments"),
        (calls(("add", "[2, 3]")), "arguments"),
        (calls(("", {})), "name"),
        (calls(("add", {"first": 2, "second": 3}), ("add", "{")), "arguments"),
        (says(None, tool_calls=[{"id": "x", "type": "function"}]), "not both there"),
        (says(None), "says nothing"),
        (says("<think>hm</think>"), "says nothing"),
    ],
)
def test_an_unreadable_turn_gets_the_problem_and_nothing_is_called(message: Any, problem: str) -> None:
    with chat_server(in_turn(message, says("5"))) as server:
        trajectory = answer_question(server)
    assert [t.is_malformed for t in trajectory.turns] == [True, False]
    assert problem in trajectory.turns[0].observation
    assert trajectory.metrics["parse_failures"] == 1
    assert trajectory.metrics["tool_calls/add"] == 0
    assert server.requests[1]["messages"][-1] == {"role": "user", "content": trajectory.turns[0].observation}


def test_calls_without_ids_and_with_signatures() -> None:
    call = calls(("add", {"first": 2, "second": 3}))
    call["tool_calls"][0] |= {"id": None, "extra_content": {"signature": "s"}}
    with chat_server(in_turn(call, says("5"))) as server:
        assert answer_question(server).turns[-1].action == "5"
    assistant, reply = server.requests[1]["messages"][-2:]
    assert assistant["tool_calls"][0]["id"] == reply["tool_call_id"]
    assert assistant["tool_calls"][0]["extra_content"] == {"signature": "s"}


def test_reasoning_that_a_server_tells_apart_is_a_thought() -> None:
    script = in_turn(says("Action: add 3", reasoning="3 is 3", finish="length"))
    with chat_server(script) as server:
        [turn] = steps(server).turns
    assert (turn.thought, turn.action) == ("3 is 3", "add 3")
    assert turn.completion.finish_reason is FinishReason.LENGTH


def test_without_tools_a_plain_message_is_the_answer() -> None:
    with chat_server(in_turn(says("5"))) as server:
        trajectory = answer_question(server, tools=[])
    assert (trajectory.stop_reason, trajectory.turns[0].action) == (StopReason.TERMINATED, "5")
    assert "tools" not in server.requests[0]


@pytest.mark.parametrize(
    "trouble",
    [
        fails(429, "slow down", **{"Retry-After": "0"}),
        fails(500, "oops"),
        fails(503, "loading"),
        says([{"type": "text"}]),  # type: ignore[arg-type]
        says(None, tool_calls="add"),
    ],
    ids=["429", "500", "503", "parts", "calls"],
)
def test_trouble_that_passes(trouble: Any) -> None:
    with chat_server(in_turn(trouble, says("5"))) as server:
        assert answer_question(server).turns[0].action == "5"
    assert len(server.requests) == 2


def always(status: int, text: str) -> Script:
    return lambda _: fails(status, text)


def test_trouble_that_stays_is_a_fault_with_its_cause() -> None:
    with chat_server(always(500, "oops")) as server:
        trajectory = answer_question(server, model=endpoint_of(server, max_attempts=2), max_attempts=2)
    assert (trajectory.stop_reason, trajectory.attempts, trajectory.turns) == (StopReason.ERROR, 2, ())
    assert trajectory.error is not None
    assert trajectory.error.startswith("SamplerFailed: question_0: http")
    assert "answered 500" in trajectory.error
    assert "at the last of 2 attempts" in trajectory.error
    assert len(server.requests) == 4


def test_a_request_that_is_refused_is_not_asked_again() -> None:
    with chat_server(always(400, "tool choice is off")) as server:
        trajectory = answer_question(server, max_attempts=1)
    assert trajectory.error is not None
    assert "answered 400" in trajectory.error
    assert "tool choice is off" in trajectory.error
    assert len(server.requests) == 1


def test_a_conversation_that_is_too_long_for_the_server_ends_where_it_is() -> None:
    def script(body: Any) -> Any:
        if len(body["messages"]) > 3:
            return fails(400, "This model's maximum context length is 64 tokens, you asked for 80.")
        return says("Action: add 1")

    with chat_server(script) as server:
        trajectory = steps(server)
    assert trajectory.stop_reason is StopReason.MAX_CONTEXT
    assert [t.action for t in trajectory.turns] == ["add 1"] * 2


def test_a_first_prompt_that_is_too_long_leaves_no_turn() -> None:
    with chat_server(always(400, "exceeds the available context size")) as server:
        trajectory = steps(server)
    assert (trajectory.stop_reason, trajectory.turns, trajectory.reward) == (StopReason.MAX_CONTEXT, (), 0.0)


def test_the_context_length_is_respected_by_what_the_server_reports() -> None:
    counts = itertools.count(40, 30)
    with chat_server(in_turn(says("Action: look")), tokens=lambda _: next(counts)) as server:
        trajectory = steps(server, limits=EpisodeLimits(context_length=105, max_tokens_per_turn=60))
    assert [body["max_tokens"] for body in server.requests] == [60, 60, 35]
    assert trajectory.stop_reason is StopReason.MAX_CONTEXT
    assert len(trajectory.turns) == 3


def test_a_wrong_key_or_model_ends_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", "wrong")
    monkeypatch.setenv("GOOD_KEY", "right")
    with chat_server(in_turn(says("5")), key="right") as server:
        with pytest.raises(ConfigError, match=r"answered 401.*model \('toy'\).*key \(TOY_KEY\)"):
            answer_question(server, model=endpoint_of(server, api_key_variable="TOY_KEY"))
        assert server.requests == []
        with pytest.raises(ConfigError, match=r"/v1/chat/completions answered 404.*model \('tou'\)"):
            answer_question(server, model=endpoint_of(server, model="tou", api_key_variable="GOOD_KEY"))
        assert (
            answer_question(server, model=endpoint_of(server, api_key_variable="GOOD_KEY")).turns[0].action
            == "5"
        )
    assert set(server.keys) == {"Bearer right"}


def test_the_endpoint_of_settings_has_their_defaults_and_limits() -> None:
    place: dict[str, Any] = {"url": "http://127.0.0.1:9/v1", "model": "toy"}
    limits: dict[str, Any] = {"request_timeout_s": 2.0, "max_attempts": 3, "requests_per_s": 4.0}
    limits["max_concurrency"] = 5
    assert Endpoint.from_settings(EndpointSettings(**place)) == Endpoint(**place)
    assert Endpoint.from_settings(EndpointSettings(**place, **limits)) == Endpoint(**place, **limits)
    assert limits.keys() == EndpointSettings.model_fields.keys() - place.keys() - {"key_from"}


def test_a_key_in_the_place_of_its_variable_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="no name of an environment variable") as refusal:
        Endpoint("http://127.0.0.1:9/v1", "toy", api_key_variable="sk-abc.def")
    assert "sk-abc" not in str(refusal.value)


def test_an_agent_that_does_not_answer_each_call_is_named() -> None:
    class Silent(Agent):
        def render(self, item: Item, observation: str) -> Opening:
            return Opening([Message("user", observation)], [add.schema])

        def parse(self, text: str) -> ParsedTurn:
            return ParsedTurn(thought="", answer=text)

    with (
        chat_server(in_turn(calls(("add", {"first": 2, "second": 3})))) as server,
        pytest.raises(ConfigError, match="replies to 1 calls with 0 messages of role 'tool'"),
    ):
        answer_question(server, agent=Silent())


def test_tokens_cannot_stop_an_endpoint() -> None:
    client = ChatClient(Endpoint("http://127.0.0.1:9/v1", "toy"))
    limits = EpisodeLimits(
        max_turns=1, max_tokens_per_turn=8, context_length=99, episode_timeout_s=1, step_timeout_s=1
    )
    with pytest.raises(ConfigError, match="stop_token_ids"):
        ChatConversation(
            "e",
            where="e",
            limits=limits,
            client=client,
            sampling=SamplingParams(max_tokens=8, stop_token_ids=(1,)),
        )


def test_further_entries_and_those_that_are_taken_out() -> None:
    extra = {"max_tokens": None, "max_completion_tokens": 9, "seed": 4}
    with chat_server(in_turn(says("5"))) as server:
        answer_question(
            server,
            agent=FormatAgent("hermes"),
            tools=[],
            model=endpoint_of(server, extra=extra),
            sampling=SamplingParams(top_k=5),
        )
    request = server.requests[0]
    assert "max_tokens" not in request
    assert (request["max_completion_tokens"], request["seed"], request["top_k"]) == (9, 4, 5)
