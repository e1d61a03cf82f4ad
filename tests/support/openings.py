"""What an episode begins with, and what the environment answers to a list of actions."""

from collections.abc import Sequence

from envs.registry import EnvSpec
from envs.types import Environment, Item, Observation, StepResult


async def read_opening(env: Environment, item: Item) -> str:
    """Begin `item`; its first observation without images."""
    return Observation.wrap(await env.reset(item)).text


async def play_actions(
    spec: EnvSpec, item: Item, actions: Sequence[str], *, stops_at_end: bool = False
) -> tuple[str, list[StepResult]]:
    """Returns the opening of `item` and the answers to `actions`; `stops_at_end`: to those before the end."""
    env = spec.make()
    opening, results = await read_opening(env, item), list[StepResult]()
    for action in actions:
        if stops_at_end and results and results[-1].terminated:
            break
        results.append(await env.step(action))
    await env.close()
    return opening, results
