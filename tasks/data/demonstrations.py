"""Demonstrations: environments' scripted experts, played on training items, as tokens and masks.

With noise, some turns are preceded by a careless one: an action out of another item's solution, without a
thought. The environment answers, and the expert goes on where it was. Unless `warmup.imitate_noise` says
otherwise, the careless turn is seen but not trained on: what is learnt is to go on, not to err.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agents.agent import Agent
from agents.prompting.renderer import Renderer
from envs.base import Environment
from envs.errors import ConfigError
from envs.registry import EnvSpec, ExpertStep, get_env
from envs.types import Image, Item, Message, Observation
from tasks.config.episodes import agent_of
from tasks.config.settings import Pipeline
from tasks.data.mixture import training_order

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

USELESS_FROM = 32
"""Items whose solutions' actions are the careless ones; an expert may need seconds for an item."""
ATTEMPTS = 8
"""Tries of one demonstration: a useless action may spoil the game, or make it too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One expert game, packed as a trajectory is."""

    item_id: str
    prompt_ids: list[int]  # [P]
    response_ids: list[int]  # [R], ends with the last action's end-of-turn token
    mask: list[int]  # [R], 1 where the expert speaks to be imitated
    turns: int


async def demonstrate(
    items: Sequence[Item], *, pipeline: Pipeline, tokenizer: "PreTrainedTokenizerBase"
) -> list[Demonstration]:
    """`warmup.demonstrations` games over `items`, drawn as training draws them; seeded.

    Raises `ConfigError` if the experts solve none of them within the context length.
    """
    settings = pipeline.warmup
    assert settings is not None
    seed = f"demonstrations/{pipeline.seed}"
    rng = random.Random(seed)
    order = training_order(items, pipeline.data, seed=seed)
    specs = {env: get_env(env) for env in pipeline.data.envs}
    agents = {env: agent_of(pipeline.agent, spec, None) for env, spec in specs.items()}
    stages = {env: _Stage(spec, items, rng=rng, noise=settings.noise) for env, spec in specs.items()}
    renderer = Renderer(tokenizer)
    games: list[Demonstration] = []
    failures = 0
    try:
        while len(games) < settings.demonstrations:
            item = items[next(order)]
            stage = stages[item.env]
            solution = stage.solution(item)
            game = None
            for attempt in range(ATTEMPTS if solution else 0):
                noise = settings.noise if attempt < ATTEMPTS - 1 else 0.0
                game = await _play(
                    stage.env,
                    item,
                    _script(solution, useless=stage.useless, noise=noise, rng=rng),
                    renderer=renderer,
                    encode=partial(tokenizer.encode, add_special_tokens=False),
                    agent=agents[item.env],
                    imitate_noise=settings.imitate_noise,
                )
                if game and _length(game) <= pipeline.rollout.context_length:
                    games.append(game)
                    break
            else:
                failures += 1
            if failures > len(items) and not games:
                raise ConfigError(
                    f"the experts of {', '.join(specs)} solve no training item within rollout.context_length "
                    f"{pipeline.rollout.context_length}; raise it; without an expert, warmup: null"
                )
    finally:
        for stage in stages.values():
            await stage.env.close()
    return games


class _Stage:
    """Where demonstrations of one environment are played."""

    def __init__(self, spec: EnvSpec, items: Sequence[Item], *, rng: random.Random, noise: float) -> None:
        self.env = spec.make()
        self._spec = spec
        self._solutions: dict[str, Sequence[ExpertStep]] = {}
        own = [item for item in items if item.env == spec.name]
        others = rng.sample(own, min(USELESS_FROM, len(own))) if noise else []
        # An action that depends on what is seen is no action in another item.
        said = (step.action for item in others for step in self.solution(item))
        self.useless = sorted({action for action in said if isinstance(action, str)})

    def solution(self, item: Item) -> Sequence[ExpertStep]:
        """The expert's; some take seconds to find, so they are kept."""
        if item.item_id not in self._solutions:
            self._solutions[item.item_id] = self._spec.solve(item)
        return self._solutions[item.item_id]


@dataclass(frozen=True, slots=True)
class _Line:
    step: ExpertStep
    thoughtless: str
    """What is said where this is no line of the expert's; empty where it is."""


def _script(
    steps: Sequence[ExpertStep], *, useless: Sequence[str], noise: float, rng: random.Random
) -> list[_Line]:
    lines = []
    for step in steps:
        if rng.random() < noise and useless:
            action = rng.choice(useless)
            # The form of the expert's own turns, with the thought left out.
            thoughtless = f"Thought:\nAction: {action}" if step.thought else f"Action: {action}"
            lines.append(_Line(ExpertStep("", action), thoughtless))
        lines.append(_Line(step, ""))
    return lines


async def _play(
    env: Environment,
    item: Item,
    script: Sequence[_Line],
    *,
    renderer: Renderer,
    encode: Callable[[str], list[int]],
    agent: Agent,
    imitate_noise: bool,
) -> Demonstration | None:
    """The game of `script`, or None if it was not solved by its last line, and only then."""
    seen = Observation.wrap(await env.reset(item))
    _check_text(item, seen.images)
    opening = agent.render(item, seen.text)
    ids: list[int] = []
    mask: list[int] = []
    observation = seen.text
    for index, line in enumerate(script):
        try:
            action = line.step.resolve(observation)
        except LookupError:  # a careless turn has led away from what the expert knows
            return None
        said = line.thoughtless or spoken_text(line.step.thought, action)
        spoken = [*encode(said), renderer.stop_token_ids[0]]
        ids += spoken
        mask += [int(not line.thoughtless or imitate_noise)] * len(spoken)
        result = await env.step(action)
        observation = result.observation
        _check_text(item, result.images)
        last = index == len(script) - 1
        if (result.terminated or result.truncated) != last:
            return None
        if last:
            if not result.success:
                return None
        else:
            reply_ids = renderer.reply_ids([Message("user", result.observation)], is_closed=True)
            ids += reply_ids
            mask += [0] * len(reply_ids)
    return Demonstration(
        item_id=item.item_id,
        prompt_ids=renderer.prompt_ids(opening.messages),
        response_ids=ids,
        mask=mask,
        turns=len(script),
    )


def _check_text(item: Item, images: Sequence[Image]) -> None:
    if images:
        raise ConfigError(
            f"warmup: {item.item_id} shows pictures, and demonstrations are text; set warmup: null"
        )


def spoken_text(thought: str, action: str) -> str:
    """What the expert says, in the `action` format."""
    return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"


def _length(game: Demonstration) -> int:
    return len(game.prompt_ids) + len(game.response_ids)
