"""One episode on the toy, with everything real but its model."""

from functools import partial
from typing import TYPE_CHECKING

from agents.agent import Agent
from agents.prompting.renderer import Renderer
from agents.rewards import Reward
from agents.rollout.conversation import ContextPolicy, TokenConversation
from agents.rollout.episode import EpisodeConfig, run_episode
from agents.samplers.sampler import Sampler
from agents.tools.toolbox import Toolbox
from agents.types import EpisodeLimits, SamplingParams, Trajectory
from envs.types import Environment, Item
from tests.support.toy import ToyEnv, toy_item, toy_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


async def play_toy(
    sampler: Sampler,
    *,
    agent: Agent,
    limits: EpisodeLimits,
    tools: Toolbox | None = None,
    reward: Reward | None = None,
    context: ContextPolicy | None = None,
    env: Environment | None = None,
    item: Item | None = None,
    tokenizer: "PreTrainedTokenizerBase | None" = None,
    sampling: SamplingParams | None = None,
) -> Trajectory:
    """`item`, else the toy's first, on `env`, else a new toy."""
    item = item or toy_item()
    start_conversation = partial(
        TokenConversation,
        sampler=sampler,
        renderer=Renderer(tokenizer or toy_tokenizer()),
        sampling=sampling or SamplingParams(max_tokens=1),
        context=context or ContextPolicy(),
    )
    conversation = start_conversation("e", where=item.item_id, limits=limits)
    config = EpisodeConfig(agent=agent, limits=limits, tools=tools, reward=reward)
    return await run_episode(env or ToyEnv(), item, sample_index=0, conversation=conversation, config=config)
