"""TextWorld's games, against TextWorld's own environment over the same games."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from envs.builtin.textworld.games import KINDS, World, make_game
from envs.builtin.textworld.play import Play
from envs.errors import ConfigError
from envs.registry import EnvSpec, get_env, get_item
from envs.requirements.detection import Package
from envs.types import Item, StepResult, read_state_key
from tests.support.needs import needs
from tests.support.openings import play_actions

pytestmark = [needs(Package(name)) for name in get_env("textworld").packages]
COINS, TREASURES, MEALS = (get_env(f"textworld:{kind}") for kind in KINDS)


async def play(spec: EnvSpec, index: int, commands: list[str]) -> tuple[str, list[StepResult]]:
    return await play_actions(spec, get_item(spec, index), commands)


def expert(spec: EnvSpec, index: int) -> list[str]:
    return [str(step.action) for step in spec.solve(get_item(spec, index))]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "level"), [("coin-collector", 7), ("treasure-hunter", 10), ("cooking", 5)], ids=str
)
def test_commands_and_score_are_those_of_textworld_s_own_environment(
    kind: str, level: int, tmp_path: Path
) -> None:
    world, walkthrough = make_game(kind, level, 3)
    from textworld.core import EnvInfos
    from textworld.envs.tw import TextWorldEnv

    world.save(str(tmp_path / "game.json"))
    upstream = TextWorldEnv(EnvInfos(admissible_commands=True))
    upstream.load(str(tmp_path / "game.json"))
    state: Any = upstream.reset()
    ours = Play(world, goal="")
    for command in walkthrough:
        # Its logic lets the player prepare a meal too early, which its interpreter does not.
        assert {*ours.commands, "prepare meal"} == {*state["admissible_commands"], "prepare meal"}
        if command in ours.commands:
            ours.act(command)
            state, score, is_done = upstream.step(command)
            assert ours.score == score / world.max_score
            assert (ours.is_won, ours.is_lost) == (state["won"], state["lost"])
    assert ours.is_won
    assert is_done


@pytest.mark.heavy
def test_the_coin_takes_exactly_as_many_turns_as_the_item_says() -> None:
    for index in (0, 9, 18):
        item = get_item(COINS, index)
        assert len(expert(COINS, index)) == item.metadata["length"] == index + 2


def test_every_kind_and_level_has_the_same_number_of_items_and_no_seed_is_in_both_halves() -> None:
    split = get_env("textworld").split(0)
    levels = sum(len(kind.levels) for kind in KINDS.values())
    assert (len(split.train), len(split.test)) == (192 * levels, 8 * levels)
    for items, count in ((split.train, 192), (split.test, 8)):
        assert set(Counter(str(sorted(item.metadata.items())) for item in items).values()) == {
            count,
            2 * count,
        }
    assert not {item.item_id for item in split.train} & {item.item_id for item in split.test}
    assert get_env("textworld").split(1).test != split.test


@pytest.mark.heavy
def test_an_item_of_all_kinds_is_that_of_one_kind() -> None:
    everything, coins = (
        World(name="textworld", kinds=tuple(KINDS)),
        World(name="x", kinds=("coin-collector",)),
    )
    assert everything.start(3 * 21).facts == coins.start(21).facts
    assert everything.make_item(3 * 21).metadata == coins.make_item(21).metadata == {
        "game": "coin-collector",
        "length": 4,
    }  # fmt: skip


@pytest.mark.heavy
def test_a_game_is_the_same_under_another_hash_seed() -> None:
    """TextWorld keeps its facts in sets."""
    code = (
        "from envs.builtin.textworld.games import KINDS, World\n"
        "games = map(World(name='textworld', kinds=tuple(KINDS)).start, (24, 26))\n"
        "print([[p.facts, p.describe(), p.listed_commands] for p in games])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
    )
    world = World(name="textworld", kinds=tuple(KINDS))
    openings = [[p.facts, p.describe(), p.listed_commands] for p in map(world.start, (24, 26))]
    assert run.stdout.strip() == str(openings)


@pytest.mark.heavy
async def test_the_wrong_object_loses() -> None:
    commands = expert(TREASURES, 8 + 14)  # "take bug from table" is possible before the end
    _, results = await play(TREASURES, 8 + 14, [*commands[:-1], "take bug from table"])
    assert results[-1].observation == "You take bug from table. You have lost."
    assert (results[-1].terminated, results[-1].success, results[-1].reward) == (True, False, 0.0)


@pytest.mark.heavy
async def test_cooking_twice_burns_and_loses() -> None:
    opening, results = await play(
        MEALS,
        4,
        ["open fridge", "take carrot from fridge", "Cook  carrot with stove", "cook carrot with oven"],
    )
    assert "carrot" not in opening, "what is in a closed container is not seen"
    assert "In it: carrot (raw)." in results[0].observation
    assert "You carry: carrot (fried)." in results[2].observation
    assert results[3].observation.endswith("You have lost.")
    assert sum(result.reward for result in results) == pytest.approx(0.4), (
        "taken and fried: two of five points"
    )


@pytest.mark.heavy
async def test_a_meal_is_prepared_only_as_the_recipe_says() -> None:
    """TextWorld's Inform 7 code: every ingredient carried, cooked and cut as written."""
    commands = expert(MEALS, 4)  # a fried, chopped carrot
    assert commands[-2:] == ["prepare meal", "eat meal"]
    _, results = await play(MEALS, 4, commands[:-2])
    offers = ["prepare meal" in result.observation.rpartition("Actions:")[2] for result in results]
    assert offers.index(True) == commands.index("chop carrot with knife")
    two = expert(MEALS, 6)
    _, results = await play(MEALS, 6, [c for c in two if "prepare" not in c and "eat" not in c])
    assert "prepare meal" in results[-1].observation, "with both ingredients"
    forgotten = next(c for c in two if c.startswith("take ") and "knife" not in c)
    food = forgotten.removeprefix("take ").partition(" from ")[0]
    _, results = await play(MEALS, 6, [c for c in two[:-2] if food not in c])
    assert "prepare meal" not in results[-1].observation, "with one"


@pytest.mark.heavy
async def test_the_recipe_is_read_in_the_cookbook() -> None:
    _, [result] = await play(MEALS, 4, ["examine cookbook"])
    assert "Directions:\nchop the carrot\n  fry the carrot\n  prepare meal" in result.observation


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("textworld:coin-colector", "did you mean 'textworld:coin-collector'"),
        ("textworld:cooking?level=3", "`where` selects items"),
    ],
)
def test_names_that_there_are_not(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_env(name)


def test_numbers_that_there_are_not() -> None:
    with pytest.raises(ConfigError, match="textworld_-1"):
        get_item(get_env("textworld"), -1)


@pytest.mark.heavy
async def test_the_expert_solves_the_longest_of_each_kind() -> None:
    for spec, last in zip((COINS, TREASURES, MEALS), (18, 13, 9), strict=True):
        item: Item = get_item(spec, last)
        _, results = await play(spec, last, expert(spec, last))
        assert results[-1].success, item
        assert sum(result.reward for result in results) == pytest.approx(1.0)


@pytest.mark.heavy
async def test_a_state_is_the_facts_and_the_quests_that_are_done() -> None:
    async def keys(spec: EnvSpec, index: int, commands: list[str]) -> list[str | None]:
        env = spec.make()
        await env.reset(get_item(spec, index))
        keys = [read_state_key(env)]
        for command in commands:
            await env.step(command)
            keys.append(read_state_key(env))
        return keys

    first, *_ = expert(COINS, 40)
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}[first.split()[1]]
    start, there, same_room, again = await keys(COINS, 40, [first, "sing", f"go {back}"])
    assert start == again != there == same_room

    # Points for finding an ingredient are not lost with it.
    look, take, *_ = expert(MEALS, 0)
    assert take == "take red bell pepper from fridge"
    put = "insert red bell pepper into fridge"
    start, read, holding_key, put_back, taken_again = await keys(MEALS, 0, [look, take, put, take])
    assert start == read
    assert holding_key == taken_again
    assert len({start, holding_key, put_back}) == 3
