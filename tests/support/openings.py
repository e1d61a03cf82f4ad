"""The text that an episode begins with."""

from envs.types import Environment, Item, Observation


async def read_opening(env: Environment, item: Item) -> str:
    """Begin `item`; its first observation without images."""
    return Observation.wrap(await env.reset(item)).text
