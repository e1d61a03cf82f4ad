"""The actions of scripted experts."""

from agents.agent import FormatAgent
from agents.rollout.episode import EpisodeConfig
from agents.rollout.scripted import expert_script, run_script
from agents.types import EpisodeLimits
from envs.registry import EnvSpec
from envs.types import Item


async def actions_of(spec: EnvSpec, item: Item) -> list[str]:
    """The solution of `item` as texts; played on a fresh instance where it depends on observations."""
    solution = spec.solve(item)
    if all(isinstance(step.action, str) for step in solution):
        return [step.resolve("") for step in solution]
    limits = EpisodeLimits(
        max_turns=len(solution),
        max_tokens_per_turn=0,
        context_length=0,
        episode_timeout_s=120,
        step_timeout_s=60,
    )
    config = EpisodeConfig(agent=FormatAgent("raw"), limits=limits)
    env = spec.make()
    try:
        episode = await run_script(env, item, expert_script(solution, config=config), config=config)
        return [turn.action for turn in episode.turns]
    finally:
        await env.close()
