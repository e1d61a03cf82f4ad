"""What tools and rewards need of an environment, checked before any episode."""

from agents.rewards import Reward
from agents.tools.toolbox import Toolbox
from envs.base import Environment
from envs.errors import EnvCrashed, boundary
from envs.registry import EnvSpec
from envs.remote.servers import RemoteEnv
from envs.runtime.concurrency import run_blocking


def check_env(
    spec: EnvSpec, *, tools: Toolbox | None, reward: Reward | None, is_served: bool = False
) -> None:
    """Raise `ConfigError`, naming the tool or the reward, if one cannot work on an environment of `spec`.

    One environment is made, and closed again, if a check asks for one; none where environments are on a
    server. `is_served`: they are, though `spec` makes them here. Raises `EnvCrashed` if none can be made.
    """
    made: list[Environment] = []

    def make() -> Environment | None:
        if is_served:
            return None
        if not made:
            with boundary(EnvCrashed, f"environment {spec.name!r}"):
                made.append(spec.make())
        return None if isinstance(made[0], RemoteEnv) else made[0]

    try:
        if tools is not None:
            tools.check_env(make)
        if reward is not None:
            reward.check_env(make)
    finally:
        for env in made:
            with boundary(EnvCrashed, f"environment {spec.name!r}: close"):
                run_blocking(env.close())
