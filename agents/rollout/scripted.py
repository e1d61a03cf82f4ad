"""Scripted models, for experts and for a person at the keyboard, that run through the usual episode loop.

With a renderer, the turns of a script are tokens that can be trained on; without one, they are texts.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from agents.agent import Agent, FormatAgent, Opening
from agents.agent_results import open_conversation, write_turn
from agents.formats.calls import ParsedTurn, ToolCall
from agents.prompting.renderer import Renderer, images_of
from agents.rollout.conversation import (
    ContextPolicy,
    Continuation,
    Conversation,
    ModelTurn,
    TokenConversation,
)
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.rollout.group import Callbacks
from agents.samplers.sampler import ScriptedSampler
from agents.tools.episode import ACT
from agents.tools.toolbox import Toolbox
from agents.types import UNLIMITED, Completion, FinishReason, SamplingParams, Trajectory, Turn
from envs.errors import SamplerFailed
from envs.registry import ExpertStep
from envs.types import Environment, Image, Item, Message

ReadLine = Callable[[], Awaitable[str | None]]
"""Returns the next line that a person types; None leaves the episode."""
ScriptLine = Callable[[str], str]
"""Maps an observation to the text of the turn. Raises `LookupError` if it finds nothing to act on."""


async def run_script(
    env: Environment,
    item: Item,
    script: Iterable[ScriptLine],
    *,
    config: EpisodeConfig,
    renderer: Renderer | None = None,
    context: ContextPolicy | None = None,
) -> Trajectory:
    """Run `item` with a model that writes the lines of `script`, one in each turn.

    Raises `SamplerFailed` if the script ends before the episode or finds nothing to act on, and the errors
    of `run_episode`.
    """
    lines = iter(script)
    observation = ""

    def keep_opening(messages: Sequence[Message]) -> None:
        nonlocal observation
        head = open_conversation(config.agent, item, "").messages[-1].content
        observation = messages[-1].content.removeprefix(head)

    def keep_observation(turns: Sequence[Turn]) -> None:
        nonlocal observation
        observation = turns[-1].observation

    def answer(episode_id: str, turn: int) -> str:
        try:
            return next(lines)(observation)
        except (StopIteration, LookupError) as error:
            why = str(error) or "it has ended"
            raise SamplerFailed(f"{item.item_id}: the script has no turn {turn + 1}: {why}") from None

    async def answer_text(turn: int) -> str:
        return answer("", turn)

    conversation: Conversation = TextConversation(answer_text)
    if renderer is not None:
        conversation = TokenConversation(
            item.item_id,
            where=item.item_id,
            limits=config.limits,
            sampler=ScriptedSampler(answer, encode=renderer.encode),
            renderer=renderer,
            sampling=SamplingParams(max_tokens=1),
            context=context,
        )
    return await run_episode(
        env,
        item,
        sample_index=0,
        conversation=conversation,
        config=config,
        on_opening=keep_opening,
        on_turn=keep_observation,
    )


async def run_console(
    env: Environment, item: Item, read_line: ReadLine, callbacks: Callbacks
) -> Trajectory | None:
    """Run `item` with the actions that a person types; None if they leave before the end of the episode.

    Raises as `run_episode`.
    """
    has_left = False

    async def answer(turn: int) -> str | None:
        nonlocal has_left
        line = await read_line()
        has_left = line is None
        return line

    trajectory = await run_episode(
        env,
        item,
        sample_index=0,
        conversation=TextConversation(answer),
        config=EpisodeConfig(agent=FormatAgent("raw"), limits=UNLIMITED),
        on_opening=callbacks.on_opening and partial(callbacks.on_opening, item, 0),
        on_turn=callbacks.on_turn and partial(callbacks.on_turn, item, 0),
    )
    return None if has_left else trajectory


def expert_script(steps: Iterable[ExpertStep], *, config: EpisodeConfig) -> Iterator[ScriptLine]:
    """The expert's turns in the agent's format."""

    def write(observation: str, *, step: ExpertStep) -> str:
        return write_action(
            config.agent, config.tools, thought=step.thought, action=step.resolve(observation)
        )

    return (partial(write, step=step) for step in steps)


def write_action(agent: Agent, tools: Toolbox | None, *, thought: str, action: str) -> str:
    """A turn that acts in the environment: by the tool `act` if there is one, else by the action alone.

    Raises `ConfigError` if the agent cannot express it.
    """
    if tools is not None and ACT in tools.tools:
        return write_turn(agent, ParsedTurn(thought=thought, calls=(ToolCall(ACT, {"action": action}),)))
    return write_turn(agent, ParsedTurn(thought=thought, action=action))


@dataclass
class TextConversation:
    """A `Conversation` without tokens, whose turns are the texts of `answer`."""

    answer: Callable[[int], Awaitable[str | None]]
    """Maps a turn's number, from 0, to its text; None ends the episode."""
    prompt_ids: tuple[int, ...] = field(default=(), init=False)
    prompt_images: tuple[Image, ...] = field(default=(), init=False)
    _turn: int = field(default=0, init=False)

    def open(self, opening: Opening) -> bool:
        return True

    async def generate(self) -> ModelTurn | None:
        text = await self.answer(self._turn)
        self._turn += 1
        if text is None:
            return None
        completion = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.STOP, policy_version=0)
        return ModelTurn(text=text, completion=completion)

    async def add_reply(self, messages: Sequence[Message], *, turns_left: int) -> Continuation:
        return Continuation(has_room=True, images=tuple(images_of(messages)))

    def restart(self, summary: str, images: Sequence[Image]) -> bool:
        return True
