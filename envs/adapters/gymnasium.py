"""Gymnasium: any registered environment whose spaces have a text form (`envs/adapters/gymnasium_text.py`).

Item `gymnasium:<id>_<N>` is the environment reset with seed `N`. Options are arguments of its constructor
(`gymnasium:FrozenLake-v1?is_slippery=false`), and an id may name the module that registers it
(`gymnasium:my_module:MyEnv-v0`). An observation that is not a text is shown as the environment's `ansi`
rendering if it has one, else as numbers. Rewards, `terminated` and `truncated` are the environment's.

Gymnasium does not define success. If the last step's info has `is_success` or `success`, that counts.
Otherwise the option `success` selects a rule: `terminated` (the end was reached), `last_reward` (the episode
terminated with a reward above 0) or `threshold` (the return is at least the registered reward threshold). The
default is `threshold` if there is one, else `last_reward`; the package's toy texts have theirs in `TOYS`.

Training and test have different seeds, but an environment may make the same problem of them: FrozenLake-v1
has one map.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import gymnasium
from gymnasium import error as errors

from envs.adapters.arguments import parse_name, unknown_target
from envs.adapters.gymnasium_text import (
    ActionText,
    NoTextForm,
    colours_to_words,
    make_action_text,
    make_observation_text,
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
You act in the environment {id}. {hint}Every round you are told what you see, and you take \
one action. Actions: {actions}."""


@dataclass(frozen=True, slots=True)
class Toy:
    """Facts about a toy text from gymnasium's documentation, which its spaces do not have."""

    actions: tuple[str, ...]
    success: str
    hint: str
    has_states: bool = True
    """Whether its number `s` is the whole state. With `fickle_passenger`, Taxi's is not."""


TOYS = {
    "BlackjackEnv": Toy(
        ("stick", "hit"),
        "last_reward",
        "You are told (your sum, the dealer's open card, 1 if you have a usable ace). ",
        has_states=False,
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
    """How one environment is constructed and converted to text."""

    make: Callable[[], gymnasium.Env]
    render: Callable[[gymnasium.Env, object], str]
    """(environment, its observation) → text."""
    actions: ActionText
    is_success: Callable[[float, float, bool], bool]
    """(last reward, return, terminated) at the end, if the info does not say."""
    instructions: str
    has_states: bool


class GymnasiumEnv:
    """One live environment, made with the first `reset`."""

    def __init__(self, argument: str) -> None:
        self._setup = _setup(argument)
        self._env: gymnasium.Env | None = None
        self._has_ended = True
        self._return = 0.0

    async def reset(self, item: Item) -> str:
        """Start `item`; returns the first observation."""
        if self._env is None:
            self._env = self._setup.make()
        observation, _ = self._env.reset(seed=item.seed)
        self._has_ended, self._return = False, 0.0
        return self._setup.render(self._env, observation)

    async def step(self, action: str) -> StepResult:
        """Take an action; a text that is not an action changes nothing, and the observation says so."""
        if self._env is None or self._has_ended:
            raise RuntimeError("step before reset")
        parsed_action = self._setup.actions.read(action.strip())
        if parsed_action is None:
            return StepResult(
                f"{action.strip()[:60]!r} is no action. Actions: {self._setup.actions.description}."
            )
        observation, reward, terminated, truncated, info = self._env.step(parsed_action)
        reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        self._return += reward
        self._has_ended = terminated or truncated
        success = info.get("is_success", info.get("success"))
        if success is None:
            success = self._setup.is_success(reward, self._return, terminated)
        return StepResult(
            self._setup.render(self._env, observation),
            reward,
            terminated=terminated,
            truncated=truncated and not terminated,
            success=self._has_ended and bool(success),
        )

    def state_key(self) -> str | None:
        """The number of a toy text's state; None for other environments, which hide theirs."""
        if self._env is None or self._has_ended or not self._setup.has_states:
            return None
        return str(int(self._env.unwrapped.s))

    async def close(self) -> None:
        """Close the environment."""
        env, self._env, self._has_ended = self._env, None, True
        if env is not None:
            env.close()


def spec(argument: str) -> EnvSpec:
    """The environment `gymnasium:<argument>`; constructs one to read its spaces."""
    name = f"{FAMILY}:{argument}"
    return EnvSpec(
        name=name,
        make=partial(GymnasiumEnv, argument),
        split=partial(seeded_split, name),
        expert=no_expert,
        instructions=_setup(argument).instructions,
        packages=PACKAGES,
        source=SOURCE,
        has_states=_setup(argument).has_states,
    )


@cache
def _setup(argument: str) -> Setup:
    target, options = parse_name(f"{FAMILY}:{argument}")
    if "render_mode" in options:
        raise ConfigError(
            f"env {f'{FAMILY}:{argument}'!r}: option 'render_mode' cannot be set; observations are "
            "text, the ansi rendering if there is one"
        )
    has_rule = "success" in options
    rule = options.pop("success", None)
    probe = _make(target, options)
    try:
        if "ansi" in probe.metadata.get("render_modes", ()):
            options["render_mode"] = "ansi"
        render = _renderer(probe, has_ansi="render_mode" in options)
        kind = type(probe.unwrapped).__name__
        has_no_map = options.get("map_name", "") is None and options.get("desc") is None
        if kind == "FrozenLakeEnv" and has_no_map:
            raise ConfigError(
                f"env {f'{FAMILY}:{argument}'!r}: without a map, each instance makes another one, whatever "
                "the item's seed; give map_name or desc"
            )
        toy = TOYS.get(kind)
        actions = make_action_text(probe.action_space, names=toy.actions if toy else _names(probe.unwrapped))
        threshold = probe.spec.reward_threshold
    except NoTextForm as error:
        raise ConfigError(f"env {f'{FAMILY}:{target}'!r}: its {error} has no text form") from None
    finally:
        probe.close()
    if not has_rule:
        rule = toy.success if toy else "last_reward" if threshold is None else "threshold"
    return Setup(
        make=partial(_make, target, options),
        render=render,
        actions=actions,
        is_success=_success_rule(rule, threshold, target=target),
        instructions=INSTRUCTIONS.format(
            id=target, hint=toy.hint if toy else "", actions=actions.description
        ),
        has_states=toy is not None and toy.has_states and not options.get("fickle_passenger"),
    )


def _make(target: str, options: Mapping[str, object]) -> gymnasium.Env:
    try:
        return gymnasium.make(target, disable_env_checker=True, **options)
    except errors.UnregisteredEnv:
        raise unknown_target(target, family=FAMILY, targets=gymnasium.registry) from None
    except (errors.DependencyNotInstalled, ImportError) as error:
        raise MissingDependency(
            f"env {f'{FAMILY}:{target}'!r} is missing a dependency: {to_line(error, limit=300)}"
        ) from None
    except (errors.Error, TypeError) as error:
        raise ConfigError(
            f"env {f'{FAMILY}:{target}'!r} cannot be constructed: {to_line(error, limit=300)}"
        ) from None


def _renderer(env: gymnasium.Env, *, has_ansi: bool) -> Callable[[gymnasium.Env, object], str]:
    if has_ansi and not isinstance(env.observation_space, gymnasium.spaces.Text):
        return lambda live, _: colours_to_words(str(live.render())).strip("\n")
    to_text = make_observation_text(env.observation_space)
    return lambda _, observation: to_text(observation)


def _names(env: gymnasium.Env) -> Sequence[str]:
    """Names of a choice, from `get_action_meanings()` as in the Atari package, or from an enumeration
    `actions`."""
    if inspect.ismethod(getattr(env, "get_action_meanings", None)):
        return [str(name) for name in env.get_action_meanings()]
    members = getattr(getattr(env, "actions", None), "__members__", None)
    return list(members) if members else []


def _success_rule(
    name: object, threshold: float | None, *, target: str
) -> Callable[[float, float, bool], bool]:
    match name:
        case "terminated":
            return lambda reward, total, terminated: terminated
        case "last_reward":
            return lambda reward, total, terminated: terminated and reward > 0
        case "threshold" if threshold is not None:
            minimum = threshold
            return lambda reward, total, terminated: total >= minimum
    raise ConfigError(
        f"env {f'{FAMILY}:{target}'!r}: success={name!r} is unknown; it is one of terminated, last_reward"
        f"{', threshold' if threshold is not None else ''}"
    )
