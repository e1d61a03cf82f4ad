"""ALFWorld: the light TextWorld against TextWorld as it is, goal conditions by hand, upstream's files on
disk."""

import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.builtin.alfworld import games
from envs.builtin.alfworld import spec as real
from envs.builtin.alfworld.games import Game, Task, read_game
from envs.builtin.alfworld.house import GoalProgress
from envs.builtin.alfworld.mini import spec as mini
from envs.builtin.alfworld.mini.searcher import Searcher
from envs.builtin.alfworld.upstream import PACKAGES
from envs.errors import ConfigError, MissingDependency
from envs.registry import get_env
from envs.requirements.data_sets import ROOT_VARIABLE
from envs.requirements.detection import Package
from envs.types import Inspectable, StepResult
from tests.support.needs import needs
from tests.support.openings import play_actions, read_opening

pytestmark = [needs(Package(name)) for name in PACKAGES]

REMEDY = "wingspan data pull alfworld"
SMALL_ROOM = "pick_clean_then_place_in_recep"
"""A task that is set in bathrooms, too, which load in a tenth of a kitchen's time."""

UPSTREAM = """
import hashlib, json, os, random, sys, types
stub = types.ModuleType("jericho")
stub.UnsupportedGameWarning = stub.TruncatedInputActionWarning = type("Unused", (UserWarning,), {})
sys.modules["jericho"] = stub
file, folder = sys.argv[1:]
os.environ["ALFWORLD_DATA"] = folder
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
from textworld.envs import PddlEnv
game = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)))
game.load(file)
state, chance, said = game.reset(), random.Random(0), []
for _ in range(15):
    said.append([state.feedback, state.admissible_commands])
    state, _, _ = game.step(chance.choice(state.admissible_commands))
print(hashlib.sha256(json.dumps(said).encode()).hexdigest())
"""
"""Upstream's own classes, none of ours: a walk by chance, and the hash of all that was said."""


def items(part: str, task: str) -> list[int]:
    split = mini.SPEC.split(0)
    return [
        item.index
        for item in [*split.train, *split.test]
        if (item.metadata["part"], item.metadata["task"]) == (part, task)
    ]


def bathroom(part: str = "train") -> int:
    """An item in a small room."""
    return next(i for i in items(part, SMALL_ROOM) if mini.GAMES.make_item(i).metadata["room"] == "bathroom")


LIGHT = """
import json, random, sys
from pathlib import Path
from envs.builtin.alfworld.textworld_light import new_game
game = new_game()
game.load(json.loads(Path(sys.argv[1]).read_text()))
state, chance, states = game.reset(), random.Random(0), []
for _ in range(15):
    states.append([state.feedback, state.admissible_commands])
    state, _, _ = game.step(chance.choice(state.admissible_commands))
assert len(sys.argv) == 2
print(json.dumps(states))
"""


@pytest.mark.heavy
def test_the_light_textworld_says_word_for_word_what_textworld_says(tmp_path: Path) -> None:
    """Also when it reads the game's translation from a file, and when that file is damaged."""
    from envs.builtin.alfworld.textworld_light import TRANSLATIONS

    problem, file = mini.GAMES.read(bathroom()), tmp_path / "game.tw-pddl"
    content = {"pddl_domain": problem.domain, "grammar": problem.grammar, "pddl_problem": problem.problem}
    file.write_text(json.dumps(content))

    def play() -> list[Any]:
        done = subprocess.run(
            [sys.executable, "-c", LIGHT, file],
            capture_output=True,
            text=True,
            env={**os.environ, ROOT_VARIABLE: str(tmp_path / "data_sets")},
            check=True,
        )
        played: list[Any] = json.loads(done.stdout.splitlines()[-1])
        return played

    states = play()
    [translation] = (tmp_path / "data_sets" / TRANSLATIONS).iterdir()
    whole = translation.read_bytes()
    assert play() == states
    translation.write_bytes(whole[:1000])
    assert play() == states
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    theirs = subprocess.run(
        [sys.executable, "-c", UPSTREAM, file, tmp_path],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert theirs.stdout.split()[-1] == hashlib.sha256(json.dumps(states).encode()).hexdigest()


async def play(name: str, index: int, actions: Sequence[str]) -> tuple[str, list[StepResult]]:
    spec = get_env(name)
    assert spec.make_item is not None
    return await play_actions(spec, spec.make_item(index), actions)


def expert_actions(name: str, index: int) -> list[str]:
    spec = get_env(name)
    assert spec.make_item is not None
    return [step.resolve("") for step in spec.expert(spec.make_item(index))]


def shortest(task: str) -> int:
    """An item with the smallest problem of a task."""
    return min(items("unseen", task), key=lambda i: len(mini.GAMES.read(i).problem))


BY_TASK = [pytest.param(task, marks=[pytest.mark.heavy] * bool(n)) for n, task in enumerate(games.TASK_TYPES)]


@pytest.mark.parametrize("task", BY_TASK)
async def test_the_planner_s_plan_wins_and_meets_every_condition_only_then(task: str) -> None:
    index = shortest(task)
    _, results = await play("alfworld-mini", index, mini.GAMES.read(index).walkthrough)
    *before, last = results
    assert (last.reward, last.terminated, last.success) == (1.0, True, True)
    assert last.metrics == {"goal_conditions": 1.0}
    assert not any(result.terminated or result.reward for result in before)
    assert all(0 <= result.metrics["goal_conditions"] < 1 for result in before)


@pytest.mark.parametrize("task", BY_TASK)
async def test_the_expert_wins_by_actions_that_are_listed(task: str) -> None:
    """`python -m bench.experts alfworld-mini`, also with `--test`, plays all games."""
    index = shortest(task)
    actions = expert_actions("alfworld-mini", index)
    opening, results = await play("alfworld-mini", index, actions)
    assert [result.success for result in results] == [False] * (len(results) - 1) + [True]
    observations = [opening, *(result.observation for result in results)]
    for turn, action in enumerate(actions):
        assert action in observations[turn].partition("Available actions: ")[2].split(", ")


async def test_the_expert_looks_into_place_after_place() -> None:
    """Until it sees what it needs, it has no reason to prefer one."""
    actions = expert_actions("alfworld-mini", bathroom())
    visits = itertools.takewhile(lambda action: not action.startswith("take "), actions)
    names = list(dict.fromkeys(name for action in visits for name in re.findall(r"[a-z]+ \d+", action)))
    opening, _ = await play("alfworld-mini", bathroom(), [])
    assert names == re.findall(r"[a-z]+ \d+", opening.partition(".\nYour task")[0])[: len(names)]


TEXT = "alfworld-mini:text?actions=false"


def refused_item() -> int:
    """A bathroom in which the expert stands where it wants to go."""
    spec = get_env(TEXT)
    return next(
        item.index
        for item in spec.split(0).train
        if item.metadata["room"] == "bathroom"
        and any(step.resolve("").startswith("examine") for step in spec.expert(item))
    )


async def test_without_the_list_observations_are_the_same_text_and_the_expert_learns_from_refusals() -> None:
    index = refused_item()
    actions = expert_actions(TEXT, index)
    opening, results = await play(TEXT, index, actions)
    listed_opening, listed_results = await play("alfworld-mini", index, actions)
    assert opening == listed_opening.partition("\nAvailable actions: ")[0]
    assert [result.observation for result in results] == [
        result.observation.partition("\nAvailable actions: ")[0] for result in listed_results
    ]
    assert results[-1].success
    refused = [n for n, result in enumerate(results) if result.observation == "Nothing happens."]
    assert refused
    for n in refused:
        assert actions[n + 1] == actions[n].replace("go to", "examine")


async def test_a_search_quotes_the_opening_until_the_object_is_found() -> None:
    spec, index = get_env(TEXT), refused_item()
    assert spec.make_item is not None
    opening, _ = await play(TEXT, index, [])
    steps = list(spec.expert(spec.make_item(index)))
    searches = [step for step in steps if ": " in step.thought]
    assert searches
    for step in searches:
        assert step.thought.partition(": ")[2] in opening
        assert step.thought.endswith(step.resolve("").removeprefix("go to ").removeprefix("examine "))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("alfworld:html", "unknown env 'alfworld:html'; it has text"),
        ("alfworld:text?more=true", "no option more; there is actions"),
        ("alfworld-mini:text?actions=no", "actions is 'no', not true or false"),
    ],
)
def test_options_that_do_not_exist_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        get_env(name)


@pytest.mark.parametrize("task", games.TASK_TYPES)
def test_the_expert_does_not_know_what_it_has_not_seen(task: str) -> None:
    """Where two places exchange their contents, its actions are the same until it has been at one of them."""
    game = mini.GAMES.read(shortest(task))
    contents = re.findall(r"\(inReceptacle ([^?\s]+) (\S+)\)", game.problem)
    actions = [step.resolve("") for step in Searcher(game).solve()]
    differences = 0
    for pair in itertools.pairwise(sorted({place for _, place in contents})):
        problem = game.problem
        for thing, place in contents:
            if place in pair:
                [other] = set(pair) - {place}
                problem = problem.replace(
                    f"(inReceptacle {thing} {place})", f"(inReceptacle {thing} {other})"
                )
        others = [step.resolve("") for step in Searcher(replace(game, problem=problem)).solve()]
        if others and others != actions:
            differences += 1
            pairs = itertools.takewhile(lambda both: both[0] == both[1], zip(actions, others, strict=False))
            kinds = {place.partition("_bar_")[0].lower() for place in pair}
            assert any(kind in action for action, _ in pairs for kind in kinds)
    assert differences


HEAT = Task(type="pick_heat_then_place_in_recep", object="Mug", receptacle="Desk", lamp="")
TWO = Task(type="pick_two_obj_and_place", object="Mug", receptacle="Desk", lamp="")
LOOK = Task(type="look_at_obj_in_light", object="Mug", receptacle="", lamp="DeskLamp")
ROOM = [
    ("objecttype", "mug1", "mugtype"),
    ("objecttype", "mug2", "mugtype"),
    ("objecttype", "lamp1", "desklamptype"),
    ("receptacletype", "desk1", "desktype"),
    ("receptacletype", "desk2", "desktype"),
    ("receptacletype", "bed1", "bedtype"),
    ("receptacleatlocation", "desk1", "loc1"),
    ("inreceptacle", "lamp1", "desk1"),
    ("atlocation", "agent1", "loc1"),
]


@pytest.mark.parametrize(
    ("task", "facts", "conditions"),
    [
        (HEAT, [], (0, 3)),
        (HEAT, [("inreceptacle", "mug1", "desk1")], (1, 3)),
        (HEAT, [("ishot", "mug1"), ("inreceptacle", "mug1", "bed1")], (1, 3)),
        (HEAT, [("ishot", "mug1"), ("inreceptacle", "mug2", "desk1")], (2, 3)),
        (HEAT, [("ishot", "mug1"), ("inreceptacle", "mug1", "desk2")], (3, 3)),
        (TWO, [("inreceptacle", "mug1", "desk1")], (1, 2)),
        (TWO, [("inreceptacle", "mug1", "desk1"), ("inreceptacle", "mug2", "desk2")], (1, 2)),
        (TWO, [("inreceptacle", "mug1", "desk2"), ("inreceptacle", "mug2", "desk2")], (2, 2)),
        (LOOK, [], (0, 2)),
        (LOOK, [("istoggled", "lamp1")], (1, 2)),
        (LOOK, [("holds", "agent1", "lamp1")], (0, 2)),
        (LOOK, [("istoggled", "lamp1"), ("holds", "agent1", "mug2")], (2, 2)),
    ],
)
def test_goal_conditions_are_counted_as_alfworld_counts_them(
    task: Task, facts: list[tuple[str, ...]], conditions: tuple[int, int]
) -> None:
    assert GoalProgress(task).count_conditions([*ROOM, *facts]) == conditions


def test_what_was_heated_once_stays_so() -> None:
    progress = GoalProgress(HEAT)
    assert progress.count_conditions([*ROOM, ("ishot", "mug1")]) == (1, 3)
    assert progress.count_conditions([*ROOM, ("iscool", "mug1"), ("inreceptacle", "mug1", "desk1")]) == (3, 3)


async def test_observations_are_agentgyms_and_list_what_can_be_done() -> None:
    spec = get_env("alfworld-mini")
    env, index = spec.make(), bathroom()
    assert isinstance(env, Inspectable)
    opening = await read_opening(env, mini.GAMES.make_item(index))
    assert opening.startswith("You are in the middle of a room. Looking quickly around you, you see")
    assert "\nYour task is to: " in opening
    actions = await env.inspect("available_actions")
    observation = await env.inspect("observation")
    assert opening == f"{observation}\nAvailable actions: {', '.join(actions)}"
    assert {"go to sinkbasin 1", "inventory", "look", "help"} <= set(actions)
    assert await env.inspect("task_type") == mini.GAMES.read(index).name
    result = await env.step("  go to   sinkbasin 1 ")
    assert result.observation.startswith("On the sinkbasin 1, you see ")
    assert (await env.step("fly")).observation.startswith("Nothing happens.")
    with pytest.raises(ConfigError, match="no fact 'weather'"):
        await env.inspect("weather")
    await env.close()


async def test_what_older_versions_call_put_is_understood() -> None:
    actions = [
        re.sub(r"^move (.+) to ", r"put \1 in/on ", action)
        for action in expert_actions("alfworld-mini", bathroom())
    ]
    _, results = await play("alfworld-mini", bathroom(), actions)
    assert results[-1].success


@pytest.fixture
def upstream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data root with a few games in upstream's layout, which are really of `alfworld-mini`."""
    problem = mini.GAMES.read(bathroom())
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    caches = (real.solvable_games, real.list_games)
    for cache in caches:
        cache.cache_clear()
    root = tmp_path / "alfworld" / "json_2.1.1"
    agentgym_games = real.agentgym_games()
    write(root / agentgym_games[0], problem, walkthrough=list(problem.walkthrough))
    write(root / agentgym_games[1], problem, solvable=False)
    write(root / agentgym_games[2420], problem, only_problem=True)
    write(root / "train/pick_and_place_simple-Pen-None-Desk-307/trial_T2", problem)
    write(root / "train/pick_and_place_with_movable_recep-Pen-Mug-Desk-307/trial_T3", problem)
    write(root / "valid_seen/pick_and_place_simple-Pen-None-Desk-308/trial_T4", problem)
    write(root / "valid_seen/pick_and_place_simple-Pen-None-Desk-309/trial_T5", problem, solvable=False)
    write(
        root / "valid_unseen/pick_and_place_simple-Pen-None-Desk-310/trial_T6",
        problem,
        walkthrough=["go to drawer_bar_1"],
    )
    yield root
    for cache in caches:
        cache.cache_clear()


def write(
    folder: Path,
    problem: Game,
    *,
    solvable: bool = True,
    walkthrough: list[str] | None = None,
    only_problem: bool = False,
) -> None:
    folder.mkdir(parents=True)
    targets = {
        "object_target": problem.task.object,
        "parent_target": problem.task.receptacle,
        "toggle_target": "",
    }
    about = {
        "task_type": problem.task.type,
        "pddl_params": {**targets, "mrecep_target": "", "object_sliced": False},
    }
    (folder / "traj_data.json").write_text(
        json.dumps({**about, "plan": {}, "scene": {"floor_plan": "FloorPlan7"}})
    )
    (folder / "initial_state.pddl").write_text(problem.problem)
    if not only_problem:
        content = {"pddl_domain": problem.domain, "grammar": problem.grammar, "pddl_problem": problem.problem}
        (folder / "game.tw-pddl").write_text(
            json.dumps({**content, "solvable": solvable, "walkthrough": walkthrough})
        )


def test_upstream_s_games_have_agentgym_s_numbers_then_their_own(upstream: Path) -> None:
    agentgym_games = real.agentgym_games()
    assert len(agentgym_games) == 2620
    assert (
        agentgym_games[0]
        == "train/look_at_obj_in_light-AlarmClock-None-DeskLamp-301/trial_T20190907_174127_043461"
    )
    assert (
        agentgym_games[2419]
        == "train/pick_two_obj_and_place-WineBottle-None-Cabinet-17/trial_T20190909_014040_145528"
    )
    assert agentgym_games[2619].startswith(
        "valid_train/pick_two_obj_and_place-RemoteControl-None-Ottoman-210/"
    )
    split = real.SPEC.split(0)
    assert [item.item_id for item in split.train] == ["alfworld_0", "alfworld_2622"]
    test_items = [item for item in split.test if item.metadata["part"] != "valid_train"]
    assert [(item.item_id, item.metadata["part"]) for item in test_items] == [
        ("alfworld_2620", "valid_seen"),
        ("alfworld_2621", "valid_unseen"),
    ]
    assert sum(item.metadata["part"] == "valid_train" for item in split.test) == 200
    assert real.GAMES.make_item(0).metadata == {
        "task": "look_at_obj_in_light",
        "room": "bedroom",
        "part": "train",
    }
    with pytest.raises(ConfigError, match="alfworld_2622; there is no 'alfworld_2623'"):
        real.GAMES.make_item(2623)
    assert len(real.expert(real.GAMES.make_item(0))) > 2
    assert (
        real.expert(real.GAMES.make_item(2621)) == []
    )  # its walkthrough is in names that the game does not know


@pytest.mark.heavy
async def test_upstream_s_game_is_played_from_either_file(upstream: Path) -> None:
    opening, results = await play("alfworld", 0, expert_actions("alfworld", 0))
    assert results[-1].success
    from_problem = read_game(upstream / real.list_games()[2420], remedy=REMEDY)
    assert (
        f"Your task is to: {games.describe_task(from_problem.task, 0)}" in opening
        or games.describe_task(from_problem.task, 1) in opening
    )
    assert "UNKNOWN GOAL" not in from_problem.grammar
    assert (from_problem.domain, from_problem.problem) == (
        read_game(upstream / real.list_games()[0], remedy=REMEDY).domain,
        mini.GAMES.read(bathroom()).problem,
    )


def test_games_that_are_not_there_are_named_with_the_command_that_brings_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINGSPAN_DATA", str(tmp_path))
    real.solvable_games.cache_clear()
    real.list_games.cache_clear()
    spec = get_env("alfworld")
    with pytest.raises(MissingDependency, match=REMEDY):
        spec.check()
    with pytest.raises(MissingDependency, match=REMEDY):
        spec.split(0)
    with pytest.raises(MissingDependency, match=f"there is no .*traj_data.json; run: {REMEDY}"):
        read_game(tmp_path / "task" / "trial", remedy=REMEDY)


async def test_errors_for_damaged_games_have_file_line_and_command(upstream: Path) -> None:
    folder = upstream / real.list_games()[0]
    file = folder / "game.tw-pddl"
    whole = file.read_text()
    file.write_text(whole[:5000])
    with pytest.raises(
        ConfigError, match=rf"{file}, line 1: a whole JSON object was expected .*; run: {REMEDY}"
    ):
        read_game(folder, remedy=REMEDY)
    real.solvable_games.cache_clear()
    with pytest.raises(ConfigError, match=r"game\.tw-pddl, line 1"):
        real.solvable_games()
    file.write_text(json.dumps({**json.loads(whole), "grammar": ""}))
    with pytest.raises(ConfigError, match=r"a text 'grammar' was expected, not ''"):
        read_game(folder, remedy=REMEDY)
    for damage in (whole.replace("(:init", "(:innit"), whole.replace("action GotoLocation", "action {")):
        file.write_text(damage)
        with pytest.raises(ConfigError, match=f"{file}: TextWorld cannot read this game"):
            await play("alfworld", 0, [])


def test_specs_are_had_without_the_packages() -> None:
    code = (
        "import sys\n"
        "class Hidden:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('alfworld', 'textworld', 'fast_downward', 'numpy'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hidden())\n"
        "from envs.registry import get_env\n"
        "print(get_env('alfworld').name, get_env('alfworld-mini').split(0).train[0].item_id)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["alfworld", "alfworld-mini_0"]
