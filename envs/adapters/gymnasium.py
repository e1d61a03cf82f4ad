"""Gymnasium: any registered environment whose spaces have a text form (`envs/adapters/gymnasium_text.py`).

Item `gymnasium:<id>_<N>` is the environment reset with seed `N`; options are arguments of its maker
(`gymnasium:FrozenLake-v1?is_slippery=false`), and an id may name the module that registers it
(`gymnasium:my_module:MyEnv-v0`). An observation that is no text by itself is shown as the environment's
`ansi` rendering where it has one, else as its numbers. Rewards, `terminated` and `truncated` are its own.

Gymnasium knows no success. Where the last step's info says `is_success` or `success`, that is it. Else the
option `success` says what counts: `terminated` (the end was reached), `last_reward` (the episode terminated
with a reward above 0) or `threshold` (the return is at least the registered reward threshold); without the
option it is `threshold` where there is one, else `last_reward`. For the package's toy texts see `TOYS`.

The seeds of training and test differ; what an environment makes of them may not: FrozenLake-v1 has one map.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import gymnasium
from gymnasium import error as errors

from envs.adapters.arguments import parse, unknown
from envs.adapters.gymnasium_text import (
    ActionText,
    NoTextForm,
    action_text,
    observation_text,
    without_colours,
)
from envs.adapters.seeds import seeded_split
from envs.errors import ConfigError, MissingDependency, to_line
from envs.registry import EnvSpec, no_expert
from envs.types import Item, StepResult

FAMILY = "gymnasium"
EXAMPLE = "gymnasium:FrozenLake-v1?is_slippery=false"
SOURCE = "the gymnasium package, or the one that registers it: episodes made from seeds"
PACKAGES = ("gymnasium",)

INSTRUCTIONS = """\
You act in the environment {id}. {hint}Every round you are told what you see, and you answer with your \
thought and one action. Actions: {actions}."""


@dataclass(frozen=True, slots=True)
class Toy:
    """What gymnasium's documentation says of one of its toy texts, and its spaces do not."""

    actions: tuple[str, ...]
    success: str
    hint: str


TOYS = {
    "BlackjackEnv": Toy(
        ("stick", "hit"),
        "last_reward",
        "You are told (your sum, the dealer's open card, 1 if you have a usable ace). ",
    ),
    "CliffWalkingEnv": Toy(
        ("up", "right", "down", "left"),
        "terminated",
        "x is where you are, C the cliff, which takes you back to the start, T the goal. ",
    ),
    "FrozenLakeEnv": Toy(
        ("left", "down", "right", "up"),
        "last_reward",
        "S is the start, F ice, H a hole, G the goal; where you are is <red>. ",
    ),
    "TaxiEnv": Toy(
        ("south", "north", "east", "west", "pickup", "dropoff"),
        "last_reward",
        "Bring the passenger, who waits at the <blue> place, to the <magenta> one. The taxi is <yellow>, and "
        "<green> with the passenger inside; you can drive through : but not through |. ",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one environment is made and put into words."""

    make: Callable[[], Any]
    see: Callable[[Any, Any], str]
    """(environment, its observation) → what is told."""
    actions: ActionText
    succeeded: Callable[[float, float, bool], bool]
    """(last reward, return, terminated) at the end, where the info does not say."""
    instructions: str


class GymnasiumEnv:
    """One live environment, made with the first `reset`."""

    def __init__(self, argument: str) -> None:
        self._setup = _setup(argument)
        self._env: Any = None
        self._over = True
        self._return = 0.0

    async def reset(self, item: Item) -> str:
        """Start `item`; returns what is seen."""
        if self._env is None:
            self._env = self._setup.make()
        observation, _ = self._env.reset(seed=item.seed)
        self._over, self._return = False, 0.0
        return self._setup.see(self._env, observation)

    async def step(self, action: str) -> StepResult:
        """Do what is said; what is no action is answered and changes nothing."""
        if self._over:
            raise RuntimeError("step before reset")
        chosen = self._setup.actions.read(action.strip())
        if chosen is None:
            return StepResult(
                f"{action.strip()[:60]!r} is no action. Actions: {self._setup.actions.described}."
            )
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        self._return += reward
        self._over = terminated or truncated
        return StepResult(
            self._setup.see(self._env, observation),
            reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            success=self._over and self._is_success(reward, terminated, info),
        )

    async def close(self) -> None:
        """Close the environment."""
        env, self._env, self._over = self._env, None, True
        if env is not None:
            env.close()

    def _is_success(self, reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
        told = info.get("is_success", info.get("success"))
        return bool(self._setup.succeeded(reward, self._return, terminated) if told is None else told)


def spec(argument: str) -> EnvSpec:
    """The environment `gymnasium:<argument>`; makes one to see its spaces."""
    name = f"{FAMILY}:{argument}"
    return EnvSpec(
        name=name,
        make=partial(GymnasiumEnv, argument),
        split=partial(seeded_split, name),
        expert=no_expert,
        instructions=_setup(argument).instructions,
        packages=PACKAGES,
        source=SOURCE,
    )


@cache
def _setup(argument: str) -> Setup:
    target, options = parse(argument, family=FAMILY)
    rule = options.pop("success", None)
    probe = _make(target, options)
    try:
        if "ansi" in probe.metadata.get("render_modes", ()):
            options["render_mode"] = "ansi"
        see = _view(probe, rendered="render_mode" in options)
        toy = TOYS.get(type(probe.unwrapped).__name__)
        actions = action_text(probe.action_space, names=toy.actions if toy else _names(probe.unwrapped))
        threshold = probe.spec.reward_threshold
    except NoTextForm as error:
        raise ConfigError(f"env {f'{FAMILY}:{target}'!r}: its {error} has no text form") from None
    finally:
        probe.close()
    return Setup(
        make=partial(_make, target, options),
        see=see,
        actions=actions,
        succeeded=_rule(rule or (toy.success if toy else None), threshold, target=target),
        instructions=INSTRUCTIONS.format(id=target, hint=toy.hint if toy else "", actions=actions.described),
    )


def _make(target: str, options: Mapping[str, Any]) -> Any:
    try:
        return gymnasium.make(target, disable_env_checker=True, **options)
    except errors.UnregisteredEnv:
        raise unknown(target, family=FAMILY, known=gymnasium.registry) from None
    except (errors.DependencyNotInstalled, ImportError) as error:
        raise MissingDependency(
            f"env {f'{FAMILY}:{target}'!r} needs more: {to_line(error, limit=300)}"
        ) from None
    except (errors.Error, TypeError) as error:
        raise ConfigError(
            f"env {f'{FAMILY}:{target}'!r} cannot be made: {to_line(error, limit=300)}"
        ) from None


def _view(env: Any, *, rendered: bool) -> Callable[[Any, Any], str]:
    if rendered and not isinstance(env.observation_space, gymnasium.spaces.Text):
        return lambda live, _: without_colours(str(live.render())).strip("\n")
    tell = observation_text(env.observation_space)
    return lambda _, observation: tell(observation)


def _names(env: Any) -> Sequence[str]:
    """Names of a choice: `get_action_meanings()` as in the Atari package, or an enumeration `actions`."""
    if inspect.ismethod(getattr(env, "get_action_meanings", None)):
        return [str(name) for name in env.get_action_meanings()]
    members = getattr(getattr(env, "actions", None), "__members__", None)
    return list(members) if members else []


def _rule(name: str | None, threshold: float | None, *, target: str) -> Callable[[float, float, bool], bool]:
    match name or ("last_reward" if threshold is None else "threshold"):
        case "terminated":
            return lambda reward, total, terminated: terminated
        case "last_reward":
            return lambda reward, total, terminated: terminated and reward > 0
        case "threshold" if threshold is not None:
            least = threshold
            return lambda reward, total, terminated: total >= least
    raise ConfigError(
        f"env {f'{FAMILY}:{target}'!r}: success={name!r} is none of terminated, last_reward"
        f"{', threshold' if threshold is not None else ''}"
    )
