"""BabyAI in words, held against minigrid itself: what is seen, what commands do, what its bot achieves."""

import asyncio
import random

import gymnasium
import minigrid  # noqa: F401 - registers the levels
import pytest

from envs.babyai import LEVELS, BabyAIEnv, expert, level_of, make_item, split
from envs.babyai_view import Move, commands, look, path
from envs.types import StepResult

AHEAD = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""minigrid's directions."""
BOT_FAILS = {"PutNextS7N4Carrying-v0", "KeyInBox-v0", "OpenDoorsOrderN4Debug-v0"}
"""The bot gives up on the first two, as its docstring says. In the third, "open A, then B" cannot pass
minigrid's own check: opening A is taken for opening a wrong B."""


def absolute(level, cell):
    """Where a cell of the view lies in the grid."""
    ahead, right = cell
    dx, dy = AHEAD[level.agent_dir]
    rx, ry = AHEAD[(level.agent_dir + 1) % 4]
    x, y = level.agent_pos
    return int(x + ahead * dx + right * rx), int(y + ahead * dy + right * ry)


def wander(index: int, *, turns: int):
    """The level after some random moves, at each of them."""
    level = level_of(index)
    rng = random.Random(index)
    for _ in range(turns):
        yield level
        _, _, terminated, truncated, _ = level.step(rng.choice(list(Move)[:6]))
        if terminated or truncated:
            return


@pytest.mark.parametrize("index", [0, 43, 5 + 40 * 7, 38 + 40 * 11])
def test_an_item_is_agentgyms_level_and_seed(index):
    theirs = gymnasium.make(f"BabyAI-{LEVELS[index % 40]}", disable_env_checker=True).unwrapped
    theirs.reset(seed=index // 40)
    ours = level_of(index)
    assert ours.mission == theirs.mission
    assert str(ours.pprint_grid()) == str(theirs.pprint_grid())


@pytest.mark.parametrize("index", range(0, 400, 9))
def test_everything_seen_is_where_it_is_said_to_be(index):
    for level in wander(index, turns=15):
        view = look(level)
        for sight in view.sights:
            thing = level.grid.get(*absolute(level, sight.cell))
            assert (thing.type, thing.color) == (sight.kind, sight.color)
            assert level.in_view(*absolute(level, sight.cell))
        for cell in view.free - {(0, 0)}:
            thing = level.grid.get(*absolute(level, cell))
            assert thing is None or thing.can_overlap()
        names = [sight.name for sight in view.sights]
        assert len(set(names)) == len(names)
        assert [sight.distance for sight in view.sights] == sorted(sight.distance for sight in view.sights)


@pytest.mark.parametrize("index", range(3, 400, 13))
def test_a_way_ends_in_front_of_its_target(index):
    for level in wander(index, turns=10):
        sights = look(level).sights
        if not sights:
            continue
        target = sights[-1]
        place, way = absolute(level, target.cell), path(look(level), target.cell)
        if way is None:
            continue
        for move in way:
            before = tuple(level.agent_pos)
            _, _, terminated, truncated, _ = level.step(move)
            if terminated or truncated:
                return
            assert move is not Move.FORWARD or tuple(level.agent_pos) != before, "walked into something"
        assert tuple(level.front_pos) == place


def test_every_offered_action_is_understood_and_no_other():
    env = BabyAIEnv()
    env.start(36)
    level = env._level
    before = (level.pprint_grid(), level.step_count)
    for wrong in ("", "fly", "go to pink ball 1", "pick up", "go to red ball", "turn left\nturn right extra"):
        result = env.act(wrong)
        assert "is no action now" in result.observation
        assert not (result.terminated)
        assert not (result.truncated)
        assert not (result.reward)
    assert (level.pprint_grid(), level.step_count) == before
    for offered in commands(look(level)):
        env.start(36)
        assert "is no action now" not in env.act(offered).observation
    env.start(36)
    assert "is no action now" not in env.act("  Turn   LEFT ").observation


def test_the_reward_is_minigrids_and_running_out_of_steps_truncates():
    env = BabyAIEnv()
    item = make_item(0)
    asyncio.run(env.reset(item))
    level = env._level
    results = [asyncio.run(env.step(step.action)) for step in expert(item)]
    assert results[-1].reward == pytest.approx(1 - 0.9 * level.step_count / level.max_steps)
    assert results[-1].terminated
    assert results[-1].success
    assert not results[-1].truncated
    env.start(0)
    result = StepResult("")
    turns = 0
    while not (result.terminated or result.truncated):
        result = env.act("turn left")
        turns += 1
    assert turns == level.max_steps
    assert result == StepResult(result.observation, 0.0, truncated=True)


def test_minigrids_bot_reaches_full_marks_through_the_words():
    """Three games of each level that it can solve: 111 items."""
    solved = 0
    env = BabyAIEnv()
    for index in range(3 * len(LEVELS)):
        if LEVELS[index % len(LEVELS)] in BOT_FAILS:
            continue
        env.start(index)
        result = StepResult("")
        for step in expert(make_item(index)):
            assert not result.terminated
            result = env.act(step.action)
        assert result.success, (index, LEVELS[index % len(LEVELS)])
        solved += 1
    assert solved == 111


def test_the_split_has_the_papers_sizes_and_every_level_on_both_sides():
    first, again, other = split(0), split(0), split(1)
    assert (len(first.train), len(first.test)) == (810, 90)
    assert first == again
    assert first.test != other.test
    assert not {item.item_id for item in first.train} & {item.item_id for item in first.test}
    for items in (first.train, first.test):
        assert {item.metadata["level"] for item in items} == set(range(1, 41))
