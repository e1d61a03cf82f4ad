"""BabyAI in words, compared with minigrid itself: views, effects of commands, results of its bot."""

import asyncio
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import minigrid  # noqa: F401 - registers the levels
import pytest
from minigrid.core.world_object import Ball, WorldObj
from minigrid.minigrid_env import MiniGridEnv

from envs.builtin.babyai.env import LEVELS, SPEC, BabyAIEnv, expert, make_item, make_level, read_state, split
from envs.builtin.babyai.view import Move, find_path, list_commands, look
from envs.types import StepResult

AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""minigrid's directions."""
ORDERED_DOORS = LEVELS.index("OpenDoorsOrderN4Debug-v0")
ENDLESS = (188, 246, 308, 388, 566, 708, 748, 788)
"""Items of the first 900 in which minigrid's bot alone plans for ever and never moves."""
LOCKED_AWAY = (246, 566)
"""Those of them in which the mission's object and the key of its room are both in that room."""


def absolute(level: MiniGridEnv, cell: tuple[int, int]) -> tuple[int, int]:
    """Where a cell of the view lies in the grid."""
    ahead, right = cell
    dx, dy = AHEAD[level.agent_dir]
    rx, ry = AHEAD[(level.agent_dir + 1) % 4]
    x, y = level.agent_pos
    return int(x + ahead * dx + right * rx), int(y + ahead * dy + right * ry)


def reset(env: BabyAIEnv, index: int) -> str:
    return asyncio.run(env.reset(make_item(index)))


def step(env: BabyAIEnv, action: str) -> StepResult:
    return asyncio.run(env.step(action))


def wander(index: int, *, turns: int, moves: Sequence[Move] = tuple(Move)[:6]) -> Iterator[MiniGridEnv]:
    """The level after some random moves, at each of them."""
    level = make_level(index)
    rng = random.Random(index)
    for _ in range(turns):
        yield level
        _, _, is_terminated, is_truncated, _ = level.step(rng.choice(moves))
        if is_terminated or is_truncated:
            return


@pytest.mark.parametrize("index", [0, 43, 5 + 40 * 7, 38 + 40 * 11])
def test_an_item_is_agentgyms_level_and_seed(index: int) -> None:
    theirs = gymnasium.make(f"BabyAI-{LEVELS[index % 40]}", disable_env_checker=True).unwrapped
    theirs.reset(seed=index // 40)
    ours = make_level(index)
    assert ours.mission == theirs.mission
    assert str(ours.pprint_grid()) == str(theirs.pprint_grid())


@pytest.mark.parametrize("index", range(0, 400, 9))
def test_every_visible_object_is_where_the_view_places_it(index: int) -> None:
    for level in wander(index, turns=15):
        view = look(level)
        for entry in view.objects:
            entity = level.grid.get(*absolute(level, entry.cell))
            assert (entity.type, entity.color) == (entry.kind, entry.color)
            assert level.in_view(*absolute(level, entry.cell))
        for cell in view.free - {(0, 0)}:
            entity = level.grid.get(*absolute(level, cell))
            assert entity is None or entity.can_overlap()
        names = [entry.name for entry in view.objects]
        assert len(set(names)) == len(names)
        distances = [abs(ahead) + abs(right) for ahead, right in (entry.cell for entry in view.objects)]
        assert distances == sorted(distances)


@pytest.mark.parametrize("index", range(3, 400, 13))
def test_a_path_ends_in_front_of_its_target(index: int) -> None:
    for level in wander(index, turns=10):
        objects = look(level).objects
        if not objects:
            continue
        target = objects[-1]
        goal, way = absolute(level, target.cell), find_path(look(level), target.cell)
        if way is None:
            continue
        for move in way:
            before = tuple(level.agent_pos)
            _, _, is_terminated, is_truncated, _ = level.step(move)
            if is_terminated or is_truncated:
                return
            assert move is not Move.FORWARD or tuple(level.agent_pos) != before, "walked into something"
        assert tuple(level.front_pos) == goal


def test_every_listed_action_is_accepted_and_no_other() -> None:
    env = BabyAIEnv()
    reset(env, 36)
    level = env.level
    assert level
    before = (level.pprint_grid(), level.step_count)
    for wrong in ("", "fly", "go to pink ball 1", "pick up", "go to red ball", "turn left\nturn right extra"):
        result = step(env, wrong)
        assert "is no action now" in result.observation
        assert not (result.terminated)
        assert not (result.truncated)
        assert not (result.reward)
    assert (level.pprint_grid(), level.step_count) == before
    for action in list_commands(look(level)):
        reset(env, 36)
        assert "is no action now" not in step(env, action).observation
    reset(env, 36)
    assert "is no action now" not in step(env, "  Turn   LEFT ").observation


def test_the_reward_is_minigrids_and_running_out_of_steps_truncates() -> None:
    env = BabyAIEnv()
    item = make_item(0)
    asyncio.run(env.reset(item))
    level = env.level
    assert level
    results = [asyncio.run(env.step(step.resolve(""))) for step in expert(item)]
    assert results[-1].reward == pytest.approx(1 - 0.9 * level.step_count / level.max_steps)
    assert results[-1].terminated
    assert results[-1].success
    assert not results[-1].truncated
    reset(env, 0)
    result = StepResult("")
    turns = 0
    while not (result.terminated or result.truncated):
        result = step(env, "turn left")
        turns += 1
    assert turns == level.max_steps
    assert result == StepResult(result.observation, 0.0, truncated=True)


def is_solved(index: int) -> bool:
    """Whether the expert's commands complete the item, and none comes after the end."""
    env = BabyAIEnv()
    reset(env, index)
    result = StepResult("")
    for turn in SPEC.solve(make_item(index)):
        assert not result.terminated
        result = step(env, turn.resolve(""))
    return result.success


@pytest.mark.heavy
def test_the_expert_reaches_full_marks_through_the_words() -> None:
    """Three items of each level, all but those that ask for two doors in an order."""
    indices = [index for index in range(3 * len(LEVELS)) if index % len(LEVELS) != ORDERED_DOORS]
    assert [index for index in indices if not is_solved(index)] == []


@pytest.mark.heavy
def test_no_item_is_without_an_end() -> None:
    assert [index for index in ENDLESS if not is_solved(index)] == list(LOCKED_AWAY)


@pytest.mark.parametrize("index", LOCKED_AWAY)
def test_an_object_that_is_locked_away_with_its_key_cannot_be_reached(index: int) -> None:
    level = make_level(index)
    cells = [(x, y) for x in range(level.width) for y in range(level.height)]
    entities = {cell: level.grid.get(*cell) for cell in cells}
    x, y = map(int, level.agent_pos)
    reachable = {(x, y)}
    while True:
        keys = {entities[c].color for c in reachable if entities[c] is not None and entities[c].type == "key"}
        around = {(x + dx, y + dy) for x, y in reachable for dx, dy in AHEAD}
        more = {c for c in around if c in entities and passable(entities[c], keys)} - reachable
        if not more:
            break
        reachable |= more
    assert len(reachable) > 200
    target = level.instrs.desc
    assert set(map(tuple, target.obj_poss))
    assert not reachable & set(map(tuple, target.obj_poss))


def passable(entity: WorldObj | None, keys: set[str]) -> bool:
    """Whether an agent that has `keys`, and moves what lies in its way, gets where `entity` is."""
    if entity is None or entity.type != "door":
        return entity is None or entity.type != "wall"
    return not entity.is_locked or entity.color in keys


@pytest.mark.parametrize("index", [15, 55, 95, 175])
def test_minigrid_takes_the_first_of_two_doors_for_a_wrong_second(index: int) -> None:
    """Whichever door is opened first, the mission has failed: such items have no solution."""
    level = make_level(index)
    doors = [
        (x, y)
        for x in range(level.width)
        for y in range(level.height)
        if (entity := level.grid.get(x, y)) is not None and entity.type == "door"
    ]
    assert len(doors) > 1
    for x, y in doors:
        level = make_level(index)
        heading = next(
            h
            for h, (dx, dy) in enumerate(AHEAD)
            if 0 < x - dx < level.width - 1 and 0 < y - dy < level.height - 1
        )
        dx, dy = AHEAD[heading]
        level.agent_pos, level.agent_dir = (x - dx, y - dy), heading
        assert not level.grid.get(x, y).is_open
        _, reward, is_terminated, _, _ = level.step(Move.TOGGLE)
        assert (is_terminated, reward) == (True, 0)
    assert not SPEC.solve(make_item(index))


def test_the_split_has_the_papers_sizes_and_every_level_on_both_sides() -> None:
    first, again, another_seed = split(0), split(0), split(1)
    assert (len(first.train), len(first.test)) == (810, 90)
    assert first == again
    assert first.test != another_seed.test
    assert not {item.item_id for item in first.train} & {item.item_id for item in first.test}
    for items in (first.train, first.test):
        assert {item.metadata["level"] for item in items} == set(range(1, 41))


def test_some_test_items_equal_training_items() -> None:
    """docs/environments.md names them. Equal are the mission, its steps, the agent's place and all cells."""

    def content(index: int) -> tuple[object, ...]:
        level = make_level(index)
        contents = [cell.contains and cell.contains.encode() for cell in level.grid.grid if cell is not None]
        return (
            level.mission,
            level.max_steps,
            level.pprint_grid(),
            level.grid.encode().tobytes(),
            str(contents),
        )

    items = split(0)
    levels = {content(item.index) for item in items.train}
    equal_items = [item.index for item in items.test if content(item.index) in levels]
    assert equal_items == [156, 212, 358, 436, 439, 532, 636, 758]


def test_turning_there_and_back_is_no_other_state() -> None:
    env = BabyAIEnv()
    reset(env, 0)
    start = env.state_key()
    keys = []
    for command in ["turn left", "turn right", "turn right", "turn right", "fly", "turn right", "turn right"]:
        step(env, command)
        keys.append(env.state_key())
    left, back, right, behind, still_behind, other_left, once_around = keys
    assert start == back == once_around
    assert behind == still_behind
    assert left == other_left
    assert len({start, left, right, behind}) == 4


def test_two_objects_that_look_the_same_are_distinguished_by_their_places() -> None:
    level = make_level(LEVELS.index("PickupLoc-v0"))
    first, second = Ball("red"), Ball("red")
    level.put_obj(first, 3, 3)
    level.put_obj(second, 4, 4)
    before = read_state(level)
    level.grid.set(3, 3, second)
    level.grid.set(4, 4, first)
    assert read_state(level) != before


@pytest.mark.parametrize("index", range(0, 400, 19))
def test_a_state_is_the_grid_and_the_pose_and_the_progress_of_a_mission_of_two_parts(index: int) -> None:
    """Nothing is picked up here, and the start is left out: what a mission remembers of hands, minigrid does
    not show. To put next to another thing what one carries from the start, one must have moved first."""
    sights, states = dict[Any, Any](), dict[Any, Any]()
    levels = wander(index, turns=150, moves=[Move.LEFT, Move.RIGHT, Move.FORWARD, Move.TOGGLE])
    for level in itertools.islice(levels, 1, None):
        state = repr(read_state(level))
        pose = (*map(int, level.agent_pos), int(level.agent_dir))
        view = (level.grid.encode().tobytes(), pose)
        assert sights.setdefault(state, view) == view
        if not hasattr(level.instrs, "instr_a"):
            assert states.setdefault(view, state) == state
    assert sights
