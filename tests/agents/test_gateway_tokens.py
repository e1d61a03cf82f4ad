"""Whatever becomes of conversations, what is trained on is what was sampled, each token once."""

import asyncio
from typing import Any

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.gateway.sessions import GatewaySession
from agents.rollout.packing import pack
from tests.support.examples import examples
from tests.support.gateway_toy import (
    ITEM,
    RandomSampler,
    ask,
    client_of,
    find_trained,
    make_gateway,
    to_history,
)
from tests.support.toy import toy_tokenizer

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["extend", "extend", "extend", "fork", "edit", "drop", "system", "retry", "null"]),
        st.integers(min_value=0, max_value=3),  # of which conversation
        st.integers(min_value=0, max_value=7),  # where in it
    ),
    min_size=1,
    max_size=14,
)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def render(messages: list[Any]) -> str:
    """The conversation as the chat template has it."""
    turns = [f"<|im_start|>{message['role']}\n{message['content'] or ''}<|im_end|>\n" for message in messages]
    return "".join(turns) + "<|im_start|>assistant\n"


def apply_move(talk: list[Any], move: str, where: int) -> list[Any]:
    """The next request's messages; `talk` ends with an answer."""
    if move == "retry":
        return talk[:-1]
    if move == "edit":
        position = where % len(talk)
        talk = [*talk[:position], {**talk[position], "content": f"changed {where}"}, *talk[position + 1 :]]
    elif move == "fork":
        talk = talk[: 1 + where % len(talk)]
    elif move == "drop":
        talk = talk[where % len(talk) :]
    elif move == "system":
        talk = [{"role": "system", "content": f"now {where}"}, *talk]
    elif move == "null":
        talk = [{"role": message["role"], "content": message["content"] or None} for message in talk]
    return [*talk, user(f"go on {where}")]


@settings(max_examples=examples(40))
@given(moves=MOVES, seed=st.integers(min_value=0, max_value=99))
def test_trained_tokens_are_the_sampled_ones_each_once(moves: list[tuple[str, int, int]], seed: int) -> None:
    async def work() -> None:
        sampler = RandomSampler(seed)
        gateway = make_gateway(sampler, context_length=100_000)
        session = gateway.sessions.open(
            GatewaySession(
                policy=gateway.policy, item=ITEM, url="http://gateway", max_turns=1000, expires=False
            )
        )
        transport = httpx.AsyncClient(transport=httpx.ASGITransport(gateway.app))
        talks: list[list[Any]] = [[user("start 0")], [user("start 1")]]
        requests = [render(talk) for talk in talks]
        async with client_of(session.base_url, http_client=transport) as client:
            for number, talk in enumerate(talks):
                talks[number] = [*talk, to_history(await ask(client, talk))]
            for move, conversation_index, where in moves:
                number = conversation_index % len(talks)
                request_turns = apply_move(talks[number], move, where)
                requests.append(render(request_turns))
                next_talk = [*request_turns, to_history(await ask(client, request_turns))]
                if move in ("fork", "drop", "edit"):
                    talks.append(next_talk)
                else:
                    talks[number] = next_talk
        trajectory = session.trajectory(reward=1.0)
        assert sorted(find_trained(trajectory)) == sorted(sampler.samples)
        assert [toy_tokenizer().decode(prompt) for prompt, _ in sampler.samples] == requests
        segments = pack(trajectory)
        assert sum(turn.reward for turn in trajectory.turns) == 1.0
        in_order = [[*turn.completion.token_ids] for turn in trajectory.turns]
        assert in_order == [ids for _, ids in sampler.samples]
        if all(move in ("extend", "null") for move, _, _ in moves):
            assert len(segments) == 2

    asyncio.run(work())


async def test_concurrent_requests_with_one_history_are_separate() -> None:
    sampler = RandomSampler()
    gateway = make_gateway(sampler, context_length=100_000)
    async with gateway.listening(), gateway.session(ITEM) as session, client_of(session.base_url) as client:
        talk = [user("start")]
        talk.append(to_history(await ask(client, talk)))
        more = [[*talk, user(f"agent {number}")] for number in range(5)]
        answers = await asyncio.gather(*(ask(client, messages) for messages in more))
        further = [[*messages, to_history(a), user("on")] for messages, a in zip(more, answers, strict=True)]
        await asyncio.gather(*(ask(client, messages) for messages in further))
    trajectory = session.trajectory(reward=1.0)
    assert sorted(find_trained(trajectory)) == sorted(sampler.samples)
    assert len(pack(trajectory)) == 5  # the first of them goes on in the first segment
