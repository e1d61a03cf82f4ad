"""Gymnasium's own environments in words, against gymnasium itself."""

from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from envs.adapters.gymnasium_text import NoTextForm, colours_to_words, make_action_text, make_observation_text
from envs.adapters.seeds import seeded_item
from envs.errors import ConfigError, MissingDependency
from envs.registry import EnvSpec, get_env
from envs.types import StepResult, read_state_key
from tests.support.openings import play_actions

SEEDS = range(5)


async def play(spec: EnvSpec, actions: list[str], *, seed: int = 0) -> tuple[str, list[StepResult]]:
    return await play_actions(spec, seeded_item(spec.name, seed), actions, stops_at_end=True)


def shortest(table: Any, start: int) -> list[int]:
    """Actions from `start` to a rewarded end, by the environment's own table of transitions."""
    ways = {start: list[int]()}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        for action, ((_, after, reward, is_end),) in table[state].items():
            if is_end and reward > 0:
                return [*ways[state], action]
            if not is_end and after not in ways:
                ways[after] = [*ways[state], action]
                queue.append(after)
    raise AssertionError("no way leads to a reward")


@pytest.mark.parametrize(
    ("name", "maker", "names"),
    [
        ("gymnasium:FrozenLake-v1?is_slippery=false&map_name=8x8", {"map_name": "8x8"}, "left down right up"),
        ("gymnasium:Taxi-v4", {}, "south north east west pickup dropoff"),
    ],
)
async def test_the_shortest_way_is_a_success_with_the_packages_own_rewards(
    name: str, maker: dict[str, Any], names: str
) -> None:
    spec = get_env(name)
    target = name.partition(":")[2].partition("?")[0]
    env = gymnasium.make(target, **maker, **({"is_slippery": False} if maker else {}))
    for seed in SEEDS:
        state, _ = env.reset(seed=seed)
        way = shortest(env.unwrapped.P, int(state))
        rewards = [float(env.step(action)[1]) for action in way]
        _, results = await play(spec, [names.split()[action] for action in way], seed=seed)
        assert [result.reward for result in results] == rewards
        assert [result.success for result in results] == [False] * (len(way) - 1) + [True]
        assert results[-1].terminated


async def test_blackjack_is_seen_in_numbers_and_only_a_win_is_a_success() -> None:
    spec = get_env("gymnasium:Blackjack-v1")
    env = gymnasium.make("Blackjack-v1")
    outcomes = set()
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        _, reward, is_terminated, _, _ = env.step(0)
        opening, (result,) = await play(spec, ["stick"], seed=seed)
        assert opening == str(tuple(map(int, observation)))
        assert (result.reward, result.terminated) == (float(reward), is_terminated)
        assert result.success == (float(reward) > 0)
        outcomes.add(float(reward))
    assert outcomes >= {-1.0, 1.0}


async def test_a_walk_over_the_cliff_and_a_fallen_pole() -> None:
    _, path = await play(get_env("gymnasium:CliffWalking-v1"), ["up", *["right"] * 11, "down"])
    assert [result.success for result in path] == [False] * 12 + [True]
    assert sum(result.reward for result in path) == -13
    # Every step of CartPole is rewarded, the last one too: success is its registered threshold.
    pole = get_env("gymnasium:CartPole-v1")
    _, result = await play(pole, ["1"] * 20)
    assert (result[-1].terminated, result[-1].reward, result[-1].success) == (True, 1.0, False)


async def test_what_is_no_action_is_answered_and_changes_nothing() -> None:
    spec = get_env("gymnasium:FrozenLake-v1?is_slippery=false")
    _, results = await play(spec, ["fly", "", "7", "DOWN", "1"])
    assert results[0].observation == "'fly' is no action. Actions: left, down, right, up."
    assert [result.observation.startswith("  (Down)") for result in results] == [False] * 3 + [True] * 2
    assert "where you are is <red>" in spec.instructions
    assert results[4].observation == "  (Down)\nSFFF\nFHFH\n<red>F</red>FFH\nHFFG"


async def test_toy_texts_have_states_and_others_hide_theirs() -> None:
    async def keys(name: str, *actions: str) -> list[str | None]:
        spec = get_env(name)
        env = spec.make()
        await env.reset(seeded_item(spec.name, 0))
        keys = [read_state_key(env)]
        for action in actions:
            await env.step(action)
            keys.append(read_state_key(env))
        assert spec.has_states == (keys[0] is not None)
        return keys

    lake = "gymnasium:FrozenLake-v1?is_slippery=false"
    assert await keys(lake, "right", "fly", "left", "down", "right") == ["0", "1", "1", "0", "4", None]
    assert await keys("gymnasium:CartPole-v1", "1") == [None, None]
    assert await keys("gymnasium:Blackjack-v1") == [None]
    # It remembers whether the passenger has changed the destination, which may happen once.
    assert await keys("gymnasium:Taxi-v4?fickle_passenger=true", "north") == [None, None]
    custom = 'gymnasium:FrozenLake-v1?map_name=null&desc=["SF","FG"]&is_slippery=false'
    assert await keys(custom, "right", "down") == ["0", "1", None]


class Spelling(gymnasium.Env[str, str]):
    """Text in, text out: a user's own environment."""

    observation_space = spaces.Text(100)
    action_space = spaces.Text(10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.word = str(self.np_random.choice(["one", "two", "three"]))
        return f"Spell {self.word} backwards", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        right = action == self.word[::-1]
        return "done", 0.25, True, False, {"is_success": right}


class ImageEnv(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(0, 255, (96, 96, 3), np.uint8)
    action_space = spaces.Discrete(2)


class Graph(gymnasium.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.Graph(spaces.Discrete(2), None)


@pytest.fixture(autouse=True)
def own_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    for env in (Spelling, ImageEnv, Graph):
        gymnasium.register(f"Test{env.__name__}-v0", entry_point=env)


async def test_a_users_own_environment_of_texts_says_itself_what_success_is() -> None:
    spec = get_env("gymnasium:TestSpelling-v0")
    opening, _ = await play(spec, [], seed=3)
    word = opening.split()[1]
    assert (await play(spec, [word[::-1]], seed=3))[1] == [
        StepResult("done", 0.25, terminated=True, success=True)
    ]
    assert (await play(spec, [word], seed=3))[1] == [StepResult("done", 0.25, terminated=True)]


def test_what_cannot_be_played_is_refused_by_name() -> None:
    for name, error, message in [
        ("TestImageEnv-v0", ConfigError, "observation space Box.* has no text form"),
        ("TestGraph-v0", ConfigError, "action space Graph.* has no text form"),
        ("FrozenLak-v1", ConfigError, "did you mean 'gymnasium:FrozenLake-v1'"),
        ("FrozenLake-v1?slippery=false", ConfigError, "unexpected keyword argument 'slippery'"),
        ("FrozenLake-v1?is_slippery", ConfigError, "option 'is_slippery' is not key=value"),
        ("FrozenLake-v1?map_name=null", ConfigError, "whatever the item's seed; give map_name or desc"),
        ("FrozenLake-v1?success=luck", ConfigError, "success='luck' is unknown"),
        ("FrozenLake-v1?success=", ConfigError, "success='' is unknown"),
        ("FrozenLake-v1?success=false", ConfigError, "success=False is unknown"),
        ("FrozenLake-v1?render_mode=human", ConfigError, "option 'render_mode' cannot be set"),
        ("FrozenLake-v1?is_slippery=true&is_slippery=false", ConfigError, "'is_slippery' is given twice"),
        ("no_such_module:X-v0", MissingDependency, "no_such_module"),
    ]:
        with pytest.raises(error, match=message):
            get_env(f"gymnasium:{name}")


def test_spaces_as_text() -> None:
    observation = spaces.Dict(
        {"at": spaces.Box(-1, 1, (2,)), "carries": spaces.MultiBinary(2), "told": spaces.Text(9)}
    )
    value = {"at": np.array([0.5, -0.123456]), "carries": np.array([0, 1]), "told": "hi"}
    assert make_observation_text(observation)(value) == "at: [0.5, -0.1235]\ncarries: [0, 1]\ntold: hi"
    box = make_action_text(spaces.Box(-1, 1, (2,), np.float32))
    assert box.read("0.5, -1").tolist() == [0.5, -1.0]
    assert [box.read(message) for message in ("0.5", "2 0", "nan 0", "left")] == [None] * 4
    actions = make_action_text(spaces.MultiDiscrete([2, 3]))
    assert actions.read("(1, 2)").tolist() == [1, 2]
    assert [actions.read(message) for message in ("1 3", "0.5 0")] == [None, None]
    bits = make_action_text(spaces.MultiBinary(2))
    assert bits.read("1 0").tolist() == [1, 0]
    assert [bits.read(text) for text in ("256 257", "2 0", "-1 0", "1e30 0")] == [None] * 4
    levels = make_action_text(spaces.Box(0, 255, (1,), np.uint8))
    assert levels.read("255").tolist() == [255]
    assert [levels.read(text) for text in ("256", "-1", "0.5")] == [None] * 3
    assert make_action_text(spaces.Discrete(2, start=3)).read("4") == 4
    with pytest.raises(NoTextForm):
        make_observation_text(spaces.Sequence(spaces.Discrete(2)))
    assert colours_to_words("a\x1b[35m\x1b[43mB\x1b[0m\x1b[0mc") == "a<magenta><yellow>B</yellow></magenta>c"
