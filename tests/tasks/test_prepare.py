"""Items as files, and environments proved by their expert."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError, EnvCrashed, EpisodeTimeout
from envs.registry import EnvSpec, ExpertStep, Split, register_env
from envs.types import Item
from tasks.config.pipelines import Pipeline, load_pipeline
from tasks.config.prompts import check_prompts
from tasks.data.items import read_items
from tasks.stages.prepare import prepare
from tasks.stages.provision import provision
from tests.support.toy import ToyEnv, toy_item

PIPELINES = Path(__file__).parents[2] / "pipelines.yaml"
SOLUTION = [ExpertStep(thought="", action="add 1"), ExpertStep(thought="", action="add 2")]


class _Toy:
    """An environment whose instances are kept."""

    def __init__(
        self,
        *,
        solution: Sequence[ExpertStep] = SOLUTION,
        packages: tuple[str, ...] = ("pytest",),
        **faults: int,
    ) -> None:
        self.live_envs: list[ToyEnv] = []

        def make() -> ToyEnv:
            self.live_envs.append(ToyEnv(**faults))
            return self.live_envs[-1]

        def split(seed: int) -> Split:
            return Split(train=[toy_item(i) for i in range(40)], test=[toy_item(100 + seed)])

        def expert(item: Item) -> Sequence[ExpertStep]:
            return solution

        self.spec = EnvSpec(
            name="toy", make=make, split=split, expert=expert, instructions="", packages=packages
        )


@pytest.fixture
def pipeline() -> Pipeline:
    return load_pipeline("textcraft-cpu", overrides={"data.parts": {"toy": None}}, file=PIPELINES)


@pytest.mark.heavy
def test_textcraft_is_prepared_with_no_goal_in_both_splits_and_the_same_bytes_again(tmp_path: Path) -> None:
    pipeline = load_pipeline("textcraft-cpu", file=PIPELINES)
    for folder in ("a", "b"):
        prepare(pipeline, tmp_path / folder)
    files = ("data/train.jsonl", "data/test.jsonl")
    train, test = (read_items(tmp_path / "a" / file, data=pipeline.data) for file in files)
    assert Counter(item.env for item in train) == {"textcraft": 374, "textcraft-invented": 19_900}
    assert Counter(item.env for item in test) == {"textcraft": 100}
    assert not {item.item_id for item in train} & {item.item_id for item in test}
    for file in files:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("metadata", r"'toy': item toy_0: metadata\.hue holds a Colour; give a number or a text"),
        ("fields", r"'toy': item toy_0: fields\.hue holds a Colour; give a JSON value"),
    ],
)
def test_items_that_are_no_json_are_refused_by_name(
    kind: str, message: str, tmp_path: Path, pipeline: Pipeline
) -> None:
    class Colour:
        pass

    facts: dict[str, Any] = {kind: {"target": 3, "hue": Colour()}}
    items = [replace(toy_item(i), **facts) for i in range(2)]
    register_env(replace(_Toy().spec, split=lambda seed: Split(train=items[:1], test=items[1:])))
    with pytest.raises(ConfigError, match=message):
        prepare(pipeline, tmp_path)


def test_an_environment_without_test_items_is_refused(tmp_path: Path, pipeline: Pipeline) -> None:
    register_env(replace(_Toy().spec, split=lambda seed: Split(train=[toy_item(0)], test=[])))
    with pytest.raises(ConfigError, match=r"no test items: environment 'toy' has none; .*evaluate: false"):
        prepare(pipeline, tmp_path)


def test_provision_plays_the_expert_and_leaves_a_receipt(tmp_path: Path, pipeline: Pipeline) -> None:
    toy = _Toy()
    register_env(toy.spec)
    prepare(pipeline, tmp_path)
    provision(pipeline, tmp_path)
    receipt = json.loads((tmp_path / "provision.json").read_text())
    assert receipt["episodes"] == 40
    assert receipt["turns"] == 80
    assert receipt["solved"] == 40
    assert receipt["envs"]["toy"]["packages"] == {"pytest": pytest.__version__}
    assert toy.live_envs
    assert all(env.is_closed for env in toy.live_envs)


@pytest.mark.parametrize(
    ("toy", "message"),
    [
        (
            _Toy(solution=SOLUTION[:1]),
            r"expert's solution of toy_0 does not solve it: its action 1 of 1, 'add 1', is answered by "
            r"'The total is 1\.'; another version of pytest may be installed; .*: wingspan play toy 0$",
        ),
        (_Toy(solution=SOLUTION[:1], packages=()), r"is answered by 'The total is 1\.'; play it"),
        (_Toy(crash_at=2), r"toy_\d+: step raised KeyError"),  # whichever item gets there first
    ],
)
def test_an_environment_that_does_not_work_is_found_out(
    tmp_path: Path, pipeline: Pipeline, toy: _Toy, message: str
) -> None:
    register_env(toy.spec)
    prepare(pipeline, tmp_path)
    with pytest.raises(EnvCrashed, match=message):
        provision(pipeline, tmp_path)
    assert not (tmp_path / "provision.json").exists()


def test_an_environment_without_the_states_that_its_spec_promises_is_found_out(
    tmp_path: Path, pipeline: Pipeline
) -> None:
    class Stateless(ToyEnv):
        def state_key(self) -> None:
            return None

    register_env(replace(_Toy().spec, make=Stateless, has_states=True))
    prepare(pipeline, tmp_path)
    with pytest.raises(EnvCrashed, match=r"toy_\d+: state_key returns None .*; return a key from"):
        provision(pipeline, tmp_path)


def test_a_hung_environment_is_found_out(tmp_path: Path, pipeline: Pipeline) -> None:
    register_env(_Toy(hang_at=1).spec)
    prepare(pipeline, tmp_path)
    rollout = pipeline.rollout.model_copy(update={"episode_timeout_s": 0.2})
    with pytest.raises(EpisodeTimeout, match=r"toy_0: the episode took longer than 0\.2 s"):
        provision(pipeline.model_copy(update={"rollout": rollout}), tmp_path)


def test_the_room_after_prompts_is_checked_whatever_the_environment_raises(pipeline: Pipeline) -> None:
    register_env(_Toy(crash_at=0).spec)  # `provision` reports the fault
    check_prompts(pipeline, [toy_item()])


def test_without_an_expert_items_are_begun(tmp_path: Path, pipeline: Pipeline) -> None:
    toy = _Toy(solution=())
    register_env(toy.spec)
    prepare(pipeline, tmp_path)
    provision(pipeline, tmp_path)
    receipt = json.loads((tmp_path / "provision.json").read_text())
    assert (receipt["episodes"], receipt["solved"], receipt["turns"]) == (40, 0, 40)
    assert sum(env.resets for env in toy.live_envs) == 40


def test_items_of_another_environment_are_refused(tmp_path: Path, pipeline: Pipeline) -> None:
    register_env(_Toy().spec)
    prepare(load_pipeline("textcraft-cpu", file=PIPELINES), tmp_path)
    with pytest.raises(ConfigError, match=r"textcraft_\d+.*none of data\.parts \(toy\)"):
        provision(pipeline, tmp_path)
