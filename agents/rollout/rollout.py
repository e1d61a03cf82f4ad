"""Episodes from a plain script: any agent, any model, no training.

    trajectories = rollout(
        ["What is 6 * 7?"], agent="hermes", tools=["calculator"], model=Endpoint(URL, "my-model")
    )

Owns how a script's values become those that `agents/rollout/group.py` plays; a pipeline's are
`tasks/rollout/runner.py`'s.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from agents.agent import Agent, FormatAgent
from agents.clients.endpoint import ChatClient, Endpoint
from agents.formats import NATIVE
from agents.prompting.native_tools import check_native
from agents.prompting.renderer import Renderer
from agents.rewards import Reward, get_reward
from agents.rewards.types import check_items
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.context import ContextPolicy
from agents.rollout.conversation import StartConversation, TokenConversation
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import OnTurn, run_groups
from agents.samplers.local import LocalModel
from agents.tools.registry import get_tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, SamplingParams, Trajectory
from envs.errors import ConfigError
from envs.registry import EnvSpec, get_env
from envs.runtime.manager import EnvManager
from envs.types import Item


def rollout(
    items: Iterable[Item | Mapping[str, Any] | str],
    *,
    agent: Agent | str,
    model: Endpoint | LocalModel,
    tools: Iterable[object] = (),
    reward: Reward | str | None = None,
    env: EnvSpec | str = "question",
    instructions: str = "",
    context: ContextPolicy | None = None,
    num_samples: int = 1,
    max_turns: int = 8,
    max_tokens_per_turn: int = 512,
    context_length: int = 8192,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    episode_timeout_s: float = 600.0,
    step_timeout_s: float = 60.0,
    max_attempts: int = 3,
    max_live_envs: int = 64,
    on_turn: OnTurn | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Play `num_samples` episodes of each item; returns their trajectories, item by item.

    `items` are items of environments, rows of data (which become the fields of items of `env`), or bare
    questions. `env` is an environment's name, or one of your own. `agent` is one of your own, or the name
    of a format (`agents/formats`), which is told `instructions` and the tools; `hermes`, `qwen3` and
    `llama3` are function calling where `model` is an endpoint. `tools` are tools, objects that have some,
    and names of get_tool ones; `reward` is one, or its name, and None leaves it to the environment.
    `context` is what the model sees of its own past, for models whose tokens are known: a `LocalModel`.
    `context_length` is in tokens; with an endpoint they are counted as it reports them.
    `max_live_envs` is how many environments, and so episodes, live at a time. The rest is as in
    pipelines.yaml; the callbacks are those of `agents.rollout.group.run_groups`.

    Raises `ConfigError` and `MissingDependency` before anything is played for what can be seen then, and
    `ConfigError` where an endpoint refuses model or key. A failed episode is data: `StopReason.ERROR`.
    """
    counts = {"num_samples": num_samples, "max_turns": max_turns, "max_attempts": max_attempts}
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name}={value}; give 1 or more")
    if context is not None and isinstance(model, Endpoint):
        raise ConfigError(
            f"context={context}: what an endpoint's model sees is the whole conversation; leave it out, or "
            "give a LocalModel"
        )
    specs, played = _items(items, env=env)
    box = Toolbox(get_tool(one) if isinstance(one, str) else one for one in tools)
    config = EpisodeConfig(
        agent=_agent(agent, box, instructions=instructions),
        limits=EpisodeLimits(
            max_turns=max_turns,
            max_tokens_per_turn=max_tokens_per_turn,
            context_length=context_length,
            episode_timeout_s=episode_timeout_s,
            step_timeout_s=step_timeout_s,
        ),
        tools=box if box.tools else None,
        reward=get_reward(reward) if isinstance(reward, str) else reward,
    )
    if config.reward is not None:
        check_items(config.reward, played)
    sampling = SamplingParams(
        max_tokens=max_tokens_per_turn, temperature=temperature, top_p=top_p, top_k=top_k
    )
    format = agent if isinstance(agent, str) and box.tools else ""

    async def gather() -> list[list[Trajectory]]:
        if isinstance(model, Endpoint):
            await ChatClient(model).check()
        envs = EnvManager(specs, capacity=max_live_envs, total=max(max_live_envs, len(specs)))
        try:
            return await run_groups(
                played,
                name="rollout",
                num_samples=num_samples,
                envs=envs,
                start_conversation=start_conversation,
                get_config=lambda _: config,
                max_attempts=max_attempts,
                on_turn=on_turn,
                on_trajectory=on_trajectory,
            )
        finally:
            await envs.close()

    with _start_conversation(
        model, sampling=sampling, context_length=context_length, format=format, context=context
    ) as start_conversation:
        return [trajectory for group in asyncio.run(gather()) for trajectory in group]


def _items(
    items: Iterable[Item | Mapping[str, Any] | str], *, env: EnvSpec | str
) -> tuple[Sequence[EnvSpec], Sequence[Item]]:
    """The environments that there are to be, and the items."""
    own = get_env(env) if isinstance(env, str) else env
    played = [
        one if isinstance(one, Item) else _row(one, env=own.name, place=place)
        for place, one in enumerate(items)
    ]
    if not played:
        raise ConfigError("no items to play; give one at least")
    names = dict.fromkeys(item.env for item in played)
    specs = [own if name == own.name else get_env(name) for name in names]
    for spec in specs:
        spec.check()
    return specs, played


def _row(row: Mapping[str, Any] | str, *, env: str, place: int) -> Item:
    fields = {"question": row} if isinstance(row, str) else dict(row)
    return Item(item_id=f"{env}_{place}", env=env, fields=fields)


def _agent(agent: Agent | str, tools: Toolbox, *, instructions: str) -> Agent:
    if isinstance(agent, str):
        return FormatAgent(agent, schemas=tools.schemas, instructions=instructions)
    if instructions:
        raise ConfigError(
            f"instructions={instructions[:40]!r}: a {type(agent).__name__} is made already; give them to it"
        )
    return agent


@contextmanager
def _start_conversation(
    model: Endpoint | LocalModel,
    *,
    sampling: SamplingParams,
    context_length: int,
    format: str,
    context: ContextPolicy | None,
) -> Iterator[StartConversation]:
    """`format` is the one in which tools are called; empty where there are none, or the agent knows."""
    if isinstance(model, Endpoint):
        yield partial(ChatConversation, client=ChatClient(model), sampling=sampling)
        return
    with model.load(context_length=context_length) as loaded:
        if format in NATIVE:
            check_native(loaded.tokenizer, format)
        renderer = Renderer(loaded.tokenizer, loaded.processor)
        yield partial(
            TokenConversation,
            sampler=loaded.sampler,
            renderer=renderer,
            sampling=sampling,
            context=context or ContextPolicy(),
        )
