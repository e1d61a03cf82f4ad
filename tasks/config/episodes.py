"""Makes a pipeline's agent block into the `EpisodeConfig` of an environment's items."""

import inspect
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from agents.agent import Agent, make_agent
from agents.agent_results import parse_turn
from agents.formats import FORMATS, NATIVE
from agents.prompting.native_tools import check_native
from agents.rewards import REWARDS, CombinedReward, Reward
from agents.rewards.types import PREFIX, check_items, require_reward
from agents.rollout.env_checks import check_env
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import write_action
from agents.tools.registry import get_tool
from agents.tools.toolbox import Toolbox
from agents.types import OTHER_SAMPLING
from envs.errors import ConfigError, describe, suggest
from envs.registry import EnvSpec, get_env
from envs.requirements.plugins import load_object
from envs.types import Item
from tasks.algorithms.builtin.gdpo import Gdpo
from tasks.config.agent import AgentSettings
from tasks.config.judges import check_judges, judge_of
from tasks.config.pipelines import Pipeline
from tasks.config.user_code import reward_names

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ENVIRONMENTS_OWN = frozenset({"environment", "environment_success"})
"""Rewards that repeat what the environment gave."""


def make_episode_config(
    spec: EnvSpec, pipeline: Pipeline, *, tokenizer: "PreTrainedTokenizerBase | None"
) -> EpisodeConfig:
    """How `pipeline`'s agent runs items of `spec` in evaluation; training has other horizons.

    `tokenizer` is None if the model is behind an endpoint, which has the chat template. Raises `ConfigError`
    for unknown names, tools that the format cannot call and a chat template that does not show them, and
    `MissingDependency`.
    """
    agent = pipeline.agent
    tools = toolbox_of(agent)
    if agent.format in NATIVE and tools is not None and tokenizer is not None:
        check_native(tokenizer, agent.format)
    return EpisodeConfig(
        agent=agent_of(agent, spec, tools),
        limits=pipeline.rollout.limits(max_turns=pipeline.evaluate.max_turns),
        tools=tools,
        reward=reward_of(agent),
    )


def check_agent(pipeline: Pipeline) -> None:
    """Check, before anything starts, that `pipeline`'s agent can be made.

    Raises `ConfigError` for unknown names, tools that the format cannot call or that lack a setting, an
    environment without rewards if no reward is named, a metric in `train.algorithm.rewards` that no episode
    has, a judge that cannot be reached, settings that a program
    does not use, and a warm-up without an expert, of a program, or in a format that cannot act in the
    environment. Raises `MissingDependency`.
    """
    agent = pipeline.agent
    algorithm = pipeline.train.algorithm
    if isinstance(algorithm, Gdpo):
        _check_metrics(agent, algorithm.rewards)
    specs = [get_env(name) for name in pipeline.data.envs]
    reward = reward_of(agent)
    check_judges(agent, names=reward_names(agent))
    if agent.program is not None:
        program_of(agent)
        for env in pipeline.servers:
            raise ConfigError(
                f"servers.{env}: agent.program {agent.program!r} uses no environments; leave it out"
            )
    else:
        tools = toolbox_of(agent)
        for spec in specs:
            parse_turn(agent_of(agent, spec, tools), "")  # finds a parser that does not work at all
            check_env(spec, tools=tools, reward=reward, is_served=spec.name in pipeline.servers)
            if reward is None and not spec.has_rewards:
                raise ConfigError(
                    f"agent.reward: environment {spec.name!r} gives no rewards; name one (docs/rewards.md)"
                )
    if pipeline.warmup is None:
        return
    if agent.program is not None:
        raise ConfigError(
            f"warmup: demonstrations are written in agent.format, and agent.program {agent.program!r} "
            "writes its own prompts; set warmup: null"
        )
    tools = toolbox_of(agent)
    try:
        write_action(agent_of(agent, specs[0], tools), tools, thought="", action="look")
    except ConfigError as error:
        raise ConfigError(
            f"warmup: agent.format {agent.format!r} has no demonstrations: {error}, or set warmup: null"
        ) from None
    if not any(spec.has_expert for spec in specs):
        raise ConfigError(
            f"warmup: {', '.join(pipeline.data.envs)} has no expert to make demonstrations; set warmup: null"
        )


def _check_metrics(settings: AgentSettings, names: Iterable[str]) -> None:
    known_names = ["reward", *_metric_names(settings)]
    for name in names:
        if any(name == known or (known.endswith("/") and name.startswith(known)) for known in known_names):
            continue
        listed = ", ".join(f"{known}…" if known.endswith("/") else known for known in known_names)
        raise ConfigError(
            f"train.algorithm.rewards: no episode of this agent has the metric {name!r}; "
            f"{suggest(name, known_names)}there are: {listed}"
        )


def _metric_names(settings: AgentSettings) -> Iterator[str]:
    """The metrics of a trajectory, as far as they are known before it is played: those of an environment, a
    tool or a reward by how their names begin, with `/` at the end."""
    yield from ("parse_failures", "segments")
    if settings.program is None and isinstance(settings.reward, dict):
        for part in settings.reward:
            yield from (f"{PREFIX}{part}", f"{PREFIX}{part}/")
    elif settings.program is not None or settings.reward is not None:
        yield PREFIX
    if settings.program is not None:
        yield OTHER_SAMPLING
        return
    yield "env_metrics/"
    if (tools := toolbox_of(settings)) is not None:
        yield "unknown_tools"
        for tool in tools.usage:
            yield from (f"tool_calls/{tool}", f"tool_failures/{tool}", f"tool_seconds/{tool}")
            yield f"tool_metrics/{tool}/"


def check_reward(settings: AgentSettings, items: Iterable[Item]) -> None:
    """Raise `ConfigError`, naming an item, if `items` lack a value that the reward needs, or
    `MissingDependency`."""
    reward = reward_of(settings)
    if reward is not None:
        check_items(reward, items, with_env=settings.program is None)


ProgramResponse = float | Mapping[str, object] | None


class AgentProgram(Protocol):
    """A user's agent: a function, or an async function."""

    def __call__(
        self, base_url: str, api_key: str, item: Item, /
    ) -> ProgramResponse | Awaitable[ProgramResponse]:
        """Run an episode of `item` with the model at `base_url`.

        Returns a reward, or a mapping with `reward` and optionally `success`, `turn_rewards` (one for each of
        the model's answers, in their order) and metrics: `agents.rewards.types.read_result`. None leaves the
        judging to a reward, if the model has answered. An exception voids the episode, unless no turn or no
        context was left.

        An async program shares the event loop with the gateway, which cannot answer while it blocks; any
        other gets a thread for each episode.
        """


def program_of(settings: AgentSettings) -> AgentProgram:
    """The program of `settings`, which must name one.

    Raises `ConfigError` if it cannot be called as an `AgentProgram`, and for settings that it would not use.
    """
    name = settings.program
    assert name is not None
    alone = AgentSettings(program=name, instructions=False, reward=settings.reward, judges=settings.judges)
    for key, value in settings:
        if value != getattr(alone, key):
            raise ConfigError(
                f"agent.{key}: agent.program {name!r} writes its own prompts, without this; leave it out"
            )
    unavailable = sorted(ENVIRONMENTS_OWN.intersection(reward_names(settings)))
    if unavailable:
        raise ConfigError(
            f"agent.reward: {unavailable[0]!r} is an environment's reward, and agent.program {name!r} has no "
            "environment; return the reward from the program, or name another"
        )
    if ":" not in name:
        raise ConfigError(f"agent.program: {name!r} is not MODULE:NAME, e.g. agents.custom.mine:play")
    program = load_object(name, key="agent.program")
    if inspect.isclass(program) or not callable(program):
        raise ConfigError(f"agent.program: {name!r} is a {type(program).__name__}; name a function")
    try:
        inspect.signature(program).bind("base_url", "api_key", "item")
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"agent.program: {name!r} cannot be called ({error}); its parameters must be (base_url, api_key, "
            "item)"
        ) from None
    return cast(AgentProgram, program)


def check_vision(items: Iterable[Item], *, has_vision: bool) -> None:
    """Raise `ConfigError`, naming an item, for images if the model reads only text."""
    item = next((item for item in items if item.image_sources), None)
    if item is not None and not has_vision:
        raise ConfigError(
            f"{item.item_id} has images, and the model reads only text; use a vision-language model, or "
            "remove the column image or images"
        )


def agent_of(settings: AgentSettings, spec: EnvSpec, tools: Toolbox | None) -> Agent:
    """The agent of `settings`, with the instructions of `spec`. Raises `ConfigError`."""
    texts: list[str] = []
    if settings.format in FORMATS:
        texts = [_read_prompt(settings.prompt), spec.instructions if settings.instructions else ""]
    agent = make_agent(
        settings.format,
        schemas=[] if tools is None else tools.schemas,
        key="agent.format",
        instructions="\n\n".join(filter(None, texts)),
        action_hint=spec.action_hint,
    )
    for key in ("prompt", "instructions"):
        if settings.format not in FORMATS and getattr(settings, key):
            raise ConfigError(
                f"agent.{key}: agent.format {settings.format!r} writes its own prompts; leave it out"
            )
    return agent


def toolbox_of(settings: AgentSettings) -> Toolbox | None:
    """The tools of `settings`; None if there are none. Raises `ConfigError` and `MissingDependency`."""
    if not settings.tools:
        return None
    return Toolbox(
        load_object(name, key="agent.tools") if ":" in name else get_tool(name) for name in settings.tools
    )


def reward_of(settings: AgentSettings) -> Reward | None:
    """The reward of `settings`; None leaves it to the environment. Raises `ConfigError`."""
    if settings.reward is None:
        return None
    if isinstance(settings.reward, str):
        return _find_reward(settings.reward, settings)
    return CombinedReward(
        settings.reward, rewards={name: _find_reward(name, settings) for name in settings.reward}
    )


def _find_reward(name: str, settings: AgentSettings) -> Reward:
    if name in settings.judges:
        return judge_of(name, settings.judges[name])
    if ":" not in name:
        return REWARDS.find(name)
    return require_reward(load_object(name, key="agent.reward"), place=f"agent.reward: {name!r}")


def _read_prompt(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"agent.prompt: cannot read {path}: {describe(error)}; name another") from None
