"""textarena's own single-player games, played to their end; and episodes side by side."""

import asyncio
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from envs.adapters.seeds import EpisodeRandom, seeded_item
from envs.adapters.textarena import SINGLE_PLAYER_GAMES
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.types import StepResult
from tests.support.openings import play_actions, read_opening

ROOT = Path(__file__).parents[2]
RANDOM_DRAWS = ("textarena:Blackjack-v0", "textarena:2048-v0")
"""Games that draw by the global `random` while they are played."""


def hanoi(disks: int, start: str, end: str, spare: str) -> Iterator[str]:
    if disks:
        yield from hanoi(disks - 1, start, spare, end)
        yield f"[{start} {end}]"
        yield from hanoi(disks - 1, spare, end, start)


async def play(name: str, seed: int, actions: list[str]) -> tuple[str, list[StepResult]]:
    return await play_actions(get_env(name), seeded_item(name, seed), actions, stops_at_end=True)


@pytest.mark.heavy
async def test_hanoi_is_solved_by_recursion_and_spoilt_by_a_larger_disk_on_a_smaller() -> None:
    _, results = await play("textarena:TowerOfHanoi-v0", 0, list(hanoi(3, "A", "C", "B")))
    assert len(results) == 7
    assert results[-1].success
    assert results[-1].reward == 1.0
    assert not any(result.terminated or result.reward for result in results[:-1])
    _, spoilt = await play("textarena:TowerOfHanoi-v0", 0, ["[A C]", "[A C]", "[A C]"])
    assert "invalid move" in spoilt[1].observation
    assert (spoilt[2].terminated, spoilt[2].success) == (True, False)


async def test_numbers_are_found_by_halving_on_one_instance_after_another() -> None:
    spec = get_env("textarena:GuessTheNumber-v0-hardcore")
    env, matches = spec.make(), set()
    for item in spec.split(0).test[:8]:
        low, high = map(int, re.findall(r"between (\d+) and (\d+)", await read_opening(env, item))[0])
        while True:
            guess = (low + high) // 2
            result = await env.step(f"[{guess}]")
            if result.terminated:
                break
            assert result.observation.count("[GAME]") == 1  # what is new, not all that was said
            low, high = (guess + 1, high) if "higher" in result.observation else (low, guess - 1)
        assert result.success
        matches.add(guess)
    await env.close()
    assert len(matches) > 3


@pytest.mark.parametrize("name", RANDOM_DRAWS)
async def test_episodes_side_by_side_are_what_each_is_alone(name: str) -> None:
    actions = ["[hit]", "[up]", "[stand]", "[left]", "[hit]", "[down]", "[hit]"]
    alone = [await play(name, seed, actions) for seed in (1, 2)]
    assert alone[0] != alone[1]

    async def together() -> list[tuple[str, list[StepResult]]]:
        spec = get_env(name)
        envs = [spec.make(), spec.make()]
        openings = [
            await read_opening(env, seeded_item(name, seed)) for env, seed in zip(envs, (1, 2), strict=True)
        ]
        results: list[list[StepResult]] = [[], []]
        for action in actions:
            for env, of_one in zip(envs, results, strict=True):
                random.random()  # somebody else
                np.random.random()
                if not (of_one and of_one[-1].terminated):
                    of_one.append(await env.step(action))
        return list(zip(openings, results, strict=True))

    assert await together() == alone


async def test_the_global_generators_are_left_as_they_were() -> None:
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.random(), random.setstate(random.getstate())
    np.random.seed(7)
    random_state = EpisodeRandom(3)
    with random_state:
        first = random.random(), np.random.random()
    await play("textarena:Sokoban-v0", 0, ["[up]"])
    with random_state:
        second = random.random(), np.random.random()
    assert random.getstate() == before[0]
    assert np.random.random() == before[1]
    with EpisodeRandom(3):
        assert [(random.random(), np.random.random()) for _ in range(2)] == [first, second]


async def openings(names: list[str]) -> dict[str, str]:
    views = {}
    for name in names:
        env = get_env(name).make()
        for index in (11, 4):
            views[f"{name} {index}"] = await read_opening(env, seeded_item(name, index))
    return views


@pytest.mark.heavy
async def test_an_item_opens_alike_in_every_process() -> None:
    names = [*RANDOM_DRAWS, "textarena:FrozenLake-v0-random", "gymnasium:Taxi-v4"]
    if importlib.util.find_spec("reasoning_gym"):
        names += ["reasoning-gym:zebra_puzzles", "reasoning-gym:pool_matrix"]
    elsewhere = subprocess.run(
        [sys.executable, "-m", "tests.envs.test_textarena", *reversed(names)],
        env={**os.environ, "PYTHONHASHSEED": "1"},
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert json.loads(elsewhere) == await openings(names)


def test_all_games_for_one_player_are_listed_but_for_those_that_cannot_be_played() -> None:
    import textarena
    from textarena.envs.registration import ENV_REGISTRY

    package = Path(textarena.__file__).parent
    alone = set()
    for entry in ENV_REGISTRY.values():
        module = str(entry.entry_point).partition(":")[0].split(".")
        file = package.joinpath(*module[1:]).with_suffix(".py")  # one that is registered does not exist
        if file.is_file() and "SinglePlayerState" in file.read_text():
            alone.add(module[2])
    assert alone == {*SINGLE_PLAYER_GAMES, "GuessWho", "TwentyQuestions", "Klondike"}


async def test_an_invalid_move_gives_no_success_even_where_the_game_names_a_text_as_reward() -> None:
    _, results = await play("textarena:Countdown-v0", 0, ["[nonsense]", "[nonsense]"])
    assert results[-1] == StepResult(results[-1].observation, 0.0, terminated=True)
    assert "Invalid" in results[-1].observation
    _, results = await play("textarena:Countdown-v0", 0, ["[" * 3000])
    assert not results[-1].terminated


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Chess-v0", "is rejected"),
        ("TwentyQuestions-v0", "is rejected"),
        ("TowerOfHanoy-v0", "did you mean 'textarena:TowerOfHanoi-v0'"),
        ("TowerOfHanoi-v0?towers=4", "unexpected keyword argument 'towers'"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_env(f"textarena:{name}")


def test_a_game_whose_words_are_missing_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nltk = pytest.importorskip("nltk")
    monkeypatch.setattr(nltk.data, "path", [])
    for module in [name for name in sys.modules if name.startswith("textarena.envs.Hangman")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("downloads nothing by itself"))
    with pytest.raises(MissingDependency, match=r"python -m nltk.downloader words"):
        get_env("textarena:Hangman-v0?hardcore=true")


def test_families_are_known_by_their_names() -> None:
    with pytest.raises(ConfigError, match="did you mean 'textarena:Wordle-v0'"):
        get_env("textarna:Wordle-v0")
    with pytest.raises(ConfigError, match="unknown env 'textarena'"):
        get_env("textarena")


if __name__ == "__main__":
    print(json.dumps(asyncio.run(openings(sys.argv[1:]))))
