"""The block `agent`: how the model is prompted, how its output is read, and what rewards its episodes."""

import math
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from agents.formats import FORMATS
from agents.rollout.conversation import ContextPolicy
from agents.settings import EndpointSettings, JudgeSettings, Settings, UserPath


def _check_reward(value: object) -> object:
    weights = value.values() if isinstance(value, dict) else ()
    has_weights = bool(weights) and all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and math.isfinite(weight)
        for weight in weights
    )
    if value is not None and not isinstance(value, str) and not has_weights:
        raise ValueError(
            f"{value!r} is neither the name of a reward nor several with finite weights, such as "
            "{qa_exact_match: 1.0, think_format: 0.2}"
        )
    return value


class JudgeBlock(JudgeSettings, EndpointSettings):
    """One of `judges`: a judge, and the endpoint that serves it."""

    prompt: UserPath | None = None
    """A file with the prompt, which names in braces what it is filled with; None is the default prompt."""


class AgentSettings(Settings):
    """One agent: its format, prompt, tools and reward; or somebody's program."""

    program: str | None = None
    """An agent program, `module:name`, which calls the policy by OpenAI's protocol (docs/gateway.md). It
    prompts the model itself: of the other settings it takes `reward` and `judges` alone."""
    format: str = "action"
    """One of `agents/formats` (`action`: an optional `Thought: …`, then `Action: …`), or your own `Agent`,
    `module:Class`, which is constructed with the JSON schemas of the tools."""
    instructions: bool
    """Whether the conversation opens with the environment's instructions. A model that was made
    for one environment does without: every prompt token costs time. False, and may be left out, for a
    program and for your own `Agent`, which write their own prompts."""
    prompt: UserPath | None = None
    """A file with the text that opens every conversation."""
    tools: list[str] = Field(default=[])
    """Prebuilt tools by name, and others as `module:name`."""
    reward: Annotated[str | dict[str, float] | None, BeforeValidator(_check_reward)] = None
    """What judges an episode: a prebuilt reward, one of `judges`, or one as `module:name`, or several with
    weights. None takes the environment's own, or the program's. With a program, it judges the episodes for
    which the program returns None."""
    judges: dict[Annotated[str, Field(pattern=r"^[A-Za-z]\w*$")], JudgeBlock] = Field(default={})
    """Language models that judge, by the names that `reward` uses."""
    context: ContextPolicy = ContextPolicy()

    @model_validator(mode="before")
    @classmethod
    def _fill_instructions(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        name = values.get("format", "action")
        has_own_format = isinstance(name, str) and name not in FORMATS
        if has_own_format or values.get("program") is not None:
            return {"instructions": False} | values
        return values
