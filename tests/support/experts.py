"""The actions of scripted experts."""

from envs.registry import EnvSpec
from envs.types import Item, Observation


async def actions_of(spec: EnvSpec, item: Item) -> list[str]:
    """The solution of `item` as texts; played on a fresh instance where it depends on observations."""
    solution = spec.solve(item)
    if all(isinstance(step.action, str) for step in solution):
        return [step.resolve("") for step in solution]
    env = spec.make()
    try:
        observation, actions = Observation.wrap(await env.reset(item)).text, list[str]()
        for step in solution:
            actions.append(step.resolve(observation))
            observation = (await env.step(actions[-1])).observation
        return actions
    finally:
        await env.close()
