"""A recorded episode that is repeated up to a turn: what is shown, what goes on, and what is noticed."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agents.agent import FormatAgent
from agents.clients.endpoint import ChatClient, Endpoint
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.conversation import ContextPolicy, Conversation, TokenConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.replay import Past, Replay, ReplayDiffers, ReplayedChat, ReplayedSampler
from agents.samplers.sampler import Sampler, ScriptedSampler
from agents.tools.tool import tool
from agents.tools.toolbox import Toolbox
from agents.types import Completion, EpisodeLimits, SamplingParams, StopReason, Trajectory
from envs.errors import ConfigError
from envs.types import Image, Message
from tests.agents.test_segments import LIMITS, RandomWords, play_policy
from tests.support.chat_server import chat_server, in_turn, says
from tests.support.toy import CHATML, PIPES, ToyEnv, encode, toy_item, toy_tokenizer

ROOMY = EpisodeLimits(max_turns=6, max_tokens_per_turn=60, context_length=2000)
ADDS = ["Thought: one\nAction: add 1", "Action: add 0", "Action: sing", "Action: add 2"]


class Rest:
    """Samples the recorded completions that follow the repeated ones."""

    def __init__(self, past: Past) -> None:
        self._turns = iter(past.trajectory.turns[past.num_turns :])

    async def sample(
        self,
        prompt_ids: Sequence[int],
        *,
        images: Sequence[Image] = (),
        params: SamplingParams,
        episode_id: str,
    ) -> Completion:
        return next(self._turns).completion


def make_record(**changes: Any) -> Trajectory:
    """Four turns of the toy, the last of which solves it."""
    sampler = ScriptedSampler(ADDS, encode=encode, policy_version=7)
    return replace(play_policy(sampler, ContextPolicy(), limits=ROOMY), **changes)


def past_of(trajectory: Trajectory, num_turns: int, **changes: Any) -> Past:
    values: dict[str, Any] = {"has_tokens": True, "where": "run/file:1"}
    return Past(trajectory=trajectory, num_turns=num_turns, **(values | changes))


def repeat(
    past: Past,
    sampler: Sampler | None = None,
    *,
    env: ToyEnv | None = None,
    template: str = CHATML,
    context: ContextPolicy | None = None,
    limits: EpisodeLimits = ROOMY,
    conversation: Conversation | None = None,
    replay: Replay | None = None,
    config: EpisodeConfig | None = None,
) -> Trajectory:
    past.check()
    replay = replay or Replay(past)
    renderer = Renderer(toy_tokenizer(template))
    token_conversation = TokenConversation(
        "e",
        where="toy_0",
        limits=limits,
        sampler=ReplayedSampler(sampler or Rest(past), replay, renderer=renderer),
        renderer=renderer,
        sampling=SamplingParams(max_tokens=1),
        context=context,
    )
    episode = run_episode(
        env or ToyEnv(),
        past.trajectory.item,
        sample_index=0,
        conversation=conversation or token_conversation,
        config=config or EpisodeConfig(agent=FormatAgent("action"), limits=limits),
        on_opening=replay.check_opening,
        on_turn=replay.check_turns,
        edit_result=replay.edit,
    )
    return replay.finish(asyncio.run(episode))


def timeless(trajectory: Trajectory) -> Trajectory:
    return replace(trajectory, seconds=0.0)


@pytest.mark.parametrize(
    "context",
    [
        ContextPolicy(),
        ContextPolicy(show_budget=True),
        ContextPolicy(when_full="drop"),
        ContextPolicy(when_full="summarize", summarize_at=0.5),
        ContextPolicy(keep_thoughts=False),
        ContextPolicy(keep_thoughts=False, when_full="drop", max_observation=9),
    ],
    ids=str,
)
def test_with_the_same_completions_the_whole_episode_comes_again(context: ContextPolicy) -> None:
    for seed in range(3):
        trajectory = play_policy(RandomWords(seed), context)
        assert len(trajectory.turns) > 1
        for num_turns in range(len(trajectory.turns)):
            past = past_of(trajectory, num_turns)
            assert timeless(repeat(past, context=context, limits=LIMITS)) == timeless(trajectory)


def test_another_model_goes_on_where_the_record_is_left() -> None:
    trajectory = make_record()
    sampler = ScriptedSampler(["Action: add 2"], encode=encode, policy_version=9)
    fork = repeat(past_of(trajectory, 1), sampler)
    assert fork.turns[0] == trajectory.turns[0]
    assert [(turn.action, turn.observation) for turn in fork.turns] == [
        ("add 1", "The total is 1."),
        ("add 2", "The total is 3."),
    ]
    assert [turn.completion.policy_version for turn in fork.turns] == [7, 9]
    assert (fork.success, fork.reward, fork.prompt_ids) == (True, 1.0, trajectory.prompt_ids)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"observation": "The total is 5."}, r"the observation, turn 2, .*'The total is 5\.'; now: .*is 1\."),
        ({"reward": 0.5}, r"the reward, turn 2, .*recorded: '0\.5'; now: '0'"),
        ({"state": "9"}, r"the environment's state, turn 2, .*recorded: '9'; now: '1'"),
        ({"action": "add 9"}, r"the action, turn 2, .*recorded: 'add 9'; now: 'add 0'"),
        ({"text": "Action: add 9"}, r"the policy's text, turn 2, "),
        ({"observation_ids": (5, 6)}, r"what the policy sees before, turn 3, is not as recorded"),
        ({"images": (Image(b"", "image/png"),)}, r"the images, turn 2, .*; recorded: 1; now: 0"),
    ],
)
def test_what_is_not_as_recorded_is_an_error_with_both_texts(change: dict[str, Any], text: str) -> None:
    turns = list(make_record().turns)
    turns[1] = replace(turns[1], **change)
    past = past_of(make_record(turns=tuple(turns)), 3)
    with pytest.raises(ReplayDiffers, match=f"^run/file:1: {text}"):
        repeat(past)


@pytest.mark.parametrize("has_tokens", [True, None, False])
def test_another_first_observation_is_noticed_with_and_without_tokens(has_tokens: bool | None) -> None:
    trajectory = make_record(item=toy_item(target=4))  # it was recorded with 3
    prompt = toy_tokenizer().decode(trajectory.prompt_ids)
    past = past_of(trajectory, 2, has_tokens=has_tokens, prompt=prompt)
    with pytest.raises(ReplayDiffers, match=r"recorded: .*reach 3.*now: .*reach 4"):
        repeat(past)


def test_other_instructions_are_noticed_without_tokens() -> None:
    trajectory = make_record()
    past = past_of(trajectory, 2, has_tokens=False, prompt=toy_tokenizer().decode(trajectory.prompt_ids))
    replay = Replay(past)
    last = Message("user", "reach 3")
    assert last.content in (past.prompt or "")
    replay.check_opening([last])
    with pytest.raises(ReplayDiffers, match=r"the prompt is not as recorded; .*now: .Never explain"):
        replay.check_opening([Message("system", "Never explain."), last])


def test_other_images_of_the_opening_are_noticed() -> None:
    past = past_of(make_record(prompt_images=(Image(b"a", "image/png"),)), 1)
    Replay(past).check_opening([Message("user", "reach 3", images=(Image(b"a", "image/png"),))])
    with pytest.raises(ReplayDiffers, match="the images, the opening, are not as recorded; recorded: 1"):
        Replay(past).check_opening([Message("user", "reach 3", images=(Image(b"b", "image/png"),))])
    with pytest.raises(ReplayDiffers, match="recorded: 1; now: 0"):
        repeat(past)


def test_an_episode_that_ends_among_the_repeated_turns_is_an_error() -> None:
    with pytest.raises(ReplayDiffers, match=r"ends with turn 2 \(truncated\), before turn 4"):
        repeat(past_of(make_record(), 3), env=ToyEnv(max_steps=2))
    with pytest.raises(ConfigError, match=r"turn 1 has .* tokens, and there is room for 3; raise rollout"):
        repeat(past_of(make_record(), 3), limits=replace(ROOMY, max_tokens_per_turn=3))


def test_a_model_with_other_tokens_gets_the_texts() -> None:
    trajectory = make_record()
    renderer = Renderer(toy_tokenizer(PIPES))
    sampler = ScriptedSampler(["Action: add 2"], encode=renderer.encode)
    forked = repeat(past_of(trajectory, 1, has_tokens=None), sampler, template=PIPES)
    assert (forked.success, [turn.action for turn in forked.turns]) == (True, ["add 1", "add 2"])
    # The file's tokens are of one tokenizer: those of the other are left out.
    assert forked.turns[0] == trajectory.turns[0]
    assert forked.prompt_ids == trajectory.prompt_ids
    assert (forked.turns[1].completion.token_ids, forked.turns[1].text) == ((), "Action: add 2")


def test_another_observation_is_shown_and_the_environment_is_as_it_was() -> None:
    trajectory = make_record()
    past = past_of(trajectory, 2, observation="The total is 1000.")
    observations: list[str] = []

    class Reader(ScriptedSampler):
        async def sample(self, prompt_ids: Sequence[int], **options: Any) -> Completion:
            observations.append(toy_tokenizer().decode(list(prompt_ids)))
            return await super().sample(prompt_ids, **options)

    forked = repeat(past, Reader(["Action: add 2"], encode=encode))
    assert [turn.observation for turn in forked.turns] == [
        "The total is 1.",
        "The total is 1000.",
        "The total is 3.",
    ]
    assert [("1000" in text, text.count("The total is 1.")) for text in observations] == [(True, 1)]
    turns = (trajectory.turns[0], replace(trajectory.turns[1], observation="?"), *trajectory.turns[2:])
    changed_past = replace(past, trajectory=replace(trajectory, turns=turns))
    with pytest.raises(ReplayDiffers, match="the observation, turn 2, is not as recorded"):
        repeat(changed_past, Reader(ADDS, encode=encode))


def test_turns_from_which_nothing_goes_on_are_refused() -> None:
    trajectory = make_record()
    for num_turns, options, text in (
        (4, {}, r"ended with turn 4 \(terminated\); name an earlier turn"),
        (5, {}, "5 turns would be repeated, and it has 4"),
        (0, {"observation": "x"}, "turn 0 has no observation"),
    ):
        with pytest.raises(ConfigError, match=text):
            past_of(trajectory, num_turns, **options).check()
    unfinished_trajectory = replace(trajectory, stop_reason=StopReason.MAX_TURNS)
    past_of(unfinished_trajectory, 4).check()  # with a longer horizon it goes on


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def ask_endpoint(
    past: Past, agent: FormatAgent, tools: Toolbox | None, answer: str
) -> tuple[Any, Trajectory]:
    """The messages that the endpoint was asked with, and the trajectory."""
    replay = Replay(past)
    with chat_server(in_turn(says(answer))) as server:
        model = ReplayedChat(ChatClient(Endpoint(server.url, "toy")), replay)
        sampling = SamplingParams(max_tokens=1)
        conversation = ChatConversation("e", where="toy_0", limits=ROOMY, client=model, sampling=sampling)
        config = EpisodeConfig(agent=agent, limits=ROOMY, tools=tools)
        forked = repeat(past, replay=replay, conversation=conversation, config=config)
    (request,) = server.requests
    return request["messages"], forked


def test_an_endpoint_gets_the_recorded_turns_as_its_own() -> None:
    trajectory = make_record()
    past = past_of(trajectory, 1, has_tokens=False)
    (_, said, reply), forked = ask_endpoint(past, FormatAgent("action"), None, "Action: add 2")
    assert (said["role"], said["content"]) == ("assistant", ADDS[0])
    assert (reply["role"], reply["content"]) == ("user", "The total is 1.")
    assert (forked.turns[0], forked.success) == (trajectory.turns[0], True)


def test_an_endpoint_gets_recorded_calls_as_calls() -> None:
    trajectory = make_record()
    call = replace(
        trajectory.turns[0],
        text='Let me see.\ndouble({"number": 2})',
        thought="Let me see.",
        action='double({"number": 2})',
        observation="4",
    )
    past = past_of(replace(trajectory, turns=(call, *trajectory.turns[1:])), 1, has_tokens=False)
    past = replace(past, has_env_rewards=False)
    tools = Toolbox([double])
    messages, forked = ask_endpoint(past, FormatAgent("hermes", schemas=tools.schemas), tools, "four")
    answer, reply = messages[-2:]
    (function,) = [call["function"] for call in answer["tool_calls"]]
    assert (answer["content"], function["name"]) == ("Let me see.", "double")
    assert json.loads(function["arguments"]) == {"number": 2}
    assert (reply["role"], reply["content"]) == ("tool", "4")
    assert [turn.action for turn in forked.turns] == ['double({"number": 2})', "four"]
