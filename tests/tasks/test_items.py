"""Items in parts: which there are, in what order training draws them, and the rules each is played by."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agents.samplers.sampler import ScriptedSampler
from agents.types import StopReason
from envs.errors import ConfigError
from envs.registry import EnvSpec, Split, register_env
from envs.types import Item
from tasks.config.data import DataSettings
from tasks.data.items import evaluation_turns, split, training_order, training_turns
from tasks.data.trajectories import summarise
from tasks.rollout.runner import make_runner
from tasks.rollout.spec import RolloutSpec
from tasks.tracking.facts import version_tags
from tasks.tracking.model import COMPARABLE
from tests.support.toy import ToyEnv, encode, toy_tokenizer
from tests.support.verl_toy import toy_pipeline


def items_of(env: str, numbers: range) -> list[Item]:
    return [Item(item_id=f"{env}_{n}", env=env, metadata={"target": 3, "level": n % 3}) for n in numbers]


def spec_of(name: str) -> EnvSpec:
    def split_levels(seed: int) -> Split:
        return Split(train=items_of(name, range(9)), test=items_of(name, range(9, 12)))

    return EnvSpec(
        name=name,
        make=ToyEnv,
        split=split_levels,
        expert=lambda _: [],
        instructions=f"This is {name}.",
        packages=(),
    )


@pytest.fixture(autouse=True)
def _two_toys() -> None:
    for name in ("here", "there"):
        register_env(spec_of(name))


def parts(**parts: dict[str, Any] | None) -> DataSettings:
    return DataSettings.model_validate({"parts": parts})


def test_a_part_is_named_after_its_env_or_says_it() -> None:
    data = parts(here=None, easy={"env": "there", "where": {"level": [0]}})
    assert [part.env for part in data.parts.values()] == ["here", "there"]
    assert data.part_of(Item(item_id="there_3", env="there", metadata={"level": 0})) == "easy"
    assert data.part_of(Item(item_id="there_4", env="there", metadata={"level": 1})) is None


def test_the_split_is_that_of_the_parts_together() -> None:
    items_of_both = split(parts(here={"where": {"level": [1, 2]}}, there={}))
    assert [item.item_id for item in items_of_both.train[:6]] == [
        "here_1",
        "here_2",
        "here_4",
        "here_5",
        "here_7",
        "here_8",
    ]
    assert [item.item_id for item in items_of_both.train[6:]] == [f"there_{n}" for n in range(9)]
    assert [item.item_id for item in items_of_both.test] == [
        "here_10",
        "here_11",
        "there_9",
        "there_10",
        "there_11",
    ]


def test_a_part_for_training_alone_has_no_test_items() -> None:
    items = split(parts(here={"evaluate": False}, there={}))
    assert {item.env for item in items.train} == {"here", "there"}
    assert {item.env for item in items.test} == {"there"}
    with pytest.raises(ValidationError, match="no part is evaluated"):
        parts(here={"evaluate": False})
    with pytest.raises(ValidationError, match="max_turns is the limit in evaluation"):
        parts(here={"evaluate": False, "max_turns": 3}, there={})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (parts(here={"where": {"level": [7]}}), r"here has no training items.*'level': \[7\].*'level': 0"),
        (parts(here={}, again={"env": "here"}), r"here_0 is in data\.parts\.here and in data\.parts\.again"),
        (parts(nowhere={}), r"unknown env 'nowhere'"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be(data: DataSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        split(data)


def test_no_part_and_no_weight_are_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1"):
        parts()
    with pytest.raises(ValidationError, match="greater than 0"):
        parts(here={"weight": 0})


@given(
    weights=st.lists(st.floats(0.05, 20), min_size=1, max_size=4),
    count=st.integers(1, 300),
    seed=st.integers(0, 5),
)
def test_every_part_has_its_share_at_every_moment(weights: list[float], count: int, seed: int) -> None:
    data = parts(**{f"p{i}": {"env": f"e{i}", "weight": weight} for i, weight in enumerate(weights)})
    items = [item for i in range(len(weights)) for item in items_of(f"e{i}", range(5))]
    training_items = [items[i] for i in islice(training_order(items, data, seed=seed), count)]
    for end in range(1, count + 1):
        counts = Counter(item.env for item in training_items[:end])
        for i, weight in enumerate(weights):
            # an apportionment by the largest remainder so far is off by less than the number of parts
            assert abs(counts[f"e{i}"] - end * weight / sum(weights)) < max(1, len(weights) - 1) + 1e-6
    for i in range(len(weights)):
        item_ids = [item.item_id for item in training_items if item.env == f"e{i}"]
        for start in range(0, len(item_ids), 5):  # each once before any comes again
            assert len(set(item_ids[start : start + 5])) == len(item_ids[start : start + 5])


def test_a_part_without_items_has_no_order() -> None:
    order = training_order(items_of("here", range(3)), parts(here={}, there={}), seed=0)
    with pytest.raises(
        ConfigError, match=r"data\.parts\.there has none of the 3 training items; run the pre"
    ):
        next(order)


def test_the_seed_chooses_the_order() -> None:
    data, items = parts(here={}), items_of("here", range(50))

    def first(seed: int) -> list[Item]:
        return [items[i] for i in islice(training_order(items, data, seed=seed), 50)]

    assert first(1) == first(1) != first(2)
    assert sorted(first(1), key=lambda item: item.index) == items


def pipeline_of(**data: Any) -> Any:
    return toy_pipeline(Path("none"), data={"parts": data}, agent={"instructions": True})


SCALING = {"type": "scaling_inter_stepwise", "max_turns": [2, 5], "steps_per_stage": 3}


def test_a_part_may_have_its_own_horizon() -> None:
    pipeline = pipeline_of(here={}, there={"horizon": SCALING, "max_turns": 9})
    turns_by_step = [training_turns(pipeline, step=step, evidence={}) for step in range(1, 6)]
    assert [turns["here"] for turns in turns_by_step] == [4] * 5
    assert [turns["there"] for turns in turns_by_step] == [2, 2, 2, 5, 5]
    assert evaluation_turns(pipeline) == {"here": 4, "there": 9}


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"here": {}, "there": {"max_turns": 4}}, "4"),
        ({"here": {}, "there": {"max_turns": 9}}, "here 4, there 9"),
        ({"here": {"evaluate": False}, "there": {"max_turns": 9}}, "9"),
    ],
)
def test_versions_of_other_turns_in_evaluation_are_not_compared(parts: dict[str, Any], text: str) -> None:
    evaluation: dict[str, Any] = {policy: {"sampled": {}, "greedy": {}} for policy in ("before", "after")}
    tags = version_tags(pipeline_of(**parts), workspace=Path("none"), evaluation=evaluation, run_tags={})
    assert "evaluate.max_turns" in COMPARABLE
    assert tags["evaluate.max_turns"] == text


async def test_items_of_two_environments_are_played_side_by_side_each_by_its_own_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = pipeline_of(here={}, there={})
    pipeline = pipeline.model_copy(
        update={
            "rollout": pipeline.rollout.model_copy(update={"max_tokens_per_turn": 40, "context_length": 200})
        }
    )
    sampler = ScriptedSampler(["Action: add 1"] * 9, encode=encode)
    runner = make_runner(pipeline, sampler=sampler, tokenizer=toy_tokenizer())
    items = [items_of("here", range(1))[0], items_of("there", range(1))[0]]
    spec = RolloutSpec(name="both", max_turns={"here": 2, "there": 8}, num_samples=2, temperature=1.0)
    try:
        groups = await runner.run(items, spec)
    finally:
        await runner.close()
    assert [[(t.stop_reason, len(t.turns)) for t in group] for group in groups] == [
        [(StopReason.MAX_TURNS, 2)] * 2,
        [(StopReason.TERMINATED, 3)] * 2,  # the target is 3
    ]
    for group, name in zip(groups, ("here", "there"), strict=True):
        assert f"This is {name}." in toy_tokenizer().decode(group[0].prompt_ids)
    summary = summarise([t for group in groups for t in group])
    assert (summary["success_env_here"], summary["success_env_there"], summary["success"]) == (0.0, 1.0, 0.5)
    assert (summary["turns_env_here"], summary["turns_env_there"]) == (2, 3)
    assert summary["success_level_0"] == 0.5
    assert "success_target_3" in summary
