"""Episodes from a plain script: any agent, any model, no training.

    trajectories = rollout(
        ["What is 6 * 7?"], agent="hermes", tools=["calculator"], model=Endpoint(URL, "my-model")
    )

Turns a script's values into those of `agents/rollout/group.py`; `tasks/rollout/runner.py` does so for a
pipeline's.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from agents.agent import Agent, make_agent
from agents.clients.endpoint import ChatClient, Endpoint
from agents.formats import NATIVE
from agents.prompting.native_tools import check_native
from agents.prompting.renderer import Renderer
from agents.rewards import REWARDS, Reward
from agents.rewards.types import check_items, require_reward
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.conversation import ContextPolicy, StartConversation, TokenConversation
from agents.rollout.env_checks import check_env
from agents.rollout.episode import EpisodeConfig
from agents.rollout.group import Callbacks, GroupSpec, run_groups
from agents.samplers.local import LocalModel
from agents.tools.registry import get_tool
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, SamplingParams, Trajectory
from envs.errors import ConfigError, show
from envs.registry import EnvSpec, get_env
from envs.runtime.manager import EnvManager
from envs.types import Item


def rollout(
    items: Iterable[Item | Mapping[str, object] | str],
    *,
    agent: Agent | str,
    model: Endpoint | LocalModel,
    tools: Iterable[object] = (),
    reward: Reward | str | None = None,
    env: EnvSpec | str = "question",
    instructions: str = "",
    context: ContextPolicy | None = None,
    limits: EpisodeLimits = EpisodeLimits(),
    sampling: SamplingParams = SamplingParams(),
    num_samples: int = 1,
    max_attempts: int = 3,
    max_live_envs: int = 64,
    callbacks: Callbacks = Callbacks(),
) -> list[Trajectory]:
    """Run `num_samples` episodes of each item; returns their trajectories, item by item.

    `items` are items of environments, rows of data (which become the fields of items of `env`), or bare
    questions. `env` is an environment's name, or an `EnvSpec`; rows and questions need one without items of
    its own (`has_items`). `agent` is an `Agent`, or the name of a format as `make_agent` takes it: the prompt
    of one of `agents/formats` gets `instructions` and the tools; `hermes`, `qwen3` and `llama3` are function
    calling where `model` is an endpoint. `tools` are tools, objects that have tools, and names of prebuilt
    ones; `reward` is a reward or its name, and None leaves it to the environment. `context` is what the model
    sees of its past, for models whose tokens are known: a `LocalModel`. With an endpoint,
    `limits.context_length` counts the tokens that it reports. `sampling.max_tokens` is set for each turn.
    `max_live_envs` is how many environments, and so episodes, live at a time.

    Raises `ConfigError` and `MissingDependency` before any episode for what can be found then, and
    `ConfigError` where an endpoint refuses model or key. A failed episode is data: `StopReason.ERROR`.
    """
    counts = {
        "num_samples": num_samples,
        "max_turns": limits.max_turns,
        "max_attempts": max_attempts,
        "max_live_envs": max_live_envs,
    }
    for name, value in counts.items():
        if value < 1:
            raise ConfigError(f"{name}={value}; give 1 or more")
    if not isinstance(model, Endpoint | LocalModel):
        raise ConfigError(f"model is {show(model)}; give an Endpoint, or LocalModel(FOLDER)")
    if context is not None and isinstance(model, Endpoint):
        raise ConfigError(
            f"context={context}: an endpoint's model sees the whole conversation; leave it out, or give a "
            "LocalModel"
        )
    if isinstance(tools, str) or not isinstance(tools, Iterable):
        raise ConfigError(f"tools is {show(tools)}; give a list of tools")
    specs, items = _resolve_items(items, env=env)
    toolbox = Toolbox(get_tool(tool) if isinstance(tool, str) else tool for tool in tools)
    format = agent if isinstance(agent, str) and toolbox.tools else ""
    if isinstance(agent, str):
        agent = make_agent(agent, schemas=toolbox.schemas, instructions=instructions, key="agent")
    elif instructions:
        raise ConfigError(
            f"instructions={instructions[:40]!r}: a {type(agent).__name__} has its own; give them to it"
        )
    config = EpisodeConfig(
        agent=agent, limits=limits, tools=toolbox if toolbox.tools else None, reward=_find_reward(reward)
    )
    for env_spec in specs:
        check_env(env_spec, tools=config.tools, reward=config.reward)
    if config.reward is not None:
        check_items(config.reward, items)
    spec = GroupSpec(name="rollout", num_samples=num_samples, max_attempts=max_attempts, callbacks=callbacks)

    async def gather(start_conversation: StartConversation) -> list[list[Trajectory]]:
        if isinstance(model, Endpoint):
            await ChatClient(model).check()
        envs = EnvManager(specs, capacity=max_live_envs, total=max(max_live_envs, len(specs)))
        try:
            return await run_groups(
                items, spec, envs=envs, start_conversation=start_conversation, get_config=lambda _: config
            )
        finally:
            await envs.close()

    with _open_model(model, sampling=sampling, limits=limits, format=format, context=context) as start:
        return [trajectory for group in asyncio.run(gather(start)) for trajectory in group]


def _find_reward(reward: Reward | str | None) -> Reward | None:
    if reward is None:
        return None
    return REWARDS.find(reward) if isinstance(reward, str) else require_reward(reward, place="reward")


def _resolve_items(
    items: Iterable[Item | Mapping[str, object] | str], *, env: EnvSpec | str
) -> tuple[Sequence[EnvSpec], Sequence[Item]]:
    """The environments of the items, and the items."""
    if isinstance(items, str | Mapping | Item) or not isinstance(items, Iterable):
        raise ConfigError(f"items is {show(items)}; give a list of items, rows or questions")
    default = get_env(env) if isinstance(env, str) else env
    episode_items = [
        item if isinstance(item, Item) else _make_item(item, spec=default, index=index)
        for index, item in enumerate(items)
    ]
    if not episode_items:
        raise ConfigError("there are no items; give at least one")
    names = dict.fromkeys(item.env for item in episode_items)
    specs = [default if name == default.name else get_env(name) for name in names]
    for spec in specs:
        spec.check()
    return specs, episode_items


def _make_item(row: Mapping[str, object] | str, *, spec: EnvSpec, index: int) -> Item:
    if not isinstance(row, str | Mapping):
        raise ConfigError(f"items[{index}] is {show(row)}; give an Item, a row or a question")
    if spec.has_items:
        raise ConfigError(
            f"items[{index}] is {show(row)}, and environment {spec.name!r} has its own items; give some of "
            "them, such as those of its split(0).test, or leave out env"
        )
    fields = {"question": row} if isinstance(row, str) else dict(row)
    return Item(item_id=f"{spec.name}_{index}", env=spec.name, fields=fields)


@contextmanager
def _open_model(
    model: Endpoint | LocalModel,
    *,
    sampling: SamplingParams,
    limits: EpisodeLimits,
    format: str,
    context: ContextPolicy | None,
) -> Iterator[StartConversation]:
    """`format` is that of the tool calls; empty if there are no tools, or if the agent checks it."""
    if isinstance(model, Endpoint):
        yield partial(ChatConversation, client=ChatClient(model), sampling=sampling)
        return
    with model.load(context_length=limits.context_length) as local:
        if format in NATIVE:
            check_native(local.tokenizer, format)
        yield partial(
            TokenConversation,
            sampler=local.sampler,
            renderer=Renderer(local.tokenizer, local.processor),
            sampling=sampling,
            context=context,
        )
