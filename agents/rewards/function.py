"""`@reward` makes a function a reward. The names of its parameters say what it is given.

    @reward
    def exact(final_response: str, answer: str) -> float:
        return float(final_response == answer)

`types.read_result` says what it may return.
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypedDict, Unpack, overload

from agents.clients.rate_limit import ConcurrencyLimiter
from agents.rewards.types import ALWAYS, RewardInput, RewardResult, read_result
from agents.tools.functions import call_function, check_options, is_async, name_of
from envs.errors import ConfigError, EpisodeFault, RewardFailed, WingspanError, describe_with_place, suggest
from envs.requirements.detection import Requirement, require
from envs.runtime.time_limits import TooSlow, run_in_time
from envs.types import EnvCheck

TIMEOUT_S = 30.0
MAX_ATTEMPTS = 3
_THREAD_LIMITER = ConcurrencyLimiter(16)
"""Calls in threads at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReward:
    """A function as a reward. Calling the object calls the function itself."""

    name: str
    function: Callable[..., object]
    parameters: Mapping[str, bool]
    """Name → whether it is required."""
    timeout_s: float | None = TIMEOUT_S
    """The time limit of one call; None is no limit."""
    max_attempts: int = MAX_ATTEMPTS
    """The most calls, the first included."""
    needs: Sequence[Requirement] = ()
    check_env: EnvCheck | None = None

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The function's own value, unchecked."""
        return self.function(*args, **kwargs)

    def check(self, available: Collection[str]) -> None:
        """Check the needs; also raises `ConfigError` for data with a field that has one of the names in
        `ALWAYS`."""
        conflicts = sorted(set(ALWAYS).intersection(available))
        if conflicts:
            raise ConfigError(
                f"the data has a field {conflicts[0]!r}, which is the name of something every reward may ask "
                "for; rename the field"
            )
        self._require({*ALWAYS, *available})
        require(f"reward {self.name!r}", self.needs)

    @property
    def env_checks(self) -> dict[str, EnvCheck]:
        return {} if self.check_env is None else {self.name: self.check_env}

    async def score(self, reward_input: RewardInput) -> RewardResult:
        """Score the trajectory; also raises `ConfigError` for a parameter that this item does not fill, as
        `check` does."""
        trajectory = reward_input.trajectory
        where = trajectory.where
        if trajectory.has_failed:
            raise ValueError(f"{where}: a failed episode has no reward ({trajectory.error}); drop it")
        arguments = reward_input.arguments(self.parameters)
        self._require(arguments)
        cause: Exception | None = None
        reason = ""
        for _ in range(self.max_attempts):
            try:
                return read_result(await self._call(arguments), turns=len(trajectory.turns))
            except TooSlow as error:
                cause, reason = error, f"{error}; raise its timeout_s"
            except Exception as error:
                if isinstance(error, WingspanError) and not isinstance(error, EpisodeFault):
                    raise  # the user must fix it; another call would fail as well
                cause, reason = error, describe_with_place(error)
        raise RewardFailed(
            f"{where}: reward {self.name!r} failed at each of {self.max_attempts} calls, the last: {reason}"
        ) from cause

    async def _call(self, arguments: Mapping[str, object]) -> object:
        name, in_thread = f"reward {self.name!r}", not is_async(self.function)
        async with _THREAD_LIMITER if in_thread else nullcontext():
            work = call_function(partial(self.function, **arguments), in_thread=in_thread, name=name)
            return await run_in_time(work, timeout_s=self.timeout_s, name=name)

    def _require(self, available: Collection[str]) -> None:
        for name, is_required in self.parameters.items():
            if is_required and name not in available:
                hint = suggest(name, sorted(available))
                column_names = ", ".join(sorted({*ALWAYS, *available}))
                raise ConfigError(
                    f"reward {self.name!r} takes {name!r}, which nothing fills; {hint}add a column {name!r} "
                    "to the data or rename one, or, in a reward of your own, rename the parameter or give it "
                    f"a default; it may take: {column_names}"
                )


class RewardOptions(TypedDict, total=False):
    """The options of a reward."""

    name: str
    """The name; by default the function's."""
    timeout_s: float | None
    """The time limit of one call, in seconds; None is no limit."""
    max_attempts: int
    """The most calls, the first included, while they raise, are too slow or return no reward; by default
    3."""
    needs: Sequence[Requirement]
    """What must be installed."""
    check_env: EnvCheck | None
    """Called before any episode: raises `ConfigError` if the reward cannot judge the environment's."""


@overload
def reward(function: Callable[..., object], /) -> FunctionReward: ...
@overload
def reward(**options: Unpack[RewardOptions]) -> Callable[[Callable[..., object]], FunctionReward]: ...
def reward(function: Callable[..., object] | None = None, /, **options: Unpack[RewardOptions]) -> object:
    """Make a function, or an async function, a reward; bare or with options.

    The function returns a number, or a dict as `read_result` describes it; one that is not async runs in a
    thread. Raises `ConfigError` for an unknown or invalid option, or an invalid signature.
    """
    check_options(options, RewardOptions, decorator="reward")
    timeout_s, max_attempts = options.get("timeout_s"), options.get("max_attempts", MAX_ATTEMPTS)
    if timeout_s is not None and not timeout_s > 0:
        raise ConfigError(f"timeout_s={timeout_s} of a reward; give seconds above 0, or None")
    if max_attempts < 1:
        raise ConfigError(f"max_attempts={max_attempts} of a reward; give 1 or more")

    def decorate(function: Callable[..., object]) -> FunctionReward:
        name = options.get("name") or name_of(function)
        named_options: RewardOptions = {**options, "name": name}
        return FunctionReward(function=function, parameters=_parameters(function, name), **named_options)

    return decorate if function is None else decorate(function)


def _parameters(function: Callable[..., object], name: str) -> dict[str, bool]:
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = inspect.signature(function).parameters.values()
    for parameter in parameters:
        if parameter.kind not in by_name:
            raise ConfigError(
                f"reward {name!r} takes {parameter}, which has no name to be filled by; name each parameter, "
                "or take `fields` for all of the data"
            )
    return {parameter.name: parameter.default is inspect.Parameter.empty for parameter in parameters}
