"""One name for each item: a number is an item of its own, or is refused with the range of those there are."""

import json
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.errors import ConfigError, MissingDependency
from envs.registry import ENVIRONMENTS, EnvSpec, find_item, get_env, get_item
from envs.types import Item, Observation
from tasks.config.data import DataSettings
from tasks.data.files import read_parts
from tests.support.examples import examples
from tests.support.serving import listening

FAR = (10**6, 10**12, 2**53, 2**64 + 3, 10**30)
"""Numbers that something on the way may wrap or round."""


def _level(index: int) -> object:
    from envs.builtin.babyai.env import LEVELS, make_level

    return index % len(LEVELS), make_level(index).np_random.bit_generator.state["state"]["state"]


def _page(index: int) -> object:
    from envs.builtin.miniwob.env import find_task

    return find_task(index)


def _task(index: int, *, env: str) -> object:
    tasks = import_module(
        {"webarena": "envs.builtin.webarena.spec", "webarena-local": "envs.builtin.webarena_local.env"}[env]
    )
    return tasks.tasks()[index].model_dump(exclude={"task_id"})


PROBLEM: dict[str, Callable[[int], object]] = {
    "babyai": _level,
    "miniwob": _page,
    "webarena": partial(_task, env="webarena"),
    "webarena-local": partial(_task, env="webarena-local"),
}
"""What a problem is where openings look alike, or take a browser."""


ENV_PARAMS = [
    pytest.param(name, marks=[pytest.mark.heavy] * (name in ("alfworld-mini", "searchqa-mini", "textworld")))
    for name in ENVIRONMENTS
]
"""The heavy ones make their items by a planner, a compiler or a search."""


@pytest.fixture(scope="module", params=ENV_PARAMS)
def spec(request: pytest.FixtureRequest) -> EnvSpec:
    spec = get_env(request.param)
    if not spec.has_items:
        pytest.skip(f"{spec.name}'s items are a user's")
    try:
        get_item(spec, 0)
    except MissingDependency as missing:
        pytest.skip(str(missing))
    return spec


@given(number=st.one_of(st.integers(-3, 6000), st.integers(-(2**70), 2**70), st.sampled_from(FAR)))
@settings(max_examples=examples(60))
def test_a_number_is_the_item_of_that_name_or_is_refused(spec: EnvSpec, number: int) -> None:
    if _is_there(spec, number):
        item = get_item(spec, number)
        assert (item.item_id, item.env) == (f"{spec.name}_{number}", spec.name)
        assert find_item(spec, str(number), seed=None) == item
        return
    with pytest.raises(ConfigError, match=rf"; there is no '{spec.name}_{number}'") as refusal:
        get_item(spec, number)
    first, last = map(int, re.findall(rf"{spec.name}_(\d+)", str(refusal.value).partition(";")[0]))
    assert not first <= number <= last
    assert all(_is_there(spec, item_name) for item_name in (first, last))
    assert not any(_is_there(spec, unknown) for unknown in (first - 1, last + 1))


async def test_two_numbers_are_never_the_same_item(spec: EnvSpec) -> None:
    numbers = [n for n in [*range(0, 8000, 97), 543, 544, 547, *FAR] if _is_there(spec, n)]
    if spec.name in PROBLEM:
        problems = [PROBLEM[spec.name](number) for number in numbers]
    else:
        try:
            spec.check()
        except MissingDependency as missing:
            pytest.skip(str(missing))
        problems = await _openings(spec, [get_item(spec, n) for n in numbers][:8])
    assert len({str(problem) for problem in problems}) == len(problems)


def _is_there(spec: EnvSpec, number: int) -> bool:
    try:
        get_item(spec, number)
    except ConfigError:
        return False
    return True


async def _openings(spec: EnvSpec, items: list[Item]) -> list[object]:
    env = spec.make()
    try:
        return [Observation.wrap(await env.reset(item)).text for item in items]
    finally:
        await env.close()


def test_an_item_beyond_the_last_is_no_row_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`textcraft_547` was `textcraft_3` under another name, and could be trained on and tested."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for side, name in (("train", "textcraft_547"), ("test", "textcraft_3")):
        (tmp_path / "data" / f"{side}.jsonl").write_text(json.dumps({"item_id": name}))
    part = {"train": "data/train.jsonl", "test": "data/test.jsonl"}
    data = DataSettings.model_validate({"parts": {"textcraft": part}})
    with pytest.raises(ConfigError) as refusal:
        read_parts(data)
    assert str(refusal.value) == (
        "data/train.jsonl, row 0 (line 1): textcraft has 544 items, textcraft_0 to textcraft_543; "
        "there is no 'textcraft_547'"
    )
    (tmp_path / "data" / "train.jsonl").write_text(json.dumps({"item_id": "textcraft_007"}))
    with pytest.raises(ConfigError, match=r"'textcraft_007' is textcraft_7; write it so"):
        read_parts(data)


async def test_agentgyms_clients_may_ask_for_any_number_of_textcraft() -> None:
    """Its server goes on with the first goal after the last; OpenEnv's clients name an item that there is."""
    async with listening(get_env("textcraft")) as url, httpx.AsyncClient(base_url=url) as http:
        number = (await http.post("/create", json={})).json()["id"]

        async def opening(index: int) -> Any:
            return (await http.post("/reset", json={"id": number, "data_idx": index})).json()

        assert await opening(547) == await opening(3) != await opening(4)
        refusal = await http.post("/reset", json={"item_id": "textcraft_547"})
        assert refusal.status_code == 422
        assert "textcraft_0 to textcraft_543" in refusal.text
