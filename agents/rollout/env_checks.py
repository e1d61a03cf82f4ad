"""What tools and rewards need of an environment, checked before any episode."""

from collections.abc import Callable

from agents.rewards import Reward
from agents.tools.toolbox import Toolbox
from envs.errors import ConfigError, EnvCrashed, boundary
from envs.registry import EnvSpec
from envs.remote.servers import RemoteEnv
from envs.runtime.concurrency import run_blocking
from envs.runtime.hosted import Host
from envs.runtime.manager import make_host


def check_env(
    spec: EnvSpec,
    *,
    tools: Toolbox | None,
    reward: Reward | None,
    is_served: bool = False,
    remote_host: Callable[[EnvSpec], Host] | None = None,
) -> None:
    """Raise `ConfigError`, naming the tool or the reward, if one cannot work on an environment of `spec`.

    One environment is made, and closed again, if a check asks for one; none where episodes have it in another
    process or on a server. `is_served`: they have, though `spec` makes them here; `remote_host` is that of
    `EnvManager`. Raises `EnvCrashed` if none can be made.
    """
    tool_checks = {} if tools is None else tools.env_checks
    reward_checks = {} if reward is None else reward.env_checks
    checks = {
        **{f"tool {name!r}": check for name, check in tool_checks.items()},
        **{f"reward {name!r}": check for name, check in reward_checks.items()},
    }
    if not checks:
        return
    is_elsewhere = is_served or make_host(spec, remote_host=remote_host) is not None
    with boundary(EnvCrashed, f"environment {spec.name!r}"):
        env = None if is_elsewhere else spec.make()
    try:
        for subject, check in checks.items():
            try:
                check(None if isinstance(env, RemoteEnv) else env)
            except ConfigError as error:
                raise ConfigError(f"{subject}: {error}") from None
    finally:
        if env is not None:
            with boundary(EnvCrashed, f"environment {spec.name!r}: close"):
                run_blocking(env.close())
