"""Programs as a user's file has them: two questions by OpenAI's client, written down as that saw them."""

import json
from pathlib import Path
from typing import Any

from httpx import AsyncClient
from openai import AsyncOpenAI

from agents.rewards import reward
from envs.types import Item

TURNS = 2


async def play(base_url: str, api_key: str, item: Item) -> float:
    """1 where the last answer has an even number of characters; appends a line to the file `log`."""
    talk = await _talk(base_url, api_key, item)
    return float(len(talk[-1]["says"]) % 2 == 0)


async def play_unjudged(base_url: str, api_key: str, item: Item) -> None:
    """The same, judged by whatever the pipeline names."""
    await _talk(base_url, api_key, item)


async def intrude(base_url: str, api_key: str, item: Item) -> float:
    """Counts the requests without a key that are refused: for models, an answer, a session."""
    root = base_url.partition("/sessions/")[0]
    body = {"model": "policy", "messages": [{"role": "user", "content": "?"}]}
    async with AsyncClient(base_url=root) as client:
        answers = [
            await client.get("/v1/models"),
            await client.post("/v1/chat/completions", json=body),
            await client.post("/sessions", json={"item": {"item_id": "question_1"}}),
        ]
    await _talk(base_url, api_key, item)
    return float(sum(answer.status_code == 401 for answer in answers))


async def _talk(base_url: str, api_key: str, item: Item) -> list[dict[str, Any]]:
    messages: list[Any] = [{"role": "user", "content": item.fields["question"]}]
    talk: list[dict[str, Any]] = []
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        for _ in range(TURNS):
            answer = await client.chat.completions.create(model="policy", messages=messages)
            says, usage = answer.choices[0].message.content, answer.usage
            assert usage is not None
            messages += [{"role": "assistant", "content": says}, {"role": "user", "content": "Sure?"}]
            talk.append(
                {
                    "says": says,
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "fingerprint": answer.system_fingerprint,
                }
            )
    with Path(item.fields["log"]).open("a") as file:
        file.write(json.dumps(talk) + "\n")
    return talk


def blocking(base_url: str, api_key: str, item: Item) -> float:
    """A program that is not async."""
    raise NotImplementedError


def of_two(base_url: str, api_key: str) -> float:
    """Not a program: it takes no item."""
    raise NotImplementedError


class ToyProgram:
    """Not a program: nothing is returned by its making."""


@reward
def even(final_response: str) -> dict[str, float | bool]:
    """As `play` judges."""
    return {"reward": float(len(final_response) % 2 == 0), "success": len(final_response) % 2 == 0}


@reward
def of_the_environment(env: object) -> float:
    """What no program's episode has."""
    return 1.0
