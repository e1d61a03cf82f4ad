"""The games of `alfworld-mini`: what was solved is what is made, the same bytes everywhere, each once."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from envs.builtin.alfworld.env import AlfWorldEnv
from envs.builtin.alfworld.games import TASK_TYPES, read_game
from envs.builtin.alfworld.mini.drafts import COUNTS, drafts
from envs.builtin.alfworld.mini.make import make
from envs.builtin.alfworld.mini.more import COUNT
from envs.builtin.alfworld.mini.plans import fingerprint, plans
from envs.builtin.alfworld.mini.spec import GAMES, read
from envs.builtin.alfworld.upstream import PACKAGES, constants
from envs.errors import ConfigError
from envs.registry import Split, get_env
from envs.requirements.detection import Package
from tests.support.kills import measure
from tests.support.needs import needs

pytestmark = [needs(Package(name)) for name in PACKAGES]


def split() -> Split:
    return get_env("alfworld-mini").split(0)


DIGEST = """
import hashlib, sys
from pathlib import Path
from envs.builtin.alfworld.mini.make import make
folder = Path(sys.argv[1])
make(folder)
digest = hashlib.sha256()
for file in sorted(folder.rglob("*")):
    if file.is_file():
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
print(digest.hexdigest())
"""


@pytest.mark.heavy
def test_items_are_the_games_that_are_made_and_that_the_planner_solved() -> None:
    all_drafts = list(drafts())
    assert len(all_drafts) == sum(COUNTS.values())
    assert [(plan.game, plan.problem) for plan in plans()] == [
        (draft.folder, fingerprint(draft)) for draft in all_drafts
    ]
    items = [*split().train, *split().test]
    assert [GAMES.read(item.index).walkthrough for item in items[::20]] == [
        plan.plan for plan in plans() if plan.plan
    ][::20]
    assert len(items) == sum(bool(plan.plan) for plan in plans()) >= 200


@pytest.mark.heavy
def test_parts_have_all_task_types_and_share_no_game_and_unseen_rooms_are_in_no_other() -> None:
    items = [*split().train, *split().test]
    counts = Counter((i.metadata["part"], i.metadata["task"]) for i in items)
    assert all(counts[part, task] >= 3 for part in COUNTS for task in TASK_TYPES)
    solved_plans = [plan for plan in plans() if plan.plan]
    assert len({plan.problem for plan in solved_plans}) == len(items)
    assert len({plan.game.split("/")[1] for plan in solved_plans}) == len(items)
    scenes = [(draft.part, draft.layout.room.number) for draft in drafts()]
    rooms = {part: {number for there, number in scenes if there == part} for part in COUNTS}
    assert not rooms["unseen"] & (rooms["train"] | rooms["seen"])
    assert rooms["unseen"] <= set(constants().TEST_SCENE_NUMBERS)
    assert rooms["train"] <= set(constants().TRAIN_SCENE_NUMBERS)


@pytest.mark.heavy
def test_the_same_bytes_are_made_whatever_the_hash_seed(tmp_path: Path) -> None:
    digests = set()
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", DIGEST, str(tmp_path / seed)]
        digests.add(
            subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout
        )
    assert len(digests) == 1
    folder = tmp_path / "1" / plans()[0].game
    content = json.loads((folder / "game.tw-pddl").read_text())
    assert sorted(content) == ["grammar", "pddl_domain", "pddl_problem", "solvable", "walkthrough"]
    assert content["solvable"] is True
    assert read_game(folder, remedy="").walkthrough == plans()[0].plan


def test_plans_of_other_games_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.builtin.alfworld.mini.make.plans", lambda: plans()[1:] + plans()[:1])
    with pytest.raises(ConfigError, match=r"does not belong to .*; install the pinned alfworld"):
        make(tmp_path)


def test_there_is_no_item_past_the_last() -> None:
    with pytest.raises(ConfigError, match="there is no 'alfworld-mini_210'"):
        GAMES.make_item(210)


@pytest.mark.heavy
def test_more_games_are_for_training_and_repeat_no_task_of_a_test_game_in_its_room() -> None:
    spec = get_env("alfworld-mini:text?more=true")
    items, known = spec.split(0), split()
    assert [item.index for item in items.test] == [item.index for item in known.test]
    assert len(items.train) == len(known.train) + COUNT
    more = [item for item in items.train if item.metadata["part"] == "more"]
    tasks = {plan.game.split("/")[1] for plan in plans()}
    assert len(more) == COUNT
    for item in more[::10]:
        folder = read(item.index).name.split("/")[0]
        assert folder not in tasks
        assert int(folder.rpartition("-")[2]) in constants().TRAIN_SCENE_NUMBERS


@pytest.mark.heavy
async def test_the_expert_wins_more_games() -> None:
    """`python -m bench.experts 'alfworld-mini:text?more=true'` plays all of them."""
    spec = get_env("alfworld-mini:text?more=true")
    bathrooms = [
        item
        for item in spec.split(0).train
        if (item.metadata["part"], item.metadata["room"]) == ("more", "bathroom")
    ]
    env = spec.make()
    for item in bathrooms[:3]:
        await env.reset(item)
        results = [await env.step(step.resolve("")) for step in spec.expert(item)]
        assert results[-1].success
    await env.close()


@pytest.mark.heavy
def test_killed_games_cost_attempts_and_nothing_else() -> None:
    """`python -m bench.kill alfworld-mini` does it more often."""
    items = [item for item in split().train if item.metadata["room"] == "bathroom"][:2]
    outcome = measure("alfworld-mini", items, kills=2, num_samples=2, capacity=2)
    assert (outcome.kills, outcome.episodes, outcome.successes) == (2, 4, 2)
    assert outcome.is_same


@pytest.mark.heavy
async def test_a_state_is_the_facts_that_actions_depend_on() -> None:
    item = next(i for i in split().train if i.metadata["task"] == "pick_and_place_simple")
    env = AlfWorldEnv(GAMES.read)

    async def key_after(*actions: str) -> str | None:
        await env.reset(item)
        for action in actions:
            await env.step(action)
        return env.state_key()

    start = await key_after()
    receptacles = [c.removeprefix("go to ") for c in await env.inspect("available_actions") if "go to " in c]
    cabinet, *_, there = [receptacle for receptacle in receptacles if "cabinet" in receptacle]
    assert await key_after("look", "inventory", "help", "sing") == start
    closed_key = await key_after(f"go to {cabinet}")
    opened_key = await key_after(f"go to {cabinet}", f"open {cabinet}")
    assert len({start, closed_key, opened_key}) == 3
    assert await key_after(f"go to {there}", f"go to {cabinet}", f"examine {cabinet}") == closed_key
    assert await key_after(f"go to {cabinet}", f"open {cabinet}", f"close {cabinet}") == closed_key
    await env.close()
