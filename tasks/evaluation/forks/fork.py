"""Runs forks: episodes that repeat a recorded one up to a turn, in a fresh environment, and then go on."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agents.clients.endpoint import ChatClient, Endpoint
from agents.prompting.renderer import Renderer
from agents.rollout.chat_conversation import ChatConversation
from agents.rollout.conversation import Conversation, TokenConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.group import Attempt, Callbacks, GroupSpec, gather_groups
from agents.rollout.replay import Replay, ReplayedChat, ReplayedSampler
from agents.rollout.scripted import ReadLine, TextConversation, write_action
from agents.types import UNLIMITED, EpisodeLimits, Trajectory, Turn
from envs.errors import ConfigError, EpisodeFault
from envs.runtime.manager import EnvManager
from envs.types import Message
from tasks.config.environments import environments
from tasks.config.episodes import make_episode_config
from tasks.evaluation.forks.request import ForkPlan
from tasks.evaluation.policy import local_model
from tasks.rollout.runner import check_endpoint_agent

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class _Actor:
    """Who goes on."""

    converse: Callable[[Replay, str, EpisodeLimits], Conversation]
    """Starts the conversation of an episode with its id and limits."""
    tokenizer: "PreTrainedTokenizerBase | None" = None


async def sample_fork(
    plan: ForkPlan, callbacks: Callbacks = Callbacks(), *, name: str | None = None
) -> list[Trajectory]:
    """The samples of `plan` with its policy; the event loop waits while a local policy is loaded.

    `name`: of the episodes. A local policy's random numbers depend on it and on the pipeline's seed; by
    default it is the parent's, so the same request gives the same samples. Raises `ReplayDiffers`,
    `ConfigError` and `MissingDependency`.
    """
    if isinstance(plan.policy, Endpoint):
        await ChatClient(plan.policy).check()
    with _open_policy(plan) as actor:
        return await _gather(plan, actor, callbacks, name=name or f"fork {plan.parent.address}")


async def run_person(
    plan: ForkPlan, read_line: ReadLine, callbacks: Callbacks = Callbacks()
) -> Trajectory | None:
    """One episode in which a person goes on, as long as that takes; None if they left it before its end.

    A line is an action, or, if the agent acts by tools alone, a turn as a model would write it. Raises as
    `sample_fork`, and `EpisodeFault` if the environment fails.
    """
    config, has_left = _make_config(plan, None), False

    def converse(replay: Replay, episode_id: str, limits: EpisodeLimits) -> Conversation:
        async def answer(_: int) -> str | None:
            turn = replay.next_turn()
            if turn is not None:
                return turn.text
            line = await read_line()
            nonlocal has_left
            has_left = line is None
            return None if line is None else person_text(config, line)

        return TextConversation(answer)

    (trajectory,) = await _gather(replace(plan, samples=1), _Actor(converse), callbacks, name="person")
    if trajectory.has_failed:
        raise EpisodeFault(f"{plan.parent.name}: {trajectory.error}")
    return None if has_left else trajectory


def person_text(config: EpisodeConfig, line: str) -> str:
    """The turn that a person means by `line`."""
    try:
        return write_action(config.agent, config.tools, thought="", action=line)
    except ConfigError:  # the agent acts by tools alone
        return line


@contextmanager
def _open_policy(plan: ForkPlan) -> Iterator[_Actor]:
    pipeline, policy, parent_name = plan.pipeline, plan.policy, plan.parent.name
    assert policy is not None, "run_person lets a person go on"
    sampling = pipeline.rollout.sampling(temperature=plan.temperature)
    if isinstance(policy, Endpoint):
        check_endpoint_agent(pipeline)
        client = ChatClient(policy)

        def chat(replay: Replay, episode_id: str, limits: EpisodeLimits) -> Conversation:
            model = ReplayedChat(client, replay)
            return ChatConversation(
                episode_id, where=parent_name, limits=limits, client=model, sampling=sampling
            )

        yield _Actor(chat)
        return
    with local_model(pipeline, policy.folder).load(context_length=pipeline.rollout.context_length) as model:
        renderer = Renderer(model.tokenizer, model.processor)

        def sample(replay: Replay, episode_id: str, limits: EpisodeLimits) -> Conversation:
            return TokenConversation(
                episode_id,
                where=parent_name,
                limits=limits,
                sampler=ReplayedSampler(model.sampler, replay, renderer=renderer),
                renderer=renderer,
                sampling=sampling,
                context=pipeline.agent.context,
            )

        yield _Actor(sample, model.tokenizer)


async def _gather(plan: ForkPlan, actor: _Actor, callbacks: Callbacks, *, name: str) -> list[Trajectory]:
    item, rollout = plan.parent.trajectory.item, plan.pipeline.rollout
    config = _make_config(plan, actor.tokenizer)
    spec = next(spec for spec in environments(plan.pipeline) if spec.name == item.env)
    envs = EnvManager([spec], capacity=min(plan.samples, rollout.max_live_envs))

    def on_trajectory(trajectory: Trajectory) -> None:
        if callbacks.on_trajectory is not None:
            callbacks.on_trajectory(replace(trajectory, labels=plan.labels))

    group = GroupSpec(
        name=name,
        num_samples=plan.samples,
        max_attempts=1 if plan.policy is None else rollout.max_attempts,  # a person would have to act again
        callbacks=replace(callbacks, on_trajectory=on_trajectory),
    )

    async def run_attempt(attempt: Attempt) -> Trajectory:
        replay, index = Replay(plan.past), attempt.sample_index

        def on_opening(messages: Sequence[Message]) -> None:
            replay.check_opening(messages)
            if callbacks.on_opening is not None:
                callbacks.on_opening(item, index, messages)

        def on_turn(turns: Sequence[Turn]) -> None:
            replay.check_turns(turns)
            if callbacks.on_turn is not None:
                callbacks.on_turn(item, index, turns)

        async with envs.lease(item.env, fresh=True) as env:
            trajectory = await run_episode(
                env,
                item,
                sample_index=index,
                conversation=actor.converse(replay, attempt.episode_id, config.limits),
                config=config,
                on_opening=on_opening,
                on_turn=on_turn,
                edit_result=replay.edit,
            )
        return replay.finish(trajectory)

    try:
        (trajectories,) = await gather_groups([item], group, run_attempt=run_attempt)
    finally:
        await envs.close()
    return [replace(trajectory, labels=plan.labels) for trajectory in trajectories]


def _make_config(plan: ForkPlan, tokenizer: "PreTrainedTokenizerBase | None") -> EpisodeConfig:
    spec = next(spec for spec in environments(plan.pipeline) if spec.name == plan.parent.trajectory.item.env)
    config = make_episode_config(spec, plan.pipeline, tokenizer=tokenizer)
    limits = UNLIMITED if plan.policy is None else config.limits
    return replace(config, limits=replace(limits, max_turns=plan.max_turns))
